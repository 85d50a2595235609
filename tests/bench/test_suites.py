import json

import pytest

from duoactor.bench.suites import TASKS, Prompt, load_suite, select, tasks_of
from protocols.errors import ConfigError


def written(tmp_path, *rows, name="suite.jsonl"):
    path = tmp_path / name
    lines = [row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows]
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


def test_the_builtin_suite_has_at_least_twenty_prompts_for_each_of_seven_tasks():
    prompts = load_suite("builtin")
    assert tuple(tasks_of(prompts)) == TASKS
    for task in TASKS:
        assert sum(prompt.task == task for prompt in prompts) >= 20
    assert len({prompt.id for prompt in prompts}) == len(prompts)
    assert len({prompt.turns for prompt in prompts}) == len(prompts)


def test_builtin_conversations_have_two_turns_and_all_others_one():
    for prompt in load_suite():
        assert len(prompt.turns) == (2 if prompt.task == "chat" else 1)


def test_builtin_prompts_leave_room_in_a_context_of_two_thousand_tokens():
    assert all(len(turn) < 2000 for prompt in load_suite() for turn in prompt.turns)


def test_spec_benchs_thirteen_categories_become_six_tasks(tmp_path):
    categories = ["writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"]
    categories += ["translation", "summarization", "qa", "math_reasoning", "rag"]
    rows = [{"question_id": 81 + n, "category": c, "turns": ["a", "b"]} for n, c in enumerate(categories)]
    prompts = load_suite(written(tmp_path, *rows))
    assert [p.task for p in prompts] == ["mt_bench"] * 8 + categories[8:]
    assert len(tasks_of(prompts)) == 6
    assert prompts[0] == Prompt("81", "mt_bench", ("a", "b"))


def test_humaneval_is_read_as_published(tmp_path):
    row = {
        "task_id": "HumanEval/0",
        "prompt": "def f():\n",
        "entry_point": "f",
        "canonical_solution": "    return 1\n",
        "test": "assert True",
    }
    assert load_suite(written(tmp_path, row)) == [Prompt("HumanEval/0", "code", ("def f():\n",))]


def test_a_suite_of_ones_own_is_read_and_blank_lines_do_not_count(tmp_path):
    rows = [{"id": "a", "task": "mine", "turns": ["hello"]}, "", {"id": 2, "task": "b", "turns": ["x"]}]
    path = written(tmp_path, *rows)
    assert load_suite(path) == [Prompt("a", "mine", ("hello",)), Prompt("2", "b", ("x",))]


def test_a_line_separator_inside_a_string_does_not_end_the_line(tmp_path):
    prompts = load_suite(written(tmp_path, {"id": "a", "task": "t", "turns": ["one\u2028two\x85three"]}))
    assert prompts[0].turns == ("one\u2028two\x85three",)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{not json", "is no prompt: JSON is malformed"),
        ("[1, 2]", "Expected `object`, got `array`"),
        ('{"id": "b", "task": "t"}', "missing required field `turns`"),
        ('{"id": "b", "task": "t", "turns": []}', "at `$.turns`"),
        ('{"id": "b", "task": "t", "turns": "text"}', "at `$.turns`"),
        ('{"id": "b", "task": "t", "turns": ["a", 5]}', "at `$.turns[1]`"),
        ('{"id": "b", "task": "t", "turns": [" "]}', "at `$.turns[0]`"),
        ('{"task": "t", "turns": ["a"]}', "missing required field `id`"),
        ('{"id": true, "task": "t", "turns": ["a"]}', "at `$.id`"),
        ('{"id": "b", "turns": ["a"]}', "missing required field `task`"),
        ('{"question_id": 3, "category": "cooking", "turns": ["a"]}', "the category 'cooking' is unknown"),
        ('{"question_id": 3, "category": ["qa"], "turns": ["a"]}', "at `$.category`"),
        ('{"category": "qa", "turns": ["a"]}', "missing required field `question_id`"),
        ('{"task_id": "HumanEval/1"}', "missing required field `prompt`"),
        ('{"id": "a", "task": "t", "turns": ["a"]}', "has the id 'a' of line 1 again"),
    ],
)
def test_a_bad_line_is_one_sentence_that_names_file_and_line(tmp_path, line, complaint):
    path = written(tmp_path, {"id": "a", "task": "t", "turns": ["a"]}, "", line)
    with pytest.raises(ConfigError) as caught:
        load_suite(path)
    assert str(caught.value).startswith(f"{path} line 3 ")
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_an_empty_and_a_binary_file_are_sentences(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read the suite .*nowhere"):
        load_suite(tmp_path / "nowhere.jsonl")
    with pytest.raises(ConfigError, match="has no prompts"):
        load_suite(written(tmp_path, ""))
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_suite(tmp_path / "binary")


def test_tasks_and_limit_choose_the_first_prompts_of_each_task():
    prompts = load_suite()
    chosen = select(prompts, ["code", "qa"], limit=2)
    assert [p.id for p in chosen] == ["qa-01", "qa-02", "code-01", "code-02"]
    assert select(prompts) == prompts


def test_an_unknown_task_names_those_there_are():
    with pytest.raises(ConfigError, match=r"no task 'cooking'; it has chat, translation"):
        select(load_suite(), ["cooking"])
