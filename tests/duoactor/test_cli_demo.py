"""What the demo measures, against a client whose streams are made up."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from duoactor import demo
from protocols.messages import RequestStats, Sampling


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


@dataclass
class Piece:
    text: str
    token_ids: tuple[int, ...]
    stats: RequestStats | None = None


@dataclass
class FakeStreams:
    asked: list[tuple[str, str]] = field(default_factory=list)

    async def stream(self, prompt: str = "", *, messages: Any, sampling: Sampling, method: str) -> AsyncIterator[Piece]:
        self.asked.append((messages[0].content, method))
        yield Piece("a", (1,))
        yield Piece("b", (2,), RequestStats(method=method))


async def test_methods_take_turns_and_each_is_first_every_other_time():
    client = FakeStreams()
    fast, plain = await demo.measure(client, ["p", "q"], Sampling(), "sps", 2, lambda text: None)  # type: ignore[arg-type]
    assert client.asked[0] == ("p", "vanilla")  # the warm-up is not counted
    assert client.asked[1:] == [
        ("p", "sps"), ("p", "vanilla"), ("q", "vanilla"), ("q", "sps"),
        ("p", "vanilla"), ("p", "sps"), ("q", "sps"), ("q", "vanilla"),
    ]  # fmt: skip
    assert [run.prompt for run in fast] == [run.prompt for run in plain] == [0, 1, 0, 1]
    assert fast[0].text == "ab" and fast[0].token_ids == (1, 2) and fast[0].seconds > 0


def test_the_machine_is_described_without_its_name():
    assert set(demo.machine()) == {"system", "architecture", "cpu", "cpus", "python"}
