"""A question to the verifier, of any API."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import msgspec

from actors.models import RENDERING
from duoactor.client.request import defaulted
from duoactor.serve.errors import ApiError, bad
from duoactor.serve.fields import Ignored
from duoactor.serve.fill import Gap
from duoactor.serve.parameters import UNLIMITED, WHOLE_PROMPT, PromptCut, Speculation
from duoactor.serve.structure import AnswerForm, StructureParameters, shape_of
from duoactor.serve.thinking import Mind, Wish
from duoactor.serve.tool_calls.events import Parser
from duoactor.serve.tool_calls.use import NO_TOOLS, Calling, ToolUse
from protocols.limits import MAX_INT
from protocols.messages import UNCHANGED, ChatTurn, Dictation, Rendering, Sampling, StructuredOutputs
from protocols.validation import problems

MAX_STREAMS = 64

Prompt = str | tuple[int, ...] | tuple[ChatTurn, ...]


@dataclass(frozen=True, slots=True)
class Question:
    """``n`` answers to each prompt."""

    prompts: tuple[Prompt, ...]
    sampling: Sampling
    how: Speculation
    shape: AnswerForm | None = None
    tools: ToolUse = NO_TOOLS
    seeded: bool = False
    n: int = 1
    trace: bool = False
    rendering: Rendering = RENDERING
    thinking: Wish | None = None  # None: the API has no thoughts
    ignored: Ignored = field(default_factory=Ignored)
    prediction: str = ""  # the answer, as the client foresees it
    gap: Gap | None = None  # gap that the answers to a prompt fill
    cut: PromptCut = WHOLE_PROMPT
    stops_shown: bool = False  # a stop string that ends an answer is part of it
    context: int = 0  # tokens of context that the request counts on; 0: any
    scores: bool = False  # the log-probabilities of the prompts' own tokens are wanted
    usual: Sampling = UNCHANGED  # the API's sampling, where neither the request nor the model names one

    def check(self, vocab_size: int) -> None:
        """ApiError about the first value that the verifier would refuse."""
        for problem in problems(self._bounded(self.sampling.max_tokens), vocab_size):
            raise ApiError(400, problem, param=problem.split(" ", 1)[0])
        if len(self.prompts) * self.n > MAX_STREAMS:
            raise bad("n", f": at most {MAX_STREAMS} answers at once, all prompts together")

    def defaulted(self, defaults: Sampling) -> Question:
        """The question with ``defaults`` where the request names no value."""
        return replace(self, sampling=defaulted(self.sampling, defaults, self.ignored.said))

    def mind(self, calling: Calling) -> Mind:
        """The model's form of thoughts in these answers."""
        if self.thinking is None:
            return Mind()
        last = self.prompts[0][-1] if self.rendering.continue_final else None
        continued = last.content if isinstance(last, ChatTurn) else None
        return Mind.of(calling.thinking, self.thinking.on, continued)

    def structure(self, calling: Calling) -> tuple[StructuredOutputs | None, str]:
        """The form of the answer, and the parameter to blame if it is impossible."""
        wanted, param, calls = self._structure(calling)
        return self.mind(calling).structure(wanted, param, headed=calls and calling.channels), param

    def _structure(self, calling: Calling) -> tuple[StructuredOutputs | None, str, bool]:
        """The same, and whether there are calls in it."""
        if self.tools.forced:
            return StructuredOutputs(grammar=self.tools.grammar(calling)), "tools", True
        if self.shape is None:
            return None, "", False
        if self.tools.offered and self.shape.schema is not None:  # it binds the answer, not the calls before it
            return StructuredOutputs(grammar=self.tools.grammar(calling, self.shape.schema)), self.shape.param, True
        return self.shape.outputs, self.shape.param, False

    def parser(self, calling: Calling) -> Parser:
        """A new one, for one answer."""
        structure, _, calls = self._structure(calling)
        stops = self.sampling.stop or self.sampling.stop_token_ids
        rest = self.tools.parser(calling, constrained=structure is not None, sure=calls and not stops)
        return self.mind(calling).parser(rest)

    def dictation(self, calling: Calling) -> Dictation | None:
        """Dictated tokens of a single question. A prompt is scored as an output: all but its first token are
        dictated."""
        if self.scores:
            return Dictation(tokens=self.prompts[0][1:])  # type: ignore[arg-type]  # ids, see Gateway.spelt
        return None if self.thinking is None else self.mind(calling).dictation(self.thinking.budget)

    @property
    def asked_for(self) -> int | None:
        """``max_tokens``, if the request names a limit; it may be larger than the verifier takes."""
        return self.sampling.max_tokens if self.sampling.max_tokens != UNLIMITED else None

    def alone(self, calling: Calling) -> list[Question]:
        """One question for each answer. Choice i of a seed has seed + i, as in vLLM; without one each draws its own."""
        # some forms of calls and thoughts have special tokens
        shown = self.tools.offered or bool(self.mind(calling).form.special)
        return [
            replace(self, prompts=(prompt,), n=1, sampling=self._sampling(prompt, choice, shown))
            for prompt in self.prompts
            for choice in range(self.n)
        ]

    def _sampling(self, prompt: Prompt, choice: int, shown: bool) -> Sampling:
        seed = (self.sampling.seed + choice) % (1 << 64) if self.seeded else random.getrandbits(63)
        skip = self.sampling.skip_special_tokens and not shown
        most = self.sampling.max_tokens
        if self.scores:
            most = max(1, most + len(prompt) - 1)
        return msgspec.structs.replace(self._bounded(most), seed=seed, skip_special_tokens=skip)

    def _bounded(self, most: int) -> Sampling:
        """The sampling with a limit of ``most`` tokens, or the largest that the verifier takes."""
        return msgspec.structs.replace(self.sampling, max_tokens=min(most, MAX_INT))


def asked(wanted: StructureParameters, ignored: Ignored, prompts: tuple[Prompt, ...], sampling: Sampling) -> Question:
    """A question by the parameters that chat and text completions share."""
    return Question(
        prompts=prompts,
        sampling=sampling,
        how=wanted,
        shape=shape_of(wanted),
        seeded=wanted.seed is not None,
        n=wanted.n,
        trace=wanted.trace,
        ignored=ignored,
        cut=wanted.cut,
        stops_shown=wanted.include_stop_str_in_output,
    )


def open_ended(turns: tuple[ChatTurn, ...]) -> bool:
    """Whether the last turn is an assistant's text, which an answer can continue."""
    return bool(turns) and turns[-1].role == "assistant" and not turns[-1].tool_calls
