"""Runs every method on every prompt, in turns, and keeps each answer's figures as it comes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from duoactor.bench.answers import Answer, Answers
from duoactor.bench.methods import DYNAMIC, Row, rotated, sweep
from duoactor.bench.results import Run
from duoactor.bench.store import Store
from duoactor.bench.suites import Prompt
from protocols.errors import RequestError
from protocols.messages import ChatTurn, Sampling

Show = Callable[[str, int, int], None]  # what is under way, units done, units in all


@dataclass(frozen=True, slots=True)
class Schedule:
    """One unit after the other: a prompt is run with every row before the next prompt comes, a repeat with every
    prompt before the next repeat. Prompts take turns by task, so that what an interruption leaves has every task."""

    prompts: Sequence[Prompt]
    rows: Sequence[Row]
    repeats: int

    @property
    def units(self) -> int:
        return len(self.prompts) * len(self.rows) * self.repeats

    def __iter__(self) -> Iterator[tuple[int, Prompt, Row]]:
        order = by_turns(self.prompts)
        for repeat in range(self.repeats):
            for number, prompt in enumerate(order):
                for row in rotated(self.rows, number + 5 * repeat):
                    yield repeat, prompt, row


def by_turns(prompts: Sequence[Prompt]) -> list[Prompt]:
    """The first prompt of every task, then the second of every task, and so on."""
    seen: dict[str, int] = {}
    ranks: list[tuple[int, Prompt]] = []
    for prompt in prompts:
        seen[prompt.task] = seen.get(prompt.task, 0) + 1
        ranks.append((seen[prompt.task], prompt))
    return [prompt for _, prompt in sorted(ranks, key=lambda one: one[0])]


@dataclass(slots=True)
class Bench:
    """``answers`` by row name: who answers. ``sampling`` is the same for every row; its seed makes ours equal."""

    store: Store[Run]
    sampling: Sampling
    answers: Mapping[str, Answers]
    show: Show = lambda text, done, count: None

    async def run(self, schedule: Schedule) -> None:
        """All units that the store does not have yet."""
        done = self.store.done
        firsts = {prompt.task: prompt.id for prompt in reversed(schedule.prompts)}
        for number, (repeat, prompt, row) in enumerate(schedule):
            if (row.name, prompt.id, repeat) in done:
                continue
            self.show(f"{prompt.id}, {row.label}, repeat {repeat + 1}", number, schedule.units)
            keep = repeat == 0 and firsts[prompt.task] == prompt.id
            self.store.add(await self._converse(row, prompt, repeat, keep))
        self.show("", schedule.units, schedule.units)

    async def run_sweep(self, prompts: Sequence[Prompt], repeats: int) -> int:
        """Table 3; returns the gamma in its middle, 0 when DuoDecoding was not measured."""
        gamma = chosen_gamma(self.store.runs)
        if gamma:
            await self.run(Schedule(prompts, sweep(gamma), repeats))
        return gamma

    async def _ask(self, row: Row, turns: Sequence[ChatTurn]) -> Answer:
        return await self.answers[row.name.partition("@")[0]].answer(row, turns, self.sampling)

    async def _converse(self, row: Row, prompt: Prompt, repeat: int, keep_rounds: bool) -> list[Run]:
        """Every turn, the method's own answers in between."""
        turns: list[ChatTurn] = []
        runs: list[Run] = []
        for number, said in enumerate(prompt.turns):
            turns.append(ChatTurn("user", said))
            common = {"method": row.name, "prompt": prompt.id, "task": prompt.task, "turn": number, "repeat": repeat}
            try:
                answer = await self._ask(row, turns)
            except RequestError as error:  # too long for the context, most likely: the rest of the suite goes on
                runs.append(Run(**common, error=str(error)))  # type: ignore[arg-type]
                break
            turns.append(ChatTurn("assistant", answer.text))
            runs.append(
                Run(
                    **common,  # type: ignore[arg-type]
                    tokens=len(answer.token_ids),
                    ttft_ms=answer.ttft_ms,
                    total_ms=answer.total_ms,
                    digest=answer.digest,
                    cost=answer.cost,
                    rounds=answer.rounds if keep_rounds and number == 0 else (),
                )
            )
        return runs


async def warm_up(
    answers: Mapping[str, Answers], rows: Sequence[Row], prompt: Prompt, sampling: Sampling, show: Show
) -> dict[str, str]:
    """One untimed answer of each row; rows that cannot answer at all, and why."""
    failed: dict[str, str] = {}
    for number, row in enumerate(rows):
        show(f"warming up: {row.label}", number, len(rows))
        try:
            await answers[row.name].answer(row, (ChatTurn("user", prompt.turns[0]),), sampling)
        except RequestError as error:
            if error.code == "unsupported":
                failed[row.name] = str(error)
    return failed


def chosen_gamma(runs: Sequence[Run]) -> int:
    """What the controller chose for DuoDecoding: the mean over its rounds, rounded."""
    costs = [run.cost for run in runs if run.method == DYNAMIC and run.cost is not None]
    rounds = sum(cost.rounds for cost in costs)
    return round(sum(cost.gamma * cost.rounds for cost in costs) / rounds) if rounds else 0
