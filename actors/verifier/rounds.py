"""A round: its plan (:class:`Batch`), and the record of its time and tokens (:class:`Round`).

Both are frozen. Whoever learns, learns from :class:`Round`, and from nothing else.
"""

from __future__ import annotations

import msgspec

from actors.verifier.results import Chosen, Group
from actors.verifier.sources.source import Allowance, Source
from actors.verifier.streams import Stream
from protocols.messages import RoundStats

NOBODY = Allowance(0, 0.0, {})


class Batch(msgspec.Struct, frozen=True, eq=False):
    """One flat forward: a window for each of ``streams``, a piece of a prompt, or both; or several without drafts."""

    streams: tuple[Stream, ...] = ()
    windows: tuple[Chosen, ...] = ()  # windows of ``streams``, in that order
    asked: tuple[dict[Source, str], ...] = ()  # sources that each of ``streams`` asked, and what trials know them by
    ranks: tuple[bool, ...] = ()  # for each of ``streams``: whether the target says what else was likely
    allowance: Allowance = NOBODY  # what those sources may add
    decoding: int = 0  # streams that decode, whether they have a part in it or wait
    piece: Stream | None = None  # stream with a prompt that goes on
    piece_rows: int = 0  # tokens of it at most; 0: as many as suit the model
    steps: int = 1  # forwards at most, each of which brings every stream a token; 1 where drafts are verified
    unattended: bool = False  # whether nothing but drafts that are found keeps forwards from following one another
    drafting_us: float = 0.0  # time that sources took before the forward, reading included
    reading_us: float = 0.0  # part of ``drafting_us`` for texts that the draft model had not read

    @property
    def everybody(self) -> tuple[Stream, ...]:
        """The streams that it brings an outcome for, in the order of the outcomes."""
        return self.streams if self.piece is None else (*self.streams, self.piece)

    @property
    def rows(self) -> int:
        """Rows of all windows together, their roots included."""
        return len(self.streams) + sum([len(window.nodes) for window in self.windows])


class Share(msgspec.Struct, frozen=True, eq=False):
    """One source's part in one stream's round."""

    source: str
    rows: int  # rows of the window that no other source had named
    without: int  # tokens that the round would have brought without the source
    time_us: float  # time that the round waited for it


class Part(msgspec.Struct, frozen=True, eq=False):
    """One stream's part in a round."""

    stream: Stream
    group: Group
    rounds: int  # rounds of the stream so far, this one included
    tokens: int
    own_us: float  # since the stream's last round ended, without the prompts computed meanwhile
    shares: tuple[Share, ...]
    stats: RoundStats  # statistics as telemetry publishes them


class Round(msgspec.Struct, frozen=True, eq=False):
    """Times and tokens of a batch. Times are microseconds."""

    streams: int  # streams that had a window
    rows: int  # rows of their windows, roots included
    prompt_rows: int  # rows asked for; the last piece may have fewer
    steps: int  # forwards that there were
    forward_us: float  # forward of all of them together
    prompt_us: float  # the prompt's part of ``forward_us``
    own_us: float  # time from the last round's end to this one's, without the prompt; at least 1
    waited_us: float  # part of ``own_us`` before the forward: sources that drafted, and drafters that were waited for
    whole_piece: bool  # whether the piece had as many rows as were asked for
    tokens: int
    parts: tuple[Part, ...] = ()
    unattended: bool = True  # see :class:`Batch`

    @property
    def drafts(self) -> int:
        return self.rows - self.streams

    @property
    def asked(self) -> bool:
        """Whether any source was asked for drafts, though there may have been none."""
        return self.drafts > 0 or any(part.shares for part in self.parts)
