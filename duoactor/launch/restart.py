"""When to start a dead actor again. Pure logic: no process, no clock."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field

DELAYS_S = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)  # after the first death, the second, …
LONGEST_DELAY_S = 10.0
HEALTHY_S = 2.0  # ready for this long: no loop of crashes, and earlier deaths are forgotten
DEATHS_BEFORE_READY = 5
# exit codes of an actor that was asked to end: while it served, while it loaded its model, and before that
ASKED = (0, 128 + signal.SIGTERM, -signal.SIGTERM)
REFUSED = (1, 2)  # exit codes of an actor that said why it cannot run: an option, a model, a port in use


@dataclass(frozen=True, slots=True)
class Start:
    """Start the actor again at time ``at`` (s)."""

    at: float


@dataclass(frozen=True, slots=True)
class Leave:
    """An end in good order (drained, or stopped): no restart."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Starting it again would not help."""

    reason: str
    deaths: int


Action = Start | Leave | GiveUp


@dataclass(slots=True)
class Lifecycle:
    """One actor's life. Feed it what happened and when (s, any monotonic clock); it says what to do."""

    deaths: int = 0  # since it was last healthy: they set the delay
    was_ready: bool = False  # so it can be: whatever kills it from now on may pass
    _ready_at: float | None = field(default=None)

    def ready(self, now: float) -> None:
        if self._ready_at is None:
            self._ready_at = now
        self.was_ready = True

    def exited(self, now: float, code: int) -> Action:
        """``code`` as in subprocess: negative for a signal."""
        if code in ASKED:
            return Leave()
        if self._ready_at is not None and now - self._ready_at >= HEALTHY_S:
            self.deaths = 0
        self.deaths += 1
        self._ready_at = None
        if not self.was_ready and (code in REFUSED or self.deaths >= DEATHS_BEFORE_READY):
            return GiveUp(describe_exit(code), deaths=1 if code in REFUSED else self.deaths)
        return Start(at=now + (DELAYS_S[self.deaths - 1] if self.deaths <= len(DELAYS_S) else LONGEST_DELAY_S))


def describe_exit(code: int) -> str:
    """ "was killed by SIGKILL" or "ended with exit code 3"."""
    if code < 0:
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by signal {-code}"
    return f"ended with exit code {code}"
