"""Sources of drafts: whatever adds nodes to a stream's tree, with calibrated chances.

A remote drafter, the draft model between forwards, the request's own text, the memory of ended requests, a datastore
and a grammar enter the tree by the same door, :meth:`actors.tree.tree.TokenTree.add`.

To add a source: write ``sources/NAME.py`` with a subclass of :class:`Source`, give it a bit in ``sources/bits.py``, put
one of them into the verifier's :class:`~actors.verifier.sources.lookup.Library` (``library.add``), and name it in those
rows of :data:`actors.methods.STRATEGIES` that use it. :class:`actors.verifier.trials.Trials` then finds out whether it
pays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec

from actors.calibration import MIN_CHANCE
from actors.models import DEFAULT_NODES
from actors.tree.window import Cost
from actors.verifier.results import Committed
from actors.verifier.streams import Stream

SLICE = 256  # tokens of a text that a source reads at once, because others decode


class Allowance(msgspec.Struct, frozen=True, eq=False):
    """The sources' allowance before a round."""

    streams: int  # streams that share it
    rate: float  # tokens per microsecond that they reach together: the price of time
    rows: Cost  # calibrated time of rows of drafts, by their number
    slowdown: float = 1.0  # times that they take now
    room_us: float = math.inf  # for all drafting together
    reads: bool = True  # whether there is time for texts that were not read yet
    now_us: float = 0.0  # since the verifier's start
    gain: Callable[[Stream, str], float] = lambda stream, source: 1.0  # the speed-up that a stream may expect of it
    interruption: float = 0.0  # tokens that drafts must bring beyond their rows' time, to end a row of forwards

    @property
    def row_rate(self) -> float:
        """Tokens per microsecond of ``rows``."""
        return self.rate * self.slowdown

    @property
    def least(self) -> float:
        """Tokens that the time for a row would bring otherwise, where rows cost least."""
        return self.row_rate * min(self.rows[1], self.rows[DEFAULT_NODES] / DEFAULT_NODES)

    @property
    def bound(self) -> float:
        """Log chance of a retrieved token that is worth a row."""
        return math.log(max(MIN_CHANCE, self.least))


class Source:
    """``prepare`` reads a text ahead, ``grow`` adds drafts before a round, ``finds`` looks for some, ``learn`` follows.

    All run in the event loop's thread, between two forwards or beside a forward on another thread, and are called by
    :class:`actors.verifier.sources.boundary.Sources`: what they raise drops the source for good."""

    name: str  # by which methods, trials and statistics know it
    bit: int  # in :attr:`Node.sources`
    exclusive = False  # only the most promising of such sources (draft models) works for a stream
    binds = False  # whether the output must follow it, so that a request cannot go on without it
    ranks = False  # whether ``learn`` reads :attr:`Committed.ranked`
    together = False  # whether ``grow`` takes all streams of a round at once, which share its steps

    def judged_as(self, stream: Stream) -> str:
        """The name in the trials; "": there is none for this stream."""
        return self.name

    def able(self, stream: Stream, allowance: Allowance) -> bool:
        """Whether a draft model can draft for the stream in the next round."""
        return True

    def prepare(self, stream: Stream, most: int = SLICE) -> None:
        """Read the next tokens of the stream's text, while its prompt is being computed."""

    def grow(self, streams: Sequence[Stream], allowance: Allowance) -> None:
        """Before a round: add to the streams' trees what is likely enough to be worth a row."""

    def finds(self, stream: Stream, tokens: Sequence[int], allowance: Allowance) -> bool:
        """Whether it has drafts behind ``tokens``, which are not committed yet, that are worth a round of their own.
        Asked between forwards that follow one another: an answer should take microseconds."""
        return True

    def learn(self, stream: Stream, committed: Committed) -> None:
        """The target has decided. ``committed.root`` is the root that the drafts hung on."""

    def end(self, stream: Stream) -> None:
        """Forget the stream, which is over. Called between two forwards."""
