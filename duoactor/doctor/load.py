"""Whether other processes keep the machine so busy that times which are measured on it mislead."""

from __future__ import annotations

import os

BUSY = 0.75  # load of a CPU; with 4 processes for each, a bundled pair that brings 1.34x brought 1.17x


def busy(cpus: int) -> str | None:
    """What to say of it, or None if it is not busy."""
    load = load_average()
    if load <= BUSY * cpus:
        return None
    return f"the machine is busy (load {load:.1f} on {cpus} CPUs): so are its times; ask again later"


def load_average() -> float:
    """Processes that computed or waited to, in the last minute."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
