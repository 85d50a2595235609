"""Answers on disk: files of a few each, written whole or not at all, so that an interrupted run goes on."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from actors.training.answers import Job, TargetAnswer

PER_SHARD = 32  # answers; what an interruption loses at most


class Shards:
    """The answers of one directory: those already there, and new ones."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._files = sorted(directory.glob("answers-*.npz"))
        self.answers: list[TargetAnswer] = [answer for file in self._files for answer in _read(file)]
        self.seconds = _seconds(self._files[-1]) if self._files else 0.0  # of writing, by all runs
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
        half = path.with_suffix(".part")
        with half.open("wb") as file:
            np.savez(
                file,
                jobs=np.array([[a.job.prompt, a.job.temperature, a.job.seed] for a in self._pending]),
                lengths=np.array([len(a.tokens) for a in self._pending]),
                tokens=np.concatenate([a.tokens for a in self._pending]),
                ids=np.concatenate([a.ids for a in self._pending]),
                logprobs=np.concatenate([a.logprobs for a in self._pending]),
                seconds=self.seconds,
            )
        half.replace(path)
        self._files.append(path)
        self._pending.clear()


def _read(path: Path) -> list[TargetAnswer]:
    with np.load(path) as stored:
        cuts = np.cumsum(stored["lengths"])[:-1]
        parts = [np.split(stored[name], cuts) for name in ("tokens", "ids", "logprobs")]
        found = [Job(int(prompt), float(temperature), int(seed)) for prompt, temperature, seed in stored["jobs"]]
    return [TargetAnswer(*row) for row in zip(found, *parts, strict=True)]


def _seconds(path: Path) -> float:
    with np.load(path) as stored:
        return float(stored["seconds"])
