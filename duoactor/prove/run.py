"""A proof from start to end: the actors, the questions, drafters that die and change places, and the findings."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from duoactor.bench.benchmark import Running
from duoactor.client.async_client import AsyncClient
from duoactor.launch.deployment import Deployment
from duoactor.launch.supervisor import Supervisor
from duoactor.prove.proof import Evidence, Proof
from duoactor.prove.questions import ProofQuestions, prompts_of
from duoactor.prove.report import ProofReport, report
from protocols.errors import DuoactorError
from protocols.messages import Method, Role

SWAP_S = 1.5
SWAPS_PER_KILL = 10  # before the first; before the second twice as many, and so on: a start takes a core for seconds


@dataclass(slots=True)
class ProofJob:
    """``check``: another machine's chain; the proof ends after the same number of texts. Empty: it ends by time."""

    deployment: Deployment
    seconds: float
    seed: int
    check: str = ""
    command: str = ""  # makes the same proof again
    found: ProofReport | None = None  # also of a proof that was interrupted

    async def run(self, running: Running, show: Callable[[str], None]) -> None:
        deployment = self.deployment
        async with running(deployment) as (supervisor, client):
            status = await client.status()
            began = time.monotonic()
            questions = ProofQuestions(await prompts_of(client), self.seed, client.welcome.max_context)
            methods = [method for method in Method if method != Method.REST or deployment.verifier.datastore]
            links = int(self.check.partition(":")[0]) if self.check else 0
            proof = Proof(client, questions, methods, began + self.seconds, show, links)
            troubles = asyncio.create_task(trouble(client, supervisor, proof.evidence))
            try:
                await proof.run()
            finally:
                troubles.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await troubles
                self.found = report(proof, deployment, status, time.monotonic() - began, self.check, self.command)


async def trouble(client: AsyncClient, supervisor: Supervisor, evidence: Evidence) -> NoReturn:
    """Until it is cancelled: swap the drafters, and kill one of them after some swaps."""
    for turn in itertools.count(1):
        for _ in range(turn * SWAPS_PER_KILL):
            await asyncio.sleep(SWAP_S)
            with contextlib.suppress(DuoactorError):  # it has just died, or there is one alone
                await _swap(client)
                evidence.swapped += 1
        evidence.killed += _kill(supervisor, turn)
    raise AssertionError


async def _swap(client: AsyncClient) -> None:
    """All streams of the busiest drafter move to another."""
    drafters = sorted((await client.status()).drafters, key=lambda one: one.leases)
    if len(drafters) > 1:
        await client.swap(drafters[-1].actor_id, drafters[0].actor_id)


def _kill(supervisor: Supervisor, turn: int) -> int:
    """One drafter, in turns. Returns how many: none while they are being started."""
    pids = [pid for plan, pid in supervisor.actors if plan.role == Role.DRAFTER and pid]
    if not pids:
        return 0
    with contextlib.suppress(ProcessLookupError):
        os.kill(pids[turn % len(pids)], signal.SIGKILL)
    return 1
