"""Many streams at once: how requests follow each other, and the figures that come of them."""

import asyncio

import pytest

from duoactor.bench.answers import TimedAnswer
from duoactor.bench.methods import BY_NAME
from duoactor.bench.report import markdown, verdict
from duoactor.bench.results import StreamsRun
from duoactor.bench.streams import StreamRequest, choose_streams, run_streams, summarize_streams, throughput
from duoactor.bench.suites import Prompt
from protocols.errors import ConfigError, RequestError
from protocols.messages import ChatTurn, FailureCode, Sampling
from tests.bench.benchkit import results

PROMPTS = [Prompt(str(n), "qa", (f"q{n}",)) for n in range(4)]


class FakeOurs:
    """Two chunks for each request; ``broken`` prompts fail. Counts how many streams are open at once."""

    def __init__(self, broken=""):
        self.broken, self.open, self.most, self.asked = broken, 0, 0, []

    async def answer(self, row, turns: tuple[ChatTurn, ...], sampling):
        self.asked.append(turns[0].content)
        self.open += 1
        self.most = max(self.most, self.open)
        try:
            await asyncio.sleep(0)
            if turns[0].content == self.broken:
                raise RequestError(FailureCode.CONTEXT_LENGTH, "too long")
            return TimedAnswer("abab", (1, 2, 1, 2), 10.0, 20.0, None, ((10.0, 2), (20.0, 2)))
        finally:
            self.open -= 1


def test_numbers_of_streams_are_sorted_and_bad_ones_refused():
    assert choose_streams("4, 1,4") == [1, 4]
    for wrong in ("", "0", "1025", "two"):
        with pytest.raises(ConfigError, match="--streams takes numbers from 1 to 1024 by commas"):
            choose_streams(wrong)


async def test_so_many_streams_are_at_work_and_every_prompt_is_asked():
    ours = FakeOurs(broken="q3")
    made = await run_streams(ours, BY_NAME["auto"], PROMPTS, Sampling(), streams=2, repeat=0)
    assert ours.most == 2 and sorted(ours.asked) == ["q0", "q0", "q1", "q1", "q2", "q3"]
    assert made.failed == 1 and set(made.digests) == {"0", "1", "2"}
    assert len(made.first_ms) == len(made.pauses_ms) == 5 and made.tokens_per_second > 0


def answered(first: float, last: float) -> TimedAnswer:
    return TimedAnswer("", (), first, last, None, ((first, 1), (last, 9)))


def test_throughput_ends_when_the_first_stream_finds_no_request_left():
    answers = [
        StreamRequest("a", 0.0, answered(100.0, 200.0)),
        StreamRequest("b", 0.0, answered(100.0, 1000.0)),
        StreamRequest("c", 200.0, answered(100.0, 200.0)),
    ]
    assert throughput(answers) == pytest.approx(1000 * (10 + 1 + 10) / 400)
    assert throughput([]) == 0.0


def load(method, rate, repeat=0, digest="same", **more):
    return StreamsRun(
        method=method, streams=4, repeat=repeat, tokens_per_second=rate, first_ms=(10.0, 20.0), pauses_ms=(5.0, 5.0),
        digests={"0": digest}, **more,
    )  # fmt: skip


def test_speed_ups_are_of_the_same_repeat_and_texts_are_compared():
    runs = (load("vanilla", 100.0), load("auto", 150.0), load("vanilla", 200.0, 1), load("auto", 250.0, 1, "other"))
    found = results(loads=runs, runs=(), methods=("vanilla", "auto"))
    plain, auto = summarize_streams(found)
    assert (plain.speedup, auto.low, auto.high) == (1.0, 1.25, 1.5) and auto.tokens_per_second == 200.0
    assert auto.first_ms[0] == 15.0 and (auto.compared, auto.different) == (2, 1)
    assert verdict(found) == ["**Texts that differ from vanilla's**: auto (ours) (1 of 2)."]
    assert "| 4 | auto (ours) (1 of 2 texts DIFFER) | 200 | 1.38x | 1.25-1.50 |" in markdown(found)


def test_what_is_slower_than_vanilla_is_said():
    found = results(loads=(load("vanilla", 100.0), load("auto", 90.0)), runs=(), methods=("vanilla", "auto"))
    assert verdict(found)[0] == "Slower than vanilla: auto (ours) with 4 (0.90)."
