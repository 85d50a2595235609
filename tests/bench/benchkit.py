"""Made-up runs and answers for the tests of the benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from duoactor.bench.answers import TimedAnswer
from duoactor.bench.methods import Row
from duoactor.bench.results import BenchSettings, Results, Run
from protocols.errors import RequestError
from protocols.messages import ChatTurn, RequestStats, Sampling

TASKS = ("qa", "code")
SPEED = {"vanilla": 1.0, "sps": 1.5, "duodecoding": 2.0, "transformers": 0.5}

SETTINGS = BenchSettings(
    suite="builtin", suite_digest="x", prompts=4, tasks=TASKS, max_tokens=8, temperature=0.0, seed=0
)


def run(
    method: str,
    prompt: str = "qa-1",
    *,
    task: str = "qa",
    repeat: int = 0,
    tokens: int = 11,
    ms: float = 0.0,
    **more: Any,
) -> Run:
    """``ms`` of decoding; by default vanilla's 100 ms over the method's speed."""
    decode = ms or 100.0 / SPEED.get(method, 1.0)
    values: dict[str, Any] = {
        "turn": 0, "ttft_ms": 10.0, "total_ms": 10.0 + decode, "digest": "same", "tokens": tokens,
    }  # fmt: skip
    return Run(method=method, prompt=prompt, task=task, repeat=repeat, **(values | more))


def stats(**more: Any) -> RequestStats:
    values: dict[str, Any] = {
        "rounds": 10, "draft_tokens": 40, "accepted_tokens": 20, "gamma": 4.0, "forward_ms": 80.0, "wait_ms": 10.0,
        "overhead_ms": 5.0, "decode_ms": 100.0, "sequences_histogram": (0, 6, 2, 2),
    }  # fmt: skip
    return RequestStats(**(values | more))


def results(repeats: int = 2, **more: Any) -> Results:
    """Two prompts of two tasks with every method of ``SPEED``."""
    runs = [
        run(
            method,
            f"{task}-{number}",
            task=task,
            repeat=repeat,
            stats=None if method == "transformers" else stats(),
        )
        for repeat in range(repeats)
        for task in TASKS
        for number in (1, 2)
        for method in SPEED
    ]
    values: dict[str, Any] = {
        "settings": SETTINGS,
        "command": "duoactor bench",
        "repeats": repeats,
        "methods": ("vanilla", "sps", "rest", "duodecoding", "transformers"),
        "models": {"target": "t", "draft": "d"},
        "missing": {"rest": "no datastore"},
        "machine": {"cpu": "made up"},
        "versions": {"duoactor": "0"},
        "runs": tuple(runs),
    }
    return Results(**(values | more))


class FakeAnswers:
    """Says what it was asked; ``wrong`` methods say something else, ``broken`` prompts fail."""

    def __init__(self, wrong: Sequence[str] = (), broken: Sequence[str] = (), stop_after: int = 0) -> None:
        self.wrong, self.broken, self.stop_after = wrong, broken, stop_after
        self.asked: list[tuple[str, tuple[str, ...], Sampling]] = []

    async def answer(self, row: Row, turns: Sequence[ChatTurn], sampling: Sampling) -> TimedAnswer:
        self.asked.append((row.name, tuple(turn.content for turn in turns), sampling))
        if self.stop_after and len(self.asked) > self.stop_after:
            raise KeyboardInterrupt
        if turns[-1].content in self.broken:
            raise RequestError("context_length", "the prompt is too long")
        ids = (1, 2, 9) if row.name in self.wrong else (1, 2, 3)
        return TimedAnswer(f"answer {len(turns)}", ids, 10.0, 30.0, stats(rounds=3))
