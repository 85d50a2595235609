"""A benchmark from start to end: the actors, every answer in turn, and the document."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from duoactor.bench.answers import Answers, Ours
from duoactor.bench.methods import Row, rotated, row_named
from duoactor.bench.provenance import inflated, load_now, machine, versions
from duoactor.bench.reference import Reference
from duoactor.bench.results import BenchSettings, Results, Run, StreamsRun
from duoactor.bench.streams import run_streams, summarize_streams
from duoactor.bench.suites import Prompt, by_turns
from duoactor.bench.summary import summarize
from duoactor.client.async_client import AsyncClient
from duoactor.launch.deployment import Deployment
from duoactor.launch.supervisor import Supervisor
from duoactor.render import model_name, plain
from protocols.errors import RequestError
from protocols.messages import ChatTurn, Chunk, FailureCode, Sampling, StatusReport

Show = Callable[[str, int, int], None]  # step, steps done, steps in all
# starts the actors of a deployment: they run, with a client of their verifier, until it is left
Running = Callable[[Deployment], AbstractAsyncContextManager[tuple[Supervisor, AsyncClient]]]


@dataclass(frozen=True, slots=True)
class BenchJob:
    """Prompts, methods and repeats of a benchmark. ``streams``: numbers of streams at once."""

    prompts: Sequence[Prompt]
    rows: Sequence[Row]
    repeats: int
    sampling: Sampling
    streams: Sequence[int] = ()
    suite: str = "builtin"
    datastore: str = ""  # origin of its texts

    def settings(self) -> BenchSettings:
        texts = [[p.id, p.task, list(p.turns)] for p in self.prompts]
        return BenchSettings(
            suite=Path(self.suite).name,
            suite_digest=hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:12],
            prompts=len(self.prompts),
            tasks=tuple(dict.fromkeys(p.task for p in self.prompts)),
            max_tokens=self.sampling.max_tokens,
            temperature=self.sampling.temperature,
            seed=self.sampling.seed,
            datastore=self.datastore,
        )

    def turns(self) -> Iterator[tuple[int, Prompt, Row]]:
        """Every method on a prompt before the next prompt; tasks take turns, too."""
        for repeat in range(self.repeats):
            for number, prompt in enumerate(by_turns(self.prompts)):
                for row in rotated(self.rows, number + 5 * repeat):
                    yield repeat, prompt, row

    def crowds(self) -> Iterator[tuple[int, int, Row]]:
        """Every method with one number of streams before the next number."""
        for streams in self.streams:
            for repeat in range(self.repeats):
                for row in rotated(self.rows, repeat):
                    yield streams, repeat, row


class Benchmark:
    """A job on the actors of one deployment; ``results`` are complete up to the last answer at any time."""

    def __init__(self, deployment: Deployment, job: BenchJob, running: Running, command: str) -> None:
        self.deployment, self.job, self.running, self.command = deployment, job, running, command
        self.runs: list[Run] = []
        self.loads: list[StreamsRun] = []
        self._machine = {**machine(), "load": load_now()}
        self._models: dict[str, Any] = {}
        self._missing: dict[str, str] = {}  # row -> why it has no figures

    async def measure(self, show: Show) -> None:
        async with self.answering(show) as answers:
            await self.run(answers, show)

    @asynccontextmanager
    async def answering(
        self, show: Show, shown: Callable[[Chunk], None] = lambda chunk: None
    ) -> AsyncIterator[dict[str, Answers]]:
        """Start the actors and, where a row needs it, transformers. ``shown``: called with every chunk of ours."""
        async with AsyncExitStack() as stack:
            _, client = await stack.enter_async_context(self.running(self.deployment))
            status = await client.status()
            self._note(client.welcome.forward_us, status)
            ours = Ours(client, shown)
            answers: dict[str, Answers] = {row.name: ours for row in self.job.rows if row.ours}
            others = [row for row in self.job.rows if not row.ours]
            if others and not self.job.streams:
                show("loading transformers", 0, 1)
                draft = self.deployment.first_draft if any(row.mode == "assisted" for row in others) else ""
                reference = await stack.enter_async_context(Reference.started(self.deployment.verifier, status, draft))
                if reference.device != status.target.device:
                    self._machine["accelerator"] = reference.device
                answers |= {row.name: reference for row in others}
            yield answers

    def _note(self, forward_us: Sequence[tuple[int, float]], status: StatusReport) -> None:
        """The facts of the models for the document."""
        own = status.inline if not self.deployment.drafters else None  # a head has no drafter
        self._models |= {
            "target": model_name(self.deployment.verifier.target),
            "draft": model_name(own.model_id if own is not None else self.deployment.first_draft),
            "device": status.target.device,
            "dtype": status.target.dtype,
            "forward_us": forward_us,
            "step_us": status.drafters[0].step_us if status.drafters else 0.0,
        }

    async def run(self, answers: Mapping[str, Answers], show: Show, seconds: float = math.inf) -> None:
        """Every turn of the job that its rows can answer; after ``seconds`` no further prompt is begun."""
        await self._warm_up(answers, show)
        if self.job.streams:
            await self._run_streams(answers, show)
            return
        turns = [turn for turn in self.job.turns() if turn[2].name not in self._missing]
        rows, until = len(turns) // max(1, self.job.repeats * len(self.job.prompts)), time.monotonic() + seconds
        for number, (repeat, prompt, row) in enumerate(turns):
            if number and number % rows == 0 and time.monotonic() > until:
                break
            show(f"{prompt.id}, {row.label}, repeat {repeat + 1}", number, len(turns))
            self.runs += await self._converse(answers[row.name], row, prompt, repeat)
        show("", len(turns), len(turns))

    async def _warm_up(self, answers: Mapping[str, Answers], show: Show) -> None:
        """One untimed answer of each row; rows that cannot answer are missing."""
        job = self.job
        for number, row in enumerate(job.rows):
            show(f"warming up: {row.label}", number, len(job.rows))
            if row.name not in answers:
                self._missing[row.name] = "answers one request at a time"
                continue
            try:
                await answers[row.name].answer(row, (ChatTurn("user", job.prompts[0].turns[0]),), job.sampling)
            except RequestError as error:
                if error.code == FailureCode.UNSUPPORTED:
                    self._missing[row.name] = str(error)

    async def _converse(self, answers: Answers, row: Row, prompt: Prompt, repeat: int) -> list[Run]:
        """Every turn of a conversation, with the method's own answers in between."""
        turns: list[ChatTurn] = []
        runs: list[Run] = []
        for number, text in enumerate(prompt.turns):
            turns.append(ChatTurn("user", text))
            run = Run(method=row.name, prompt=prompt.id, task=prompt.task, turn=number, repeat=repeat)
            try:
                answer = await answers.answer(row, turns, self.job.sampling)
            except RequestError as error:  # too long for the context, most likely: the other prompts go on
                return [*runs, replace(run, error=str(error))]
            turns.append(ChatTurn("assistant", answer.text))
            runs.append(
                replace(
                    run,
                    tokens=len(answer.token_ids),
                    ttft_ms=answer.ttft_ms,
                    total_ms=answer.total_ms,
                    digest=answer.digest,
                    stats=answer.stats,
                )
            )
        return runs

    async def _run_streams(self, answers: Mapping[str, Answers], show: Show) -> None:
        units = [unit for unit in self.job.crowds() if unit[2].name not in self._missing]
        for number, (streams, repeat, row) in enumerate(units):
            show(f"{streams} streams, {row.label}, repeat {repeat + 1}", number, len(units))
            ours = answers[row.name]
            assert isinstance(ours, Ours)
            self.loads.append(await run_streams(ours, row, self.job.prompts, self.job.sampling, streams, repeat))
        show("", len(units), len(units))

    def results(self, complete: bool) -> Results:
        """The document, of what was measured so far."""
        verifier = self.deployment.verifier
        models = {"target": verifier.target, "draft": self.deployment.first_draft}
        if verifier.cpus:
            drafters = [drafter.cpus for drafter in self.deployment.drafters]
            self._machine["pinned"] = f"verifier to {verifier.cpus}, drafters to {', '.join(drafters) or 'none'}"
        found = Results(
            command=self.command,
            settings=self.job.settings(),
            complete=complete,
            repeats=self.job.repeats,
            methods=tuple(row.name for row in self.job.rows),
            missing=self._missing,
            machine=self._machine,
            versions=versions(),
            models=self._models,
            inflated={kind: origin for kind, path in models.items() if (origin := inflated(path)) is not None},
            runs=tuple(self.runs),
            loads=tuple(self.loads),
        )
        found.table = [plain(line) for line in (summarize_streams(found) if found.loads else summarize(found))]
        return found


def failed(results: Results) -> bool:
    """Whether a text of ours is not the target's own, or a stream failed."""
    if results.loads:
        return any(line.different or line.failed for line in summarize_streams(results))
    return any(line.different and row_named(line.name).ours for line in summarize(results))
