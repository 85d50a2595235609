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


@dataclass(slots=True)
class Lifecycle:
    """One actor's life, by what happened and when (s, any monotonic clock)."""

    deaths: int = 0  # since it was last healthy: they set the delay
    was_ready: bool = False  # so it can be: whatever kills it from now on may pass
    _ready_at: float | None = field(default=None)

    def ready(self, now: float) -> None:
        if self._ready_at is None:
            self._ready_at = now
        self.was_ready = True

    def died(self, now: float, code: int) -> float | None:
        """When to start it again; None: that would not help. ``code`` as in subprocess: negative for a signal."""
        if self._ready_at is not None and now - self._ready_at >= HEALTHY_S:
            self.deaths = 0
        self.deaths += 1
        self._ready_at = None
        if not self.was_ready and (code in REFUSED or self.deaths >= DEATHS_BEFORE_READY):
            return None
        return now + (DELAYS_S[self.deaths - 1] if self.deaths <= len(DELAYS_S) else LONGEST_DELAY_S)


def describe_exit(code: int) -> str:
    """ "was killed by SIGKILL" or "ended with exit code 3"."""
    if code < 0:
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by signal {-code}"
    return f"ended with exit code {code}"
