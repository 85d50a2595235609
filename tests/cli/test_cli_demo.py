"""What the demo measures, against a client whose streams are made up."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from duoactor.bench import demo
from duoactor.bench.provenance import machine
from protocols.errors import RequestError
from protocols.messages import Chunk, FailureCode, FinishReason, RequestStats, Sampling


def ran(prompt: int, seconds: float, tokens: tuple[int, ...] = (1, 2, 3, 4), **stats: Any) -> demo.Run:
    return demo.Run(prompt, "text", tokens, seconds, 5.0, RequestStats(method="m", **stats))


def test_the_speed_up_is_the_ratio_of_median_times():
    fast = [ran(0, 1.0), ran(0, 9.0), ran(0, 1.0), ran(1, 2.0), ran(1, 2.0), ran(1, 2.0)]
    plain = [ran(0, 2.0), ran(0, 2.0), ran(0, 2.0), ran(1, 6.0), ran(1, 6.0), ran(1, 90.0)]
    found = demo.figures(fast, plain)
    assert found.tokens_per_second == pytest.approx(8 / 3)
    assert found.vanilla_tokens_per_second == pytest.approx(1.0)
    assert found.speedup == pytest.approx(8 / 3)
    assert found.speedup_median == pytest.approx(2.5)
    assert found.identical


def test_figures_per_round_are_weighted_by_rounds():
    fast = [
        ran(0, 1.0, rounds=10, accepted_tokens=20, gamma=4.0, overhead_ms=5.0, sequences_histogram=(0, 6, 2)),
        ran(1, 1.0, rounds=30, accepted_tokens=20, gamma=8.0, overhead_ms=5.0, sequences_histogram=(0, 0, 2)),
    ]
    found = demo.figures(fast, [ran(0, 1.0), ran(1, 1.0)])
    assert found.mean_acceptance_length == 2.0
    assert found.gamma == 7.0
    assert found.overhead_ms_per_round == 0.25
    assert found.sequences == pytest.approx(14 / 10)


@pytest.mark.parametrize("where", ["fast", "plain", "shown"])
def test_one_different_token_anywhere_is_seen(where: str):
    runs = {"fast": [ran(0, 1.0)] * 2, "plain": [ran(0, 1.0)] * 2, "shown": [ran(0, 1.0)]}
    runs[where] = [*runs[where][:-1], ran(0, 1.0, (1, 2, 3, 5))]
    assert not demo.figures(**runs).identical


async def test_contenders_take_turns_at_being_first():
    asked: list[tuple[int, str]] = []

    def contender(name: str) -> demo.Contender:
        async def run(number: int, prompt: str) -> demo.Run:
            asked.append((number, name))
            return ran(number, 1.0)

        return run

    runs = await demo.measure([contender(name) for name in "abc"], ["p", "q"], 2, lambda text: None)
    assert asked[:3] == [(0, "a"), (0, "b"), (0, "c")]  # the warm-up is not counted
    turns = ["".join(name for _, name in asked[at : at + 3]) for at in range(3, 15, 3)]
    assert turns == ["abc", "bca", "bca", "cab"]
    assert [[run.prompt for run in each] for each in runs] == [[0, 1, 0, 1]] * 3


class OneStream:
    async def stream(self, *, messages: Any, sampling: Sampling, method: str, cache_salt: str) -> AsyncIterator[Chunk]:
        yield Chunk("r", 0, (1,), ("a",), (False,))
        yield Chunk("r", 1, (2,), ("b",), (True,), FinishReason.LENGTH, stats=RequestStats(method=method))


async def test_one_stream_is_timed_and_gathered():
    run = await demo.ask(OneStream(), 3, "p", Sampling(), "sps")  # type: ignore[arg-type]
    assert (run.prompt, run.text, run.token_ids, run.stats.method) == (3, "ab", (1, 2), "sps")
    assert 0 < run.ttft_ms / 1000 <= run.seconds


class BaseModel(OneStream):
    def __init__(self) -> None:
        self.asked: list[str] = []

    async def stream(self, prompt: str = "", *, messages: Any = (), **options: Any) -> AsyncIterator[Chunk]:
        if messages:
            raise RequestError(FailureCode.UNSUPPORTED, "no chat template")
        self.asked.append(prompt)
        async for chunk in super().stream(messages=(), **options):
            yield chunk


async def test_a_target_without_a_chat_template_gets_the_bare_prompt():
    client = BaseModel()
    run = await demo.ask(client, 0, "Once", Sampling(), "sps")  # type: ignore[arg-type]
    assert client.asked == ["Once"] and run.text == "ab"


def test_the_machine_is_described_without_its_name():
    assert set(machine()) == {"system", "architecture", "cpu", "cpus", "python"}
