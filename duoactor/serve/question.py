"""What is asked of the verifier, whichever API it came by."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import msgspec

from actors.models import RENDERING
from duoactor.serve.errors import ApiError, bad
from duoactor.serve.fields import Ignored
from duoactor.serve.parameters import UNLIMITED, Speculation
from duoactor.serve.structure import Form
from duoactor.serve.tool_calls.events import Parser
from duoactor.serve.tool_calls.use import NO_TOOLS, Calling, ToolUse
from protocols.messages import ChatTurn, Rendering, Sampling, StructuredOutputs
from protocols.validation import problems

MAX_STREAMS = 64

Prompt = str | tuple[int, ...] | tuple[ChatTurn, ...]


@dataclass(frozen=True, slots=True)
class Question:
    """``n`` answers to each prompt."""

    prompts: tuple[Prompt, ...]
    sampling: Sampling
    how: Speculation
    form: Form | None = None
    tools: ToolUse = NO_TOOLS
    seeded: bool = False
    n: int = 1
    trace: bool = False
    rendering: Rendering = RENDERING
    ignored: Ignored = field(default_factory=Ignored)

    def check(self, vocab_size: int) -> None:
        """ApiError about the first value that the verifier would refuse."""
        for problem in problems(self.sampling, vocab_size):
            raise ApiError(400, problem, param=problem.split(" ", 1)[0])
        if len(self.prompts) * self.n > MAX_STREAMS:
            raise bad("n", f": at most {MAX_STREAMS} answers at once, all prompts together")

    def structure(self, calling: Calling) -> tuple[StructuredOutputs | None, str]:
        """What the answer must be, and the parameter that is to blame if it cannot be made so."""
        if self.tools.forced:
            return StructuredOutputs(grammar=self.tools.grammar(calling)), "tools"
        if self.form is None:
            return None, ""
        if self.tools.offered and self.form.schema is not None:  # it binds the answer, not the calls before it
            return StructuredOutputs(grammar=self.tools.grammar(calling, self.form.schema)), self.form.param
        return self.form.outputs, self.form.param

    def parser(self, calling: Calling) -> Parser:
        """A new one, for one answer."""
        return self.tools.parser(calling, constrained=self.structure(calling)[0] is not None)

    @property
    def asked_for(self) -> int | None:
        """``max_tokens``, if the request names a limit."""
        return self.sampling.max_tokens if self.sampling.max_tokens < UNLIMITED else None

    def alone(self) -> list[Question]:
        """One question for each answer. Choice i of a seed has seed + i, as in vLLM; without one each draws its own."""
        return [
            replace(self, prompts=(prompt,), n=1, sampling=self._sampling(choice))
            for prompt in self.prompts
            for choice in range(self.n)
        ]

    def _sampling(self, choice: int) -> Sampling:
        seed = (self.sampling.seed + choice) % (1 << 64) if self.seeded else random.getrandbits(63)
        skip = self.sampling.skip_special_tokens and not self.tools.offered  # some forms of calls have such tokens
        return msgspec.structs.replace(self.sampling, seed=seed, skip_special_tokens=skip)


def open_ended(turns: tuple[ChatTurn, ...]) -> bool:
    """Whether the last turn is an assistant's text, which an answer can continue."""
    return bool(turns) and turns[-1].role == "assistant" and not turns[-1].tool_calls
