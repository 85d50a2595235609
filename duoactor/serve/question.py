"""What is asked of the verifier, whichever API it came by."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import msgspec

from duoactor.serve.errors import ApiError
from protocols.messages import ChatTurn, Sampling
from protocols.validation import problems

UNLIMITED = (1 << 31) - 1  # the verifier cuts it to the room that the prompt leaves
MAX_STREAMS = 64

Prompt = str | tuple[int, ...] | tuple[ChatTurn, ...]


@dataclass(frozen=True, slots=True)
class Question:
    """``n`` answers to each prompt."""

    prompts: tuple[Prompt, ...]
    sampling: Sampling
    seeded: bool = False
    n: int = 1
    method: str = ""
    num_speculative_tokens: int = 0
    cache_salt: str = ""
    trace: bool = False

    def check(self, vocab_size: int) -> None:
        """ApiError about the first value that the verifier would refuse."""
        for problem in problems(self.sampling, vocab_size):
            raise ApiError(400, problem, param=problem.split(" ", 1)[0])
        if len(self.prompts) * self.n > MAX_STREAMS:
            raise ApiError(400, f"n: at most {MAX_STREAMS} answers at once, all prompts together", param="n")

    def alone(self) -> list[Question]:
        """One question for each answer. Choice i of a seed has seed + i, as in vLLM; without one each draws its own."""
        return [
            replace(self, prompts=(prompt,), n=1, sampling=self._sampling(choice))
            for prompt in self.prompts
            for choice in range(self.n)
        ]

    def _sampling(self, choice: int) -> Sampling:
        seed = (self.sampling.seed + choice) % (1 << 64) if self.seeded else random.getrandbits(63)
        return msgspec.structs.replace(self.sampling, seed=seed)
