"""A benchmark from start to end: the actors, who answers beside them, every unit, and the document that it leaves."""

from __future__ import annotations

import asyncio
import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic

from duoactor.bench.answers import Answers, Ours
from duoactor.bench.lengths import measure_lengths
from duoactor.bench.methods import BY_NAME, Row
from duoactor.bench.provenance import inflated, load_now, machine, versions
from duoactor.bench.reference import Reference
from duoactor.bench.report import REPORT, verdict, write_all
from duoactor.bench.results import LINES, Document, Lengths, Results, Run, Settings
from duoactor.bench.rounds import Rounds
from duoactor.bench.runner import Bench, Schedule, Show, warm_up
from duoactor.bench.store import R, Store
from duoactor.bench.suites import Prompt
from duoactor.bench.summary import summarize
from duoactor.bench.tables import gamma_sweep, overview
from duoactor.client.async_client import AsyncClient
from duoactor.launch.deployment import Deployment
from duoactor.launch.supervisor import Event, Probe, Supervisor
from duoactor.render import model_name, plain
from protocols.address import parse
from protocols.messages import Chunk, Sampling, StatusReport
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
    """What is to be measured. ``sweep``: table 3, too; ``streams`` and ``arrivals``: under load instead."""

    prompts: Sequence[Prompt]
    rows: Sequence[Row]
    repeats: int
    sampling: Sampling
    sweep: bool = False
    streams: Sequence[int] = ()
    arrivals: Sequence[str] = ()

    def settings(self, deployment: Deployment, suite: str, datastore: str) -> Settings:
        """What makes runs comparable."""
        texts = [[p.id, p.task, list(p.turns)] for p in self.prompts]
        verifier = deployment.verifier
        return Settings(
            target=verifier.target,
            draft=deployment.drafters[0].draft,
            suite=Path(suite).name,
            suite_digest=hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:12],
            prompts=len(self.prompts),
            tasks=tuple(dict.fromkeys(p.task for p in self.prompts)),
            max_tokens=self.sampling.max_tokens,
            temperature=self.sampling.temperature,
            seed=self.sampling.seed,
            device=verifier.device,
            dtype=verifier.dtype,
            datastore=datastore,
        )


class Benchmark(ABC, Generic[R]):
    """A job on the actors of one deployment. ``store`` holds what is finished at any time."""

    lines: ClassVar[str]  # the store's file
    record: ClassVar[type[Any]]  # the store's kind
    records: ClassVar[str]  # where the document has them

    def __init__(self, deployment: Deployment, job: Job, access: Access, store: Store[R], command: str) -> None:
        self.deployment, self.job, self.access, self.store, self.command = deployment, job, access, store, command
        self._machine = {**machine(), "load": load_now()}
        self._models: dict[str, Any] = {}
        self.missing: dict[str, str] = {}  # row -> why it has no figures

    @abstractmethod
    async def measure(self, show: Show) -> None:
        """Whatever the store does not have yet."""

    @abstractmethod
    def results(self, complete: bool) -> Document:
        """The document, of what there is so far."""

    @staticmethod
    @abstractmethod
    def write(results: Any, directory: Path) -> object:
        """The document, pictures and ``report.md``."""

    @staticmethod
    @abstractmethod
    def show(results: Any, directory: Path) -> None:
        """Print the short answers."""

    @staticmethod
    @abstractmethod
    def failed(results: Any) -> bool:
        """Whether something was found that should not be."""

    @asynccontextmanager
    async def rounds(self) -> AsyncIterator[Rounds | None]:
        """What the verifier's telemetry tells of every round, if we may hear it."""
        if self.access.subscribe is None:
            yield None
            return
        async with self.access.subscribe(str(parse(self.deployment.address).telemetry)) as feed:
            rounds = Rounds(feed)
            async with _running(rounds.listen()):
                yield rounds

    @asynccontextmanager
    async def deployed(self) -> AsyncIterator[tuple[AsyncClient, StatusReport]]:
        """The actors are up, and a client of theirs is connected."""
        deployment, access = self.deployment, self.access
        async with Supervisor(deployment.plans, access.probe, report=access.report, address=deployment.address):
            access.started()
            async with access.connect(deployment.address) as client:
                status = await client.status()
                self._models |= {
                    "target": model_name(deployment.verifier.target),
                    "draft": model_name(deployment.drafters[0].draft),
                    "device": status.device,
                    "dtype": status.dtype,
                }
                yield client, status

    async def warm_up(self, answers: Mapping[str, Answers], rows: Sequence[Row], show: Show) -> list[Row]:
        """The rows that can answer."""
        self.missing |= await warm_up(answers, rows, self.job.prompts[0], self.job.sampling, show)
        return [row for row in rows if row.name not in self.missing]

    def facts(self, complete: bool) -> dict[str, Any]:
        """The document's fields that say how figures came about."""
        verifier, drafter = self.deployment.verifier, self.deployment.drafters[0]
        models = {"target": verifier.target, "draft": drafter.draft}
        if verifier.cpus:
            self._machine["pinned"] = f"verifier to {verifier.cpus}, drafter to {drafter.cpus or 'none'}"
        return {
            "command": self.command,
            "settings": self.store.settings,
            "complete": complete,
            "repeats": self.job.repeats,
            "methods": tuple(row.name for row in self.job.rows),
            "missing": self.missing,
            "machine": self._machine,
            "versions": versions(),
            "models": self._models,
            "inflated": {kind: origin for kind, path in models.items() if (origin := inflated(path)) is not None},
        }


