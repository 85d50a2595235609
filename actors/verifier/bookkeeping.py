"""What a row of drafts costs in the verifier's own code, beside forward and draft steps: its window is chosen, laid
out, walked and committed.

Without drafts a round of the bundled target takes 1.4 ms on a CPU, of which the forward takes 1.15 ms, where each
forward has a round of its own. Each node of a window adds 0.10 ms to the forward and 0.02 to 0.05 ms here; a price of
rows without that lets rows in that cost more than they bring. With a large target or on a GPU it is next to nothing. It
is learnt as forward times are (:class:`actors.cost.CostModel`): from how much longer rounds with more rows took.
"""

from __future__ import annotations

from collections import defaultdict
from functools import partial

from actors.estimate import Estimate, Slope
from actors.verifier.forward import Job

# In squared rows, see :class:`actors.estimate.Slope`. A single stream's rounds vary by 0.1 ms for other reasons than
# their drafts; with 16 squared rows that leaves an error of 0.025 ms a row, half of what a row takes.
PRIOR = 16.0
MEMORY = 64 * PRIOR
PLAIN_MEMORY = 48  # rounds


class Bookkeeping:
    """The microseconds of a row, by the number of streams that share a round, and for one that is alone by its method:
    a lookup's window is less work than a tree's."""

    def __init__(self) -> None:
        self._slopes: defaultdict[int | str, Slope] = defaultdict(partial(Slope, PRIOR, MEMORY))
        self._plain: defaultdict[str, Estimate] = defaultdict(partial(Estimate, memory=PLAIN_MEMORY))  # by method
        self.question = Estimate(memory=PLAIN_MEMORY)  # microseconds of asking proposers what follows a token

    def observe(self, job: Job, took_us: float, forward_us: float) -> None:
        """Learn from a round of ``took_us``, of which the forward took ``forward_us``.

        Rounds with a drafter at work are left out, since they may have waited for it; rounds beside a piece of a
        prompt; and rounds with a grammar, whose time for a row is priced on its own. Of several streams, each of the
        forwards in a row that drafts would end has its part of what is beside them all; the price of a window of one
        that is alone has that end in it (:meth:`plain_us`)."""
        if job.piece is not None or any(r.has_drafter or r.spec.windows.grammar is not None for r in job.requests):
            return
        streams, method = len(job.requests), job.requests[0].method if job.requests else ""
        beside_us = max(0.0, took_us - forward_us - job.drafting_us)
        in_a_row = max(job.forwards, job.most_steps) if streams > 1 and job.rows == streams else 1
        self._slopes[_alike(streams, method)].add(streams, job.rows - streams, beside_us / in_a_row)
        if streams == job.load.streams == job.rows == 1:
            self._plain[method].add(min(beside_us, forward_us))

    def plain_us(self, method: str) -> float:
        """Microseconds of a round beside its forward, of a stream of that method that is alone and has no drafts."""
        return self._plain[method].mean

    def row_us(self, streams: int, method: str) -> float:
        """Microseconds of a row of drafts in a round of ``streams`` requests, or of one of that method; 0 while nothing
        is known."""
        return max(0.0, self._slopes[_alike(streams, method)].towards(0.0))


def _alike(streams: int, method: str) -> int | str:
    """Rounds that tell of one another: of about as many streams, or of the method of one that is alone."""
    return method if streams == 1 else streams.bit_length()
