"""Has the target write answers: many streams in one flat batch, each token with the target's likeliest alternatives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from actors.engines.targets.states import States
from actors.engines.targets.target import Target
from actors.models import Outcome, Window
from actors.training.plan import AnswerRanks
from protocols.errors import PoolFull
from protocols.messages import Sampling

# Alternatives that are kept of each token. They have 0.91 of the bundled target's probability mass on greedy text, 0.85
# on text at temperature 1.
TOP = 64
STREAMS = 64  # answers that are written at once: rows of one forward
LONGEST = 256  # tokens of an answer
SHORTEST = 8  # tokens of an answer that must fit after a prompt, or the prompt is left out
GREEDY = 0.0
TEMPERATURES = (1.0, 0.6)  # temperatures of the sampled answers, in turn


@dataclass(frozen=True, slots=True)
class TrainingPrompt:
    tokens: tuple[int, ...]
    task: str = ""


@dataclass(frozen=True, slots=True)
class Job:
    """An answer to be written."""

    prompt: TrainingPrompt
    temperature: float
    seed: int
    longest: int = field(default=0, compare=False)  # tokens; 0: LONGEST


@dataclass(frozen=True, slots=True)
class TargetAnswer:
    """An answer, with the target's likeliest tokens at each position."""

    job: Job
    tokens: NDArray[np.int32]  # (n,)
    ids: NDArray[np.int32]  # (n, TOP), best first
    logprobs: NDArray[np.float16]  # (n, TOP), natural logarithms under the target's raw logits
    states: NDArray[np.float16] | None = None  # (prompt + n - 1, width): the target's, where it keeps them

    @property
    def text(self) -> list[int]:
        """Prompt and answer."""
        return [*self.job.prompt.tokens, *self.tokens.tolist()]

    def read(self, ranks: NDArray[np.int32]) -> AnswerRanks:
        """``ranks``: of the tokens among a draft's choices."""
        return AnswerRanks(temperature=self.job.temperature, task=self.job.prompt.task, ranks=tuple(ranks.tolist()))


def jobs(prompts: Sequence[TrainingPrompt]) -> Iterator[Job]:
    """Jobs without end, the same in each call: to each prompt a greedy answer and a sampled one, so that there are both
    however early the time is over; then further sampled ones."""
    seed = 1
    while prompts:
        for index, prompt in enumerate(prompts):
            if seed == 1:
                yield Job(prompt, GREEDY, 0)
            yield Job(prompt, TEMPERATURES[(index + seed - 1) % len(TEMPERATURES)], seed)
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

    def answer(self, states: NDArray[np.float16] | None) -> TargetAnswer:
        return TargetAnswer(
            self.job,
            np.array(self.tokens, dtype=np.int32),
            np.array(self.ids, dtype=np.int32),
            np.array(self.logprobs, dtype=np.float16),
            states,
        )


def write_answers(
    target: Target,
    wanted: Iterator[Job],
    keep: Callable[[TargetAnswer], None],
    go_on: Callable[[], bool],
    ends: frozenset[int],
    states: States | None = None,
) -> None:
    """Write the ``wanted`` answers up to a token of ``ends``, and pass each to ``keep`` when it is complete.

    ``go_on`` is asked after each token of all; once it returns False, the unfinished ones are kept as they are.
    ``states``: the target's, of which each answer keeps its text's."""
    streams: dict[int, _Stream] = {}
    waiting: Job | None = None
    opened = 0

    def end(handle: int) -> None:
        stream, found = streams.pop(handle), None if states is None else states.take(handle)
        target.close(handle)
        if states is None:
            keep(stream.answer(None))
        elif found is not None and found[0] == 0 and len(stream.job.prompt.tokens) > 1:
            # the text was not too long for them, and its second token, which no head can draft, is not to be learned
            keep(stream.answer(found[1].half().cpu().numpy()))

    while True:
        while len(streams) < STREAMS:
            waiting = waiting or next(wanted, None)
            if waiting is None:
                break
            prompt = waiting.prompt.tokens
            room = min(waiting.longest or LONGEST, target.info.max_context - len(prompt))
            if prompt and room >= SHORTEST:
                sampling = Sampling(max_tokens=room, temperature=waiting.temperature, seed=waiting.seed, logprobs=TOP)
                opened += 1
                # states are of tokens that are computed: none of a cached beginning
                salt = "" if states is None else f"answer {opened}"
                try:
                    handle = target.open(prompt, sampling, (), 1, salt)
                except PoolFull:
                    break
                streams[handle] = _Stream(waiting, room)
                while (outcome := target.prefill(handle)) is None:
                    pass
                if streams[handle].take(outcome, ends):
                    end(handle)
            waiting = None
        if not streams:
            return
        handles = list(streams)
        for handle, outcome in zip(handles, target.verify([Window(handle) for handle in handles]), strict=True):
            if streams[handle].take(outcome, ends):
                end(handle)
        if not go_on():
            break
    for handle in list(streams):
        end(handle)
