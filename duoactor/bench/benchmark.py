"""One benchmark from start to end: the actors, the reference beside them, every unit, and each model's cost alone."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from duoactor.bench.answers import Answers, Ours, Theirs
from duoactor.bench.lengths import measure_lengths
from duoactor.bench.methods import Row
from duoactor.bench.provenance import inflated, machine, versions
from duoactor.bench.reference import Reference
from duoactor.bench.results import Lengths, Results, Settings, Store
from duoactor.bench.rounds import Rounds
from duoactor.bench.runner import Bench, Schedule, Show
from duoactor.bench.suites import Prompt
from duoactor.client.async_client import AsyncClient
from duoactor.launch.deployment import Deployment
from duoactor.launch.supervisor import Event, Probe, Supervisor
from duoactor.render import model_name
from protocols.address import parse
from protocols.messages import Sampling
from protocols.transport import Feed


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach the actors; tests put their own in place."""

    probe: Probe
    connect: Callable[[str], AbstractAsyncContextManager[AsyncClient]]
    subscribe: Callable[[str], AbstractAsyncContextManager[Feed]] | None
    report: Callable[[Event], None] = lambda event: None
    started: Callable[[], None] = lambda: None


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


async def measure(
    deployment: Deployment, job: Job, store: Store, found: Observations, access: Access, show: Show
) -> None:
    """Measure everything; ``found`` and ``store`` hold what is finished at any time."""
    rows = list(job.rows)
    address = deployment.address
    async with AsyncExitStack() as stack:
        supervisor = Supervisor(deployment.plans, access.probe, report=access.report, address=address)
        await stack.enter_async_context(supervisor)
        access.started()
        client = await stack.enter_async_context(access.connect(address))
        status = await client.status()
        found.models |= {
            "target": model_name(deployment.verifier.target),
            "draft": model_name(deployment.drafters[0].draft),
            "device": status.device,
            "dtype": status.dtype,
        }
        rounds = None
        if access.subscribe is not None:
            feed = await stack.enter_async_context(access.subscribe(str(parse(address).telemetry)))
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
        found.missing |= await bench.warm_up(rows, job.prompts[0])
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


def settings_of(deployment: Deployment, job: Job, suite: str, datastore: str) -> Settings:
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


def results_of(
    deployment: Deployment, job: Job, store: Store, found: Observations, command: str, load: str, complete: bool
) -> Results:
    """The document, of what there is so far."""
    models = {"target": deployment.verifier.target, "draft": deployment.drafters[0].draft}
    origins = {kind: inflated(path) for kind, path in models.items()}
    where = {**machine(), "load": load}
    if found.device and found.device != found.models.get("device"):
        where["accelerator"] = found.device
    if deployment.verifier.cpus:
        where["pinned"] = f"verifier to {deployment.verifier.cpus}, drafter to {deployment.drafters[0].cpus or 'none'}"
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
        inflated={kind: origin for kind, origin in origins.items() if origin is not None},
        sweep_gamma=found.sweep_gamma,
        lengths=found.lengths,
        runs=tuple(store.runs),
    )
