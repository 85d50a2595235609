"""Has the target write answers: many streams in one flat batch, each token with the target's likeliest alternatives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from actors.models import Outcome, TargetModel, Window
from protocols.errors import PoolFull
from protocols.messages import Sampling

# Alternatives that are kept of each token. They have 0.91 of the bundled target's probability mass on greedy text, 0.85
# on text at temperature 1.
TOP = 64
STREAMS = 64  # answers that are written at once: rows of one forward
LONGEST = 256  # tokens of an answer
SHORTEST = 8  # tokens of an answer that must fit behind a prompt, or the prompt is left out
GREEDY = 0.0
TEMPERATURES = (1.0, 0.6)  # of the sampled answers, in turn


@dataclass(frozen=True, slots=True)
class TrainingPrompt:
    tokens: tuple[int, ...]
    task: str = ""


@dataclass(frozen=True, slots=True)
class Job:
    """An answer to be written."""

    prompt: int  # index
    temperature: float
    seed: int


@dataclass(frozen=True, slots=True)
class TargetAnswer:
    """An answer, with the target's likeliest tokens at each position."""

    job: Job
    tokens: NDArray[np.int32]  # (n,)
    ids: NDArray[np.int32]  # (n, TOP), best first
    logprobs: NDArray[np.float16]  # (n, TOP), natural logarithms under the target's raw logits


def jobs(prompts: int) -> Iterator[Job]:
    """Jobs without end, the same in each call: to each prompt a greedy answer and a sampled one, so that there are both
    however early the time is over; then further sampled ones."""
    seed = 1
    while prompts:
        for index in range(prompts):
            if seed == 1:
                yield Job(index, GREEDY, 0)
            yield Job(index, TEMPERATURES[(index + seed - 1) % len(TEMPERATURES)], seed)
        seed += 1


@dataclass(slots=True)
class _Stream:
    job: Job
    room: int
    tokens: list[int] = field(default_factory=list)
    ids: list[Sequence[int]] = field(default_factory=list)
    logprobs: list[Sequence[float]] = field(default_factory=list)

    def take(self, outcome: Outcome, ends: frozenset[int]) -> bool:
        """Append what the target has committed. Returns whether the answer is complete."""
        self.tokens += outcome.tokens
        for entry in outcome.logprobs:
            self.ids.append(entry.top_ids)
            self.logprobs.append(entry.top_logprobs)
        return len(self.tokens) >= self.room or self.tokens[-1] in ends

    def answer(self) -> TargetAnswer:
        return TargetAnswer(
            self.job,
            np.array(self.tokens, dtype=np.int32),
            np.array(self.ids, dtype=np.int32),
            np.array(self.logprobs, dtype=np.float16),
        )


def write_answers(
    target: TargetModel,
    prompts: Sequence[TrainingPrompt],
    wanted: Iterator[Job],
    keep: Callable[[TargetAnswer], None],
    go_on: Callable[[], bool],
    longest: int = LONGEST,
) -> None:
    """Write the ``wanted`` answers, of at most ``longest`` tokens each, and pass each to ``keep`` when it is complete.
    ``go_on`` is asked after each token of all; once it returns False, the unfinished ones are kept as they are."""
    streams: dict[int, _Stream] = {}
    waiting: Job | None = None

    def end(handle: int) -> None:
        keep(streams.pop(handle).answer())
        target.close(handle)

    while True:
        while len(streams) < STREAMS:
            waiting = waiting or next(wanted, None)
            if waiting is None:
                break
            prompt = prompts[waiting.prompt].tokens
            room = min(longest, target.info.max_context - len(prompt))
            if prompt and room >= SHORTEST:
                sampling = Sampling(max_tokens=room, temperature=waiting.temperature, seed=waiting.seed, logprobs=TOP)
                try:
                    handle = target.open(prompt, sampling, (), 1)
                except PoolFull:
                    break
                streams[handle] = _Stream(waiting, room)
                while (outcome := target.prefill(handle)) is None:
                    pass
                if streams[handle].take(outcome, target.info.eos_token_ids):
                    end(handle)
            waiting = None
        if not streams:
            return
        handles = list(streams)
        for handle, outcome in zip(handles, target.verify([Window(handle) for handle in handles]), strict=True):
            if streams[handle].take(outcome, target.info.eos_token_ids):
                end(handle)
        if not go_on():
            break
    for handle in list(streams):
        end(handle)
