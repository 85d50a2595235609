"""One benchmark from start to end: the actors, the reference beside them, every unit, and each model's cost alone."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from duoactor.bench.answers import Answers, Ours, Theirs
from duoactor.bench.lengths import measure_lengths
from duoactor.bench.methods import Row
from duoactor.bench.provenance import inflated, machine, versions
from duoactor.bench.reference import Reference
from duoactor.bench.results import Lengths, Results, Run, Settings
from duoactor.bench.rounds import Rounds
from duoactor.bench.runner import Bench, Schedule, Show, warm_up
from duoactor.bench.store import Store
from duoactor.bench.suites import Prompt
from duoactor.client.async_client import AsyncClient
from duoactor.launch.deployment import Deployment
from duoactor.launch.supervisor import Event, Probe, Supervisor
from duoactor.render import model_name
from protocols.address import parse
from protocols.messages import Sampling, StatusReport
from protocols.transport import Feed


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach the actors; tests put their own in place."""

    probe: Probe
    connect: Callable[[str], AbstractAsyncContextManager[AsyncClient]]
    subscribe: Callable[[str], AbstractAsyncContextManager[Feed]] | None
    report: Callable[[Event], None] = lambda event: None
    started: Callable[[], None] = lambda: None


class Asked(Protocol):
    """What makes runs comparable."""

    @property
    def prompts(self) -> Sequence[Prompt]: ...
    @property
    def sampling(self) -> Sampling: ...


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be measured."""

    prompts: Sequence[Prompt]
    rows: Sequence[Row]
    repeats: int
    sampling: Sampling
    sweep: bool = False


@dataclass(slots=True)
class Observations:
    """What is learnt beside the runs."""

    models: dict[str, Any] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    sweep_gamma: int = 0
    lengths: Lengths | None = None
    device: str = ""


@asynccontextmanager
async def deployed(deployment: Deployment, access: Access) -> AsyncIterator[tuple[AsyncClient, StatusReport]]:
    """The actors are up, and a client of theirs is connected."""
    supervisor = Supervisor(deployment.plans, access.probe, report=access.report, address=deployment.address)
    async with supervisor:
        access.started()
        async with access.connect(deployment.address) as client:
            yield client, await client.status()


def models_of(deployment: Deployment, status: StatusReport) -> dict[str, Any]:
    return {
        "target": model_name(deployment.verifier.target),
        "draft": model_name(deployment.drafters[0].draft),
        "device": status.device,
        "dtype": status.dtype,
    }


async def measure(
    deployment: Deployment, job: Job, store: Store[Run], found: Observations, access: Access, show: Show
) -> None:
    """Measure everything; ``found`` and ``store`` hold what is finished at any time."""
    rows = list(job.rows)
    async with AsyncExitStack() as stack:
        client, status = await stack.enter_async_context(deployed(deployment, access))
        found.models |= models_of(deployment, status)
        rounds = None
        if access.subscribe is not None:
            feed = await stack.enter_async_context(access.subscribe(str(parse(deployment.address).telemetry)))
            rounds = Rounds(feed)
            await stack.enter_async_context(_running(rounds.listen()))
        ours = Ours(client, rounds)
        answers: dict[str, Answers] = {row.name: ours for row in rows if row.ours}
        if others := [row for row in rows if not row.ours]:
            show("loading transformers", 0, 1)
            draft = deployment.drafters[0].draft if any(row.mode == "assisted" for row in others) else ""
            reference = await stack.enter_async_context(Reference.started(deployment.verifier, status, draft))
            found.device = reference.device
            theirs = Theirs(reference)
            answers |= {row.name: theirs for row in others}
        bench = Bench(store, job.sampling, answers, show)
        found.missing |= await warm_up(answers, rows, job.prompts[0], job.sampling, show)
        rows = [row for row in rows if row.name not in found.missing]
        await bench.run(Schedule(job.prompts, rows, job.repeats))
        if job.sweep:
            found.sweep_gamma = await bench.run_sweep(job.prompts, job.repeats)
    show("measuring both models by length of input", 0, 1)
    found.lengths = await measure_lengths(deployment)


@contextlib.asynccontextmanager
async def _running(work: Any) -> Any:
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def settings_of(deployment: Deployment, job: Asked, suite: str, datastore: str) -> Settings:
    texts = [[p.id, p.task, list(p.turns)] for p in job.prompts]
    verifier = deployment.verifier
    return Settings(
        target=verifier.target,
        draft=deployment.drafters[0].draft,
        suite=Path(suite).name,
        suite_digest=hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:12],
        prompts=len(job.prompts),
        tasks=tuple(dict.fromkeys(p.task for p in job.prompts)),
        max_tokens=job.sampling.max_tokens,
        temperature=job.sampling.temperature,
        seed=job.sampling.seed,
        device=verifier.device,
        dtype=verifier.dtype,
        datastore=datastore,
    )


def machine_of(deployment: Deployment, load: str) -> dict[str, Any]:
    """``load``: how busy it was before."""
    where = {**machine(), "load": load}
    if deployment.verifier.cpus:
        where["pinned"] = f"verifier to {deployment.verifier.cpus}, drafter to {deployment.drafters[0].cpus or 'none'}"
    return where


def inflated_of(deployment: Deployment) -> dict[str, Any]:
    models = {"target": deployment.verifier.target, "draft": deployment.drafters[0].draft}
    return {kind: origin for kind, path in models.items() if (origin := inflated(path)) is not None}


def results_of(
    deployment: Deployment, job: Job, store: Store[Run], found: Observations, command: str, load: str, complete: bool
) -> Results:
    """The document, of what there is so far."""
    where = machine_of(deployment, load)
    if found.device and found.device != found.models.get("device"):
        where["accelerator"] = found.device
    return Results(
        command=command,
        settings=store.settings,
        complete=complete,
        repeats=job.repeats,
        methods=tuple(row.name for row in job.rows),
        missing=found.missing,
        machine=where,
        versions=versions(),
        models=found.models,
        inflated=inflated_of(deployment),
        sweep_gamma=found.sweep_gamma,
        lengths=found.lengths,
        runs=tuple(store.runs),
    )
