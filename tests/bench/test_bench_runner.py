import json

import pytest
from benchkit import SETTINGS, FakeAnswers, cost, run

from duoactor.bench.methods import BY_NAME
from duoactor.bench.results import Run
from duoactor.bench.runner import Bench, Schedule, by_turns, chosen_gamma
from duoactor.bench.store import Store
from duoactor.bench.suites import Prompt
from protocols.errors import ConfigError
from protocols.messages import Sampling

PROMPTS = [
    Prompt("qa-1", "qa", ("q1",)), Prompt("qa-2", "qa", ("q2",)), Prompt("chat-1", "chat", ("hello", "and then?")),
]  # fmt: skip
ROWS = [BY_NAME["vanilla"], BY_NAME["sps"], BY_NAME["tree"]]


def bench(store, answers):
    return Bench(store, Sampling(max_tokens=8), {row.name: answers for row in ROWS} | {"duodecoding": answers})


def store(directory, **options):
    return Store(directory / "results.jsonl", SETTINGS, Run, **options)


def test_a_prompt_is_run_with_every_method_before_the_next_and_the_order_turns():
    units = [(repeat, prompt.id, row.name) for repeat, prompt, row in Schedule(PROMPTS, ROWS, 2)]
    assert len(units) == len(set(units)) == Schedule(PROMPTS, ROWS, 2).units == 18
    for start in range(0, 18, 3):
        assert len({unit[:2] for unit in units[start : start + 3]}) == 1
    assert {unit[2] for unit in units[::3]} == {"vanilla", "sps", "tree"}  # each is first somewhere


def test_tasks_take_turns():
    assert [prompt.id for prompt in by_turns(PROMPTS)] == ["qa-1", "chat-1", "qa-2"]


async def test_a_conversation_goes_on_with_the_methods_own_answers(tmp_path):
    answers = FakeAnswers()
    await bench(store(tmp_path), answers).run(Schedule(PROMPTS[2:], ROWS[:1], 1))
    assert [turns for _, turns, _ in answers.asked] == [("hello",), ("hello", "answer 1", "and then?")]


async def test_rounds_are_kept_for_the_first_prompt_of_a_task_only(tmp_path):
    kept = store(tmp_path)
    await bench(kept, FakeAnswers()).run(Schedule(PROMPTS, ROWS, 2))
    assert {(r.prompt, r.turn, r.repeat) for r in kept.runs if r.rounds} == {("qa-1", 0, 0), ("chat-1", 0, 0)}


async def test_an_interrupted_run_resumes_with_what_is_missing_and_nothing_else(tmp_path):
    first, answers = store(tmp_path), FakeAnswers(stop_after=5)
    with pytest.raises(KeyboardInterrupt):
        await bench(first, answers).run(Schedule(PROMPTS, ROWS, 1))
    first.close()
    again, rest = store(tmp_path, resume=True), FakeAnswers()
    done = again.done
    assert 0 < len(done) < 9
    await bench(again, rest).run(Schedule(PROMPTS, ROWS, 1))
    assert len(again.done) == 9
    expected = sum(len(p.turns) for _, p, row in Schedule(PROMPTS, ROWS, 1) if (row.name, p.id, 0) not in done)
    assert len(rest.asked) == expected


async def test_a_conversation_that_was_interrupted_is_not_half_there(tmp_path):
    kept = store(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        await bench(kept, FakeAnswers(stop_after=1)).run(Schedule(PROMPTS[2:], ROWS, 1))
    assert kept.runs == []


async def test_a_line_that_a_crash_cut_off_is_run_again(tmp_path):
    kept = store(tmp_path)
    await bench(kept, FakeAnswers()).run(Schedule(PROMPTS, ROWS, 1))
    kept.close()
    path = tmp_path / "results.jsonl"
    path.write_bytes(path.read_bytes()[:-40])
    assert len(store(tmp_path, resume=True).done) == 8


def test_results_are_not_written_over(tmp_path):
    store(tmp_path).close()
    with pytest.raises(ConfigError, match="holds results already: add --resume to go on, or choose another --out"):
        store(tmp_path)


def test_resuming_with_other_settings_names_the_first_that_differs(tmp_path):
    store(tmp_path).close()
    path = tmp_path / "results.jsonl"
    header = json.loads(path.read_text())
    header["settings"]["max_tokens"] = 99
    path.write_text(json.dumps(header) + "\n")
    with pytest.raises(ConfigError, match="was measured with max_tokens 99, not 8"):
        store(tmp_path, resume=True)


def test_a_line_that_is_no_run_is_named(tmp_path):
    kept = store(tmp_path)
    kept.add([run("sps")])
    kept.close()
    path = tmp_path / "results.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], "nonsense", lines[1]]) + "\n")
    with pytest.raises(ConfigError, match="line 2 does not hold runs"):
        store(tmp_path, resume=True)


async def test_a_prompt_that_does_not_fit_leaves_its_reason_and_the_rest_goes_on(tmp_path):
    kept = store(tmp_path)
    await bench(kept, FakeAnswers(broken=["q1"])).run(Schedule(PROMPTS, ROWS, 1))
    assert {r.error for r in kept.runs if r.prompt == "qa-1"} == {"the prompt is too long"}
    assert not any(r.error for r in kept.runs if r.prompt != "qa-1")


async def test_the_sweep_is_around_what_the_controller_chose(tmp_path):
    kept = store(tmp_path)
    kept.add([run("duodecoding", cost=cost(gamma=6.0)), run("duodecoding", "qa-2", cost=cost(gamma=8.0))])
    assert chosen_gamma(kept.runs) == 7
    answers = FakeAnswers()
    assert await bench(kept, answers).run_sweep(PROMPTS[:1], 1) == 7
    assert sorted(name for name, *_ in answers.asked) == [f"duodecoding@{g}" for g in (5, 6, 7, 8, 9)]
