"""Pauses of what did not pay, each longer than the one before."""

from __future__ import annotations

LONGEST = 32  # first pauses: then it is tried again however often it has failed


class Backoff:
    """Pauses that double with every failure. The unit is the caller's: rounds, or seconds."""

    def __init__(self, first: float) -> None:
        self.first = self.next = first  # lengths of the first pause, and of the next one
        self.until = 0.0

    def left(self, now: float) -> float:
        return max(0.0, self.until - now)

    def resting(self, now: float) -> bool:
        return now < self.until

    def pause(self, now: float) -> None:
        """Rest, though nothing has failed."""
        self.until = now + self.next

    def rest(self, now: float) -> None:
        """Rest, and the next time for twice as long."""
        self.pause(now)
        self.next = min(LONGEST * self.first, 2 * self.next)

    def succeed(self) -> None:
        self.next = self.first
