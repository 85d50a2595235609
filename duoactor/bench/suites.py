"""Prompt suites: the built-in one, and Spec-Bench and HumanEval files as they are published."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from protocols.errors import ConfigError

BUILTIN = "builtin"
TASKS = ("chat", "translation", "summarization", "qa", "math_reasoning", "rag", "code")  # of the built-in suite

MT_BENCH = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
SPEC_BENCH = {
    **dict.fromkeys(MT_BENCH, "mt_bench"),
    **{task: task for task in ("translation", "summarization", "qa", "math_reasoning", "rag")},
}


@dataclass(frozen=True, slots=True)
class Prompt:
    """``turns`` are the user's, to be sent one after the other with the answers between them."""

    id: str
    task: str
    turns: tuple[str, ...]
    reference: str = ""


def load_suite(name: str | Path = BUILTIN) -> list[Prompt]:
    """``builtin``, or a JSONL file of one of three kinds, told apart line by line:

    - ours: ``id``, ``task``, ``turns``, optionally ``reference``;
    - Spec-Bench's question.jsonl: ``question_id``, ``category``, ``turns``, optionally ``reference``; the thirteen
      categories become six tasks;
    - HumanEval: ``task_id``, ``prompt``, optionally ``canonical_solution``; the task is ``code``.

    Raises ConfigError naming the file and the line.
    """
    if str(name) == BUILTIN:
        folder = resources.files("duoactor.bench") / "prompts"
        return [
            prompt
            for task in TASKS
            for prompt in _read(f"{task}.jsonl", (folder / f"{task}.jsonl").read_text("utf-8").splitlines())
        ]
    path = Path(name)
    try:
        lines = path.read_text("utf-8").split("\n")  # not splitlines: strings in JSON may hold other line separators
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"cannot read the suite {path}: {reason}") from None
    prompts = list(_read(str(path), lines))
    if not prompts:
        raise ConfigError(f"the suite {path} has no prompts")
    return prompts


def tasks_of(prompts: Iterable[Prompt]) -> list[str]:
    """The tasks of a suite in their order of appearance."""
    return list(dict.fromkeys(prompt.task for prompt in prompts))


def select(prompts: Iterable[Prompt], tasks: Iterable[str] = (), limit: int = 0) -> list[Prompt]:
    """Only these ``tasks`` (none given: all) and at most ``limit`` prompts of each (0: all), in the suite's order.

    Raises ConfigError for a task that the suite does not have.
    """
    prompts = list(prompts)
    known = tasks_of(prompts)
    wanted = list(tasks) or known
    for task in wanted:
        if task not in known:
            raise ConfigError(f"the suite has no task {task!r}; it has {', '.join(known)}")
    taken = dict.fromkeys(known, 0)
    chosen: list[Prompt] = []
    for prompt in prompts:
        if prompt.task in wanted and not (limit and taken[prompt.task] >= limit):
            taken[prompt.task] += 1
            chosen.append(prompt)
    return chosen


def _read(file: str, lines: Iterable[str]) -> Iterator[Prompt]:
    seen: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{file} line {number}"
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise ConfigError(f"{where} is not JSON ({error.msg} at column {error.colno})") from None
        if not isinstance(row, dict):
            raise ConfigError(f"{where} is not a JSON object")
        prompt = _prompt(where, row)
        if prompt.id in seen:
            raise ConfigError(f"{where} has the id {prompt.id!r} of line {seen[prompt.id]} again")
        seen[prompt.id] = number
        yield prompt


def _prompt(where: str, row: dict[str, Any]) -> Prompt:
    if "task_id" in row and "turns" not in row:
        text = row.get("prompt")
        if not isinstance(text, str) or not text.strip():
            raise ConfigError(f"{where} has no prompt")
        return Prompt(str(row["task_id"]), "code", (text,), _reference(where, row.get("canonical_solution")))
    if "category" in row:
        category = row["category"]
        task = SPEC_BENCH.get(category) if isinstance(category, str) else None
        if task is None:
            raise ConfigError(f"{where} has the unknown category {category!r}; known are {', '.join(SPEC_BENCH)}")
        return Prompt(_id(where, row, "question_id"), task, _turns(where, row), _reference(where, row.get("reference")))
    if not isinstance(row.get("task"), str) or not row["task"]:
        raise ConfigError(f"{where} has neither a task, nor a category (Spec-Bench), nor a task_id (HumanEval)")
    return Prompt(_id(where, row, "id"), row["task"], _turns(where, row), _reference(where, row.get("reference")))


def _id(where: str, row: dict[str, Any], key: str) -> str:
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise ConfigError(f"{where} has no {key}")
    return str(value)


def _turns(where: str, row: dict[str, Any]) -> tuple[str, ...]:
    turns = row.get("turns")
    if not isinstance(turns, list) or not turns:
        raise ConfigError(f"{where} has no turns")
    if not all(isinstance(turn, str) and turn.strip() for turn in turns):
        raise ConfigError(f"{where} has a turn that is not text")
    return tuple(turns)


def _reference(where: str, value: Any) -> str:
    """As published a reference is text, a number, a list of such (one per turn, or alternatives) or of lists."""
    if value is None:
        return ""
    if isinstance(value, list):
        return "\n".join(_reference(where, part) for part in value)
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return str(value)
    raise ConfigError(f"{where} has a reference that is neither text nor a number")
