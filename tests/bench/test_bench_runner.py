import pytest

from duoactor.bench.benchmark import BenchJob, Benchmark
from duoactor.bench.methods import BY_NAME
from duoactor.bench.suites import Prompt, by_turns
from protocols.messages import Sampling
from tests.bench.benchkit import FakeAnswers

PROMPTS = [
    Prompt("qa-1", "qa", ("q1",)), Prompt("qa-2", "qa", ("q2",)), Prompt("chat-1", "chat", ("hello", "and then?")),
]  # fmt: skip
ROWS = [BY_NAME["vanilla"], BY_NAME["sps"], BY_NAME["tree"]]


def bench(prompts=PROMPTS, rows=ROWS, repeats=1):
    job = BenchJob(prompts, rows, repeats, Sampling(max_tokens=8))
    return Benchmark(None, job, None, "duoactor bench")


async def run(benchmark, answers):
    await benchmark.run({row.name: answers for row in benchmark.job.rows}, lambda text, done, count: None)
    return benchmark.runs


def test_a_prompt_is_run_with_every_method_before_the_next_and_the_order_turns():
    units = [(repeat, prompt.id, row.name) for repeat, prompt, row in bench(repeats=2).job.turns()]
    assert len(units) == len(set(units)) == 18
    for start in range(0, 18, 3):
        assert len({unit[:2] for unit in units[start : start + 3]}) == 1
    assert {unit[2] for unit in units[::3]} == {"vanilla", "sps", "tree"}  # each is first somewhere


def test_tasks_take_turns():
    assert [prompt.id for prompt in by_turns(PROMPTS)] == ["qa-1", "chat-1", "qa-2"]


async def test_a_conversation_goes_on_with_the_methods_own_answers():
    answers = FakeAnswers()
    await run(bench(PROMPTS[2:], ROWS[:1]), answers)
    assert [turns for _, turns, _ in answers.asked[1:]] == [("hello",), ("hello", "answer 1", "and then?")]


async def test_a_conversation_that_was_interrupted_is_not_half_there():
    benchmark = bench(PROMPTS[2:], ROWS[:1])
    with pytest.raises(KeyboardInterrupt):
        await run(benchmark, FakeAnswers(stop_after=2))
    assert benchmark.runs == []


async def test_a_prompt_that_does_not_fit_leaves_its_reason_and_the_rest_goes_on():
    runs = await run(bench(), FakeAnswers(broken=["q1"]))
    assert {r.error for r in runs if r.prompt == "qa-1"} == {"the prompt is too long"}
    assert not any(r.error for r in runs if r.prompt != "qa-1")
