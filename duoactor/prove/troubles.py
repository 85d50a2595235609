"""Drafters that die and change places while a proof runs."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
from collections.abc import Callable, Sequence
from typing import NoReturn

from duoactor.client.async_client import AsyncClient
from duoactor.launch.child import ActorPlan
from duoactor.prove.proof import Evidence
from protocols.errors import DuoactorError
from protocols.messages import Role

SWAP_S = 1.5
SWAPS_PER_KILL = 10  # before the first; before the second twice as many, and so on: a start takes a core for seconds

Actors = Callable[[], Sequence[tuple[ActorPlan, int]]]  # with process ids; 0: it is being started again


async def trouble(client: AsyncClient, actors: Actors, evidence: Evidence) -> NoReturn:
    """Until it is cancelled: swap the drafters, and kill one of them after some swaps."""
    for turn in itertools.count(1):
        for _ in range(turn * SWAPS_PER_KILL):
            await asyncio.sleep(SWAP_S)
            with contextlib.suppress(DuoactorError):  # it has just died, or there is one alone
                await _swap(client)
                evidence.swapped += 1
        evidence.killed += _kill(actors, turn)
    raise AssertionError


async def _swap(client: AsyncClient) -> None:
    """All streams of the busiest drafter move to another."""
    drafters = sorted((await client.status()).drafters, key=lambda one: one.leases)
    if len(drafters) > 1:
        await client.swap(drafters[-1].actor_id, drafters[0].actor_id)


def _kill(actors: Actors, turn: int) -> int:
    """One drafter, in turns. Returns how many: none while they are being started."""
    pids = [pid for plan, pid in actors() if plan.role == Role.DRAFTER and pid]
    if not pids:
        return 0
    with contextlib.suppress(ProcessLookupError):
        os.kill(pids[turn % len(pids)], signal.SIGKILL)
    return 1
