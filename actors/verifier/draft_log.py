"""What a drafter reports of its own work on a request, kept until the next round's statistics are made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from protocols.messages import Grow

MAX_FORWARDS = 256  # of one round
MAX_RANKS = 64


@dataclass(slots=True)
class DraftLog:
    """See ``Grow`` for what the fields mean. Whatever a drafter sends, the lists stay bounded: the newest are kept."""

    forwards: list[tuple[int, int]] = field(default_factory=list)  # (start, length), microseconds of our clock
    phase: tuple[int, int] = (0, 0)  # (``phase_sequences``, ``phase_rank``) of the latest decided phase
    ranks: list[int] = field(default_factory=list)

    def add(self, message: Grow, forwards: Sequence[tuple[int, int]]) -> None:
        """``forwards``: those of the message, on our clock."""
        self.forwards = [*self.forwards, *forwards][-MAX_FORWARDS:]
        if message.phase_sequences > 0:
            self.phase = (message.phase_sequences, message.phase_rank)
        self.ranks = [*self.ranks, *message.ranks][-MAX_RANKS:]

    def stepped(self, began_us: float, spent_us: float) -> None:
        """The verifier's own draft model made a step."""
        self.forwards.append((round(began_us), round(spent_us)))
