"""The cores that each actor gets. Pure logic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cores:
    """CPU numbers per actor; empty: not pinned."""

    verifier: tuple[int, ...]
    drafters: tuple[tuple[int, ...], ...]


def assign_cores(
    available: Sequence[int], drafter_threads: Sequence[int], *, drafters_need_cores: bool = True
) -> Cores:
    """Drafters take the last cores, as many as they have threads; the verifier takes the rest.

    They must not share cores: a drafter that preempts the target's thread stretches every round. With too few cores
    for that the drafters share the last one, and a single core is left to the scheduler.
    """
    cpus = sorted(available)
    unpinned = Cores(verifier=(), drafters=tuple(() for _ in drafter_threads))
    if len(cpus) < 2 or not drafter_threads or not drafters_need_cores:
        return unpinned
    if sum(drafter_threads) >= len(cpus):
        # two or more cores, but not enough for all: half of them, one at least, for the drafters together
        shared = tuple(cpus[-max(1, min(max(drafter_threads), len(cpus) // 2)) :])
        return Cores(verifier=tuple(cpus[: len(cpus) - len(shared)]), drafters=tuple(shared for _ in drafter_threads))
    pinned: list[tuple[int, ...]] = []
    for threads in drafter_threads:
        pinned.append(tuple(cpus[-threads:]))
        cpus = cpus[:-threads]
    return Cores(verifier=tuple(cpus), drafters=tuple(pinned))


def format_cpus(cpus: Sequence[int]) -> str:
    """CPUs as the ``cpus`` option takes them: "0,1"."""
    return ",".join(str(cpu) for cpu in cpus)
