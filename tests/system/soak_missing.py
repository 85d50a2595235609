"""Why drafters are not back, when a soak has waited for them long enough: see ``soak.py``.

One that no process stands for is the supervisor's fault. One whose process has had the CPU time that loading takes, and
whom the verifier still does not list, is at fault itself. One that has had less was starved, or killed while it loaded
and begins anew: that is the machine's doing, and the soak's own.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

LOADED_CPU_S = 30.0  # several times what a drafter takes that imports torch by itself

TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Process:
    """A drafter's, that the verifier does not list. ``hired``: started by hand, and so no fork with imports done."""

    pid: int
    age_s: float
    cpu_s: float
    hired: bool

    @property
    def told(self) -> str:
        kind = "started by hand" if self.hired else "forked"
        return f"pid {self.pid}, {kind} {self.age_s:.0f} s ago, has had {self.cpu_s:.1f} s of a CPU"


@dataclass(frozen=True)
class Missing:
    """``back`` of ``wanted`` drafters are listed; ``processes`` stand for others."""

    how: str  # they were struck
    wanted: int
    back: int
    processes: tuple[Process, ...]

    @property
    def starved(self) -> bool:
        """Each has a process, and none of these has had the time to load."""
        waiting = [process for process in self.processes if process.cpu_s < LOADED_CPU_S]
        return self.back + len(waiting) >= self.wanted and len(waiting) == len(self.processes)

    @property
    def told(self) -> str:
        processes = "; ".join(process.told for process in self.processes) or "no process stands for the others"
        return f"{self.back} of {self.wanted} drafters that were {self.how} together were back: {processes}"


def process(pid: int, hired: bool) -> Process | None:
    """None: it has just ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        now = float(Path("/proc/uptime").read_text().split()[0])
    except OSError:
        return None
    user, system, began = (int(fields[at]) / TICKS for at in (11, 12, 19))
    return Process(pid, now - began, user + system, hired)


def summary(missing: Sequence[Missing]) -> list[str]:
    """For the report: what was the machine's doing."""
    return [one.told for one in missing if one.starved]


def problems(missing: Sequence[Missing]) -> list[str]:
    return [one.told for one in missing if not one.starved]
