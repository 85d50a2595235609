"""Answers on disk: files of a few each, written whole or not at all, so that an interrupted run goes on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actors.files import whole_file
from actors.training.answers import Job, TargetAnswer, TrainingPrompt

PER_SHARD = 32  # answers; what an interruption loses at most


class Shards:
    """The answers of one directory: those already there, and new ones. States stay on disk."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._files = sorted(directory.glob("answers-*.npz"))
        self.answers: list[TargetAnswer] = []
        self.seconds = 0.0  # time of writing, by all runs
        for file in self._files:
            found, self.seconds = _read(file)
            self.answers += found
        self._pending: list[TargetAnswer] = []

    @property
    def done(self) -> set[Job]:
        return {answer.job for answer in self.answers}

    @property
    def tokens(self) -> int:
        return sum(len(answer.tokens) for answer in self.answers)

    def add(self, answer: TargetAnswer, seconds: float) -> None:
        """``seconds``: that all runs had spent on answers when this one was complete."""
        self.answers.append(answer)
        self.seconds = seconds
        self._pending.append(answer)
        if len(self._pending) >= PER_SHARD:
            self.flush()

    def flush(self) -> None:
        """Write what is pending."""
        if not self._pending:
            return
        path = self._directory / f"answers-{len(self._files):06d}.npz"
        mine, prompts = self._pending, [answer.job.prompt for answer in self._pending]
        states = [answer.states for answer in mine if answer.states is not None]
        if len(states) == len(mine):
            with whole_file(_states_of(path)) as file:
                np.save(file, np.concatenate(states))
        parts: dict[str, NDArray[Any]] = {
            "prompts": np.concatenate([np.array(prompt.tokens, np.int32) for prompt in prompts]),
            "tasks": np.array([prompt.task for prompt in prompts]),
            "jobs": np.array([[len(a.job.prompt.tokens), a.job.temperature, a.job.seed] for a in mine]),
            "lengths": np.array([len(a.tokens) for a in mine]),
            "tokens": np.concatenate([a.tokens for a in mine]),
            "ids": np.concatenate([a.ids for a in mine]),
            "logprobs": np.concatenate([a.logprobs for a in mine]),
            "seconds": np.array(self.seconds),
        }
        with whole_file(path) as file:
            np.savez(file, **parts)  # type: ignore[arg-type]
        self._files.append(path)
        self.answers[-len(mine) :] = _read(path)[0]
        mine.clear()


def _states_of(path: Path) -> Path:
    return path.with_name(path.name.replace("answers", "states")).with_suffix(".npy")


def _read(path: Path) -> tuple[list[TargetAnswer], float]:
    """The answers, and the seconds that all had taken by then."""
    with np.load(path) as stored:
        parts = [_split(stored[name], stored["lengths"]) for name in ("tokens", "ids", "logprobs")]
        prompts = _split(stored["prompts"], stored["jobs"][:, 0].astype(int))
        seconds = float(stored["seconds"])
        jobs = [
            Job(TrainingPrompt(tuple(prompt.tolist()), str(task)), float(temperature), int(seed))
            for prompt, task, (_, temperature, seed) in zip(prompts, stored["tasks"], stored["jobs"], strict=True)
        ]
    found = [TargetAnswer(*row) for row in zip(jobs, *parts, strict=True)]
    if (file := _states_of(path)).is_file():
        states = _split(np.load(file, mmap_mode="r"), [len(answer.text) - 1 for answer in found])
        found = [replace(answer, states=own) for answer, own in zip(found, states, strict=True)]
    return found, seconds


def _split(whole: NDArray[Any], lengths: Any) -> list[NDArray[Any]]:
    return np.split(whole, np.cumsum(lengths)[:-1])
