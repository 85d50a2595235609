"""Prompt suites: the built-in one, and Spec-Bench and HumanEval files as they are published."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import resources
from itertools import zip_longest
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from protocols.errors import ConfigError

BUILTIN = "builtin"
TASKS = ("chat", "translation", "summarization", "qa", "math_reasoning", "rag", "code")  # tasks of the built-in suite

MT_BENCH = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
SPEC_BENCH = {
    **dict.fromkeys(MT_BENCH, "mt_bench"),
    **{task: task for task in ("translation", "summarization", "qa", "math_reasoning", "rag")},
}

_Text = Annotated[str, Meta(pattern=r"\S")]
_Id = Annotated[str, Meta(min_length=1)] | int
_Turns = Annotated[tuple[_Text, ...], Meta(min_length=1)]


class _Own(msgspec.Struct):
    id: _Id
    task: _Text
    turns: _Turns


class _SpecBench(msgspec.Struct):
    question_id: _Id
    category: str
    turns: _Turns


class _HumanEval(msgspec.Struct):
    task_id: _Id
    prompt: _Text


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt of a suite. ``turns``: the user's, sent one after the other with the answers between them."""

    id: str
    task: str
    turns: tuple[str, ...]


def load_suite(name: str | Path = BUILTIN) -> list[Prompt]:
    """``builtin``, or a JSONL file of one of three kinds, recognised line by line:

    - ours: ``id``, ``task``, ``turns``;
    - Spec-Bench's question.jsonl: ``question_id``, ``category``, ``turns``; the thirteen categories become six tasks;
    - HumanEval: ``task_id``, ``prompt``; the task is ``code``.

    What else a line says is of no use here. Raises ConfigError naming the file and the line.
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
    """Prompts of some ``tasks`` (none given: all), at most ``limit`` of each (0: all), in the suite's order.

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
            prompt = _prompt(line)
        except (msgspec.MsgspecError, ConfigError) as error:
            raise ConfigError(f"{where} is no prompt: {error}") from None
        if prompt.id in seen:
            raise ConfigError(f"{where} has the id {prompt.id!r} of line {seen[prompt.id]} again")
        seen[prompt.id] = number
        yield prompt


def _prompt(line: str) -> Prompt:
    keys = msgspec.json.decode(line, type=dict[str, object])
    if "task_id" in keys and "turns" not in keys:
        human_eval = msgspec.json.decode(line, type=_HumanEval)
        return Prompt(str(human_eval.task_id), "code", (human_eval.prompt,))
    if "category" in keys:
        spec_bench = msgspec.json.decode(line, type=_SpecBench)
        if spec_bench.category not in SPEC_BENCH:
            raise ConfigError(f"the category {spec_bench.category!r} is unknown; known are {', '.join(SPEC_BENCH)}")
        return Prompt(str(spec_bench.question_id), SPEC_BENCH[spec_bench.category], spec_bench.turns)
    own = msgspec.json.decode(line, type=_Own)
    return Prompt(str(own.id), own.task, own.turns)


def by_turns(prompts: Iterable[Prompt]) -> list[Prompt]:
    """The first prompt of every task, then the second of every task, and so on."""
    by_task: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        by_task.setdefault(prompt.task, []).append(prompt)
    return [prompt for turn in zip_longest(*by_task.values()) for prompt in turn if prompt is not None]
