"""What a caller asks for, as a message, and the chunks that came, as one answer."""

from __future__ import annotations

import random
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from protocols.errors import RequestError
from protocols.messages import (
    ChatTurn,
    Chunk,
    FailureCode,
    FinishReason,
    Generate,
    RequestStats,
    Sampling,
    TokenLogprobs,
)

Prompt = str | Sequence[int] | Sequence[ChatTurn | Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole answer. ``sampling`` holds the seed that was used, so the same text can be had again."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stats: RequestStats
    sampling: Sampling
    logprobs: tuple[TokenLogprobs, ...] = ()


def make_sampling(given: Sampling | None, options: Mapping[str, Any]) -> Sampling:
    """Sampling from keyword arguments. A seed is drawn here if none is given, so that a resumed stream keeps it."""
    unknown = [name for name in options if name not in Sampling.__struct_fields__]
    if unknown:
        known = ", ".join((*Sampling.__struct_fields__, "method", "num_speculative_tokens", "sequences"))
        raise RequestError(FailureCode.BAD_REQUEST, f"option {unknown[0]!r} is not known; there are {known}")
    fields = {k: tuple(v) if isinstance(v, list) else v for k, v in options.items()}
    if isinstance(bias := options.get("logit_bias"), Mapping):
        fields["logit_bias"] = tuple(bias.items())
    if isinstance(fields.get("stop"), str):
        fields["stop"] = (fields["stop"],)
    seeded = "seed" in fields and fields["seed"] is not None
    fields = {k: v for k, v in fields.items() if v is not None}
    sampling = msgspec.structs.replace(given or Sampling(), **fields)
    if given is None and not seeded:
        sampling = msgspec.structs.replace(sampling, seed=random.SystemRandom().getrandbits(63))
    return sampling


def _turn(turn: ChatTurn | Mapping[str, str]) -> ChatTurn:
    return turn if isinstance(turn, ChatTurn) else ChatTurn(str(turn["role"]), str(turn["content"]))


def turns(given: Sequence[ChatTurn | Mapping[str, str]]) -> tuple[ChatTurn, ...]:
    return tuple(_turn(turn) for turn in given)


def make_request(prompt: Prompt, messages: Sequence[Any], sampling: Sampling, **rest: Any) -> Generate:
    rid = uuid.uuid4().hex
    if messages:
        return Generate(rid, messages=turns(messages), sampling=sampling, **rest)
    if isinstance(prompt, str):
        return Generate(rid, prompt, sampling=sampling, **rest)
    if all(isinstance(item, int) for item in prompt):
        return Generate(rid, tuple(prompt), sampling=sampling, **rest)  # type: ignore[arg-type]
    return Generate(rid, messages=turns(prompt), sampling=sampling, **rest)  # type: ignore[arg-type]


def complete(chunks: Sequence[Chunk], sampling: Sampling) -> Completion:
    last = chunks[-1]
    assert last.finish_reason is not None and last.stats is not None
    return Completion(
        "".join(c.text for c in chunks),
        tuple(t for c in chunks for t in c.token_ids),
        last.finish_reason,
        last.stats,
        sampling,
        tuple(p for c in chunks for p in c.logprobs),
    )
