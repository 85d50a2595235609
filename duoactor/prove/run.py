"""A proof from start to end: the actors, the questions, the troubles, and what was found."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass

from duoactor.bench.benchmark import Access
from duoactor.launch.deployment import Deployment
from duoactor.launch.supervisor import Supervisor
from duoactor.prove.proof import Proof
from duoactor.prove.questions import ProofQuestions, prompts_of
from duoactor.prove.report import ProofReport, report
from duoactor.prove.troubles import trouble
from protocols.messages import Method


@dataclass(slots=True)
class ProofJob:
    """``check``: another machine's chain; the proof ends after the same number of texts. Empty: it ends by time."""

    deployment: Deployment
    seconds: float
    seed: int
    check: str = ""
    found: ProofReport | None = None  # also of a proof that was interrupted

    async def run(self, access: Access, show: Callable[[str], None]) -> None:
        deployment = self.deployment
        async with Supervisor(
            deployment.plans, access.probe, report=access.report, address=deployment.address
        ) as supervisor:
            access.started()
            async with access.connect(deployment.address) as client:
                status = await client.status()
                began = time.monotonic()
                questions = ProofQuestions(await prompts_of(client), self.seed, client.welcome.max_context)
                methods = [method for method in Method if method != Method.REST or deployment.verifier.datastore]
                links = int(self.check.partition(":")[0]) if self.check else 0
                proof = Proof(client, questions, methods, began + self.seconds, show, links)
                troubles = asyncio.create_task(trouble(client, lambda: supervisor.actors, proof.evidence))
                try:
                    await proof.run()
                finally:
                    troubles.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await troubles
                    self.found = report(proof, deployment, status, time.monotonic() - began, self.check)
