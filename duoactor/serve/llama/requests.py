"""``/completion`` and ``/infill``: llama-server's parameters as a question."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from duoactor.serve.errors import bad
from duoactor.serve.fields import Ignored
from duoactor.serve.fill import Gap
from duoactor.serve.openai.completions import prompts
from duoactor.serve.parameters import Limit, decode, limit
from duoactor.serve.question import Prompt, Question, asked
from duoactor.serve.structure import StructureParameters
from protocols.messages import Sampling

USUAL = Sampling(temperature=0.8, top_k=40, top_p=0.95, min_p=0.05)  # llama-server's own


class LlamaParameters(StructureParameters, frozen=True, kw_only=True):
    """What both requests have besides the names that :mod:`duoactor.serve.other_names` knows."""

    n_predict: Limit = -1  # 0: the prompt is read, and nothing is written
    n_probs: Annotated[int, Meta(ge=0, le=20)] = 0
    n_cmpl: Annotated[int, Meta(ge=1, le=64)] = 1
    return_tokens: bool = False
    post_sampling_probs: Literal[False] = False
    response_fields: tuple[str, ...] = ()
    logit_bias: Any = msgspec.field(default_factory=dict)  # OpenAI's form, or pairs, where false forbids a token

    @property
    def text(self) -> str:
        """The prompt, where it is one text."""
        return ""


class LlamaCompletion(LlamaParameters, frozen=True, kw_only=True):
    prompt: Annotated[str | tuple[Any, ...], Meta(description="a text, token ids, or an array of either")]

    @property
    def text(self) -> str:
        return self.prompt if isinstance(self.prompt, str) else ""


class ExtraFile(msgspec.Struct, frozen=True):
    text: str
    filename: str = "file"


class Infill(LlamaParameters, frozen=True, kw_only=True):
    """``prompt`` is the beginning of what fills the gap."""

    input_prefix: str
    input_suffix: str
    input_extra: tuple[ExtraFile, ...] = ()
    prompt: str = ""


def sampling_named(sampling: Sampling) -> dict[str, float]:
    """The model's sampling under llama-server's names."""
    named = {name: getattr(sampling, name) for name in ("temperature", "top_k", "top_p", "min_p")}
    return {**named, "repeat_penalty": sampling.repetition_penalty}


def parse_completion(body: bytes) -> tuple[LlamaCompletion, Question]:
    wanted, ignored = decode(body, LlamaCompletion)
    return wanted, _question(wanted, ignored, prompts(wanted.prompt))


def parse_infill(body: bytes) -> tuple[Infill, Question]:
    wanted, ignored = decode(body, Infill)
    files = tuple((one.filename, one.text) for one in wanted.input_extra)
    gap = Gap(wanted.input_suffix, wanted.prompt, files, "input_suffix")
    return wanted, _question(wanted, ignored, (wanted.input_prefix,), gap)


def _question(wanted: LlamaParameters, ignored: Ignored, given: tuple[Prompt, ...], gap: Gap | None = None) -> Question:
    drawn = wanted.seed is None or wanted.seed == -1
    plain = replace(wanted, seed=None if drawn else wanted.seed, logit_bias=_bias(wanted.logit_bias))
    most = max(1, limit(wanted.n_predict or 1, "n_predict"))
    question = asked(plain, ignored, given, plain.sampling(max_tokens=most, logprobs=wanted.n_probs or -1))
    n = max(wanted.n, wanted.n_cmpl)
    return dataclasses.replace(question, n=n, trace=False, gap=gap, usual=USUAL)


def _bias(given: Any) -> dict[str, float]:
    try:
        pairs = msgspec.convert(given, tuple[tuple[int, float | bool], ...] | dict[str, float])
    except msgspec.ValidationError:
        raise bad("logit_bias", "must be an object of numbers by token id, or an array of pairs of them") from None
    if isinstance(pairs, dict):
        return pairs
    if any(bias is True for _, bias in pairs):
        raise bad("logit_bias", ": a token's bias is a number, or false for never")
    return {str(token): -100.0 if bias is False else bias for token, bias in pairs}