class SideBySide(Benchmark[Run]):
    """Every row on every prompt, in turns."""

    lines, record, records = LINES, Run, "runs"
    _sweep_gamma = 0
    _lengths: Lengths | None = None

    async def measure(self, show: Show) -> None:
        async with self.answering(show) as answers:
            await self.run(answers, show)
        show("measuring both models by length of input", 0, 1)
        self._lengths = await measure_lengths(self.deployment)

    @asynccontextmanager
    async def answering(
        self, show: Show, shown: Callable[[Chunk], None] = lambda chunk: None
    ) -> AsyncIterator[dict[str, Answers]]:
        """Who answers each row, as long as the block runs. ``shown``: told every chunk of the verifier's."""
        async with AsyncExitStack() as stack:
            client, status = await stack.enter_async_context(self.deployed())
            ours = Ours(client, await stack.enter_async_context(self.rounds()), shown)
            answers: dict[str, Answers] = {row.name: ours for row in self.job.rows if row.ours}
            if others := [row for row in self.job.rows if not row.ours]:
                show("loading transformers", 0, 1)
                draft = self.deployment.drafters[0].draft if any(row.mode == "assisted" for row in others) else ""
                reference = await stack.enter_async_context(Reference.started(self.deployment.verifier, status, draft))
                if reference.device != status.device:
                    self._machine["accelerator"] = reference.device
                answers |= {row.name: reference for row in others}
            yield answers

    async def run(self, answers: Mapping[str, Answers], show: Show) -> None:
        job = self.job
        bench = Bench(self.store, job.sampling, answers, show)
        await bench.run(Schedule(job.prompts, await self.warm_up(answers, job.rows, show), job.repeats))
        if job.sweep:
            self._sweep_gamma = await bench.run_sweep(job.prompts, job.repeats)

    def results(self, complete: bool) -> Results:
        facts, runs = self.facts(complete), tuple(self.store.runs)
        found = Results(**facts, sweep_gamma=self._sweep_gamma, lengths=self._lengths, runs=runs)
        found.table = [plain(line) for line in summarize(found)]
        return found

    @staticmethod
    def write(results: Results, directory: Path) -> object:
        return write_all(results, directory)

    @staticmethod
    def show(results: Results, directory: Path) -> None:
        for table in (overview(summarize(results)), gamma_sweep(results)):
            if table is not None:
                table.show()
        for sentence in verdict(results):
            print(sentence.replace("**", ""))
        print(f"By task, drafts, time and pictures: {directory / REPORT}", flush=True)

    @staticmethod
    def failed(results: Results) -> bool:
        """A text of ours that is not the target's own."""
        return any(line.different and BY_NAME[line.name].ours for line in summarize(results))


@asynccontextmanager
async def _running(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
