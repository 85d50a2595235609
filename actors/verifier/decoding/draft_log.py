"""What a drafter tells of its own work on a request, kept until the next round is accounted for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from protocols.messages import Grow

MAX_FORWARDS = 256  # told of in one round
MAX_RANKS = 64


@dataclass(slots=True)
class DraftLog:
    """Bounded, whatever a drafter says: of lists the newest stay."""

    forwards: list[tuple[int, int]] = field(default_factory=list)  # start and length of each, µs of our clock
    phase: tuple[int, int] = (0, 0)  # its word on a decided phase: sequences, and the rank of the token that came
    ranks: list[int] = field(default_factory=list)  # its word on decided tokens, likewise

    def add(self, message: Grow, forwards: Sequence[tuple[int, int]]) -> None:
        """``forwards``: those of the message, in our time."""
        self.forwards = [*self.forwards, *forwards][-MAX_FORWARDS:]
        if message.phase_sequences > 0:
            self.phase = (message.phase_sequences, message.phase_rank)
        self.ranks = [*self.ranks, *message.ranks][-MAX_RANKS:]

    def stepped(self, began_us: float, spent_us: float) -> None:
        """A step of the verifier's own draft model."""
        self.forwards.append((round(began_us), round(spent_us)))
