"""Refuses what a request cannot ask for, with a sentence; nothing is clipped or ignored silently.

The client uses these functions before it sends; the verifier, which also knows the vocabulary, when it receives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from protocols.errors import RequestError
from protocols.limits import (
    LONGEST_GRAMMAR,
    LONGEST_STOP,
    MAX_BAD_WORDS,
    MAX_BIASES,
    MAX_DRAFT_LENGTH,
    MAX_LOGPROBS,
    MAX_SEQUENCES,
    MAX_STOP_TOKENS,
    MAX_STOPS,
    MAX_TEMPERATURE,
)
from protocols.limits import MAX_INT as MAX_INT
from protocols.messages import ChatTurn, FailureCode, Generate, Sampling

SHARED_SALT = "share:"  # begins a cache_salt by which requests of several keys share what is cached
MIN_SECRET = 32  # characters after it: 128 random bits in hexadecimal. Whoever guesses them reads along
MIN_TEMPERATURE = 1e-5  # below it logits / temperature leaves float32


def validate(request: Generate, vocab_size: int = MAX_INT) -> None:
    """Raise :class:`RequestError` ("bad_request") about the first value that is out of range."""
    structure = () if request.structured_outputs is None else _structure_problems(request)
    for problem in (
        *problems(request.sampling, vocab_size),
        *_draft_problems(request),
        *_salt_problems(request.cache_salt),
        *structure,
    ):
        raise RequestError(FailureCode.BAD_REQUEST, problem)
    if request.tools and not request.messages:
        raise RequestError(FailureCode.BAD_REQUEST, "tools need messages: they are a part of the chat template")


def is_object(text: str) -> bool:
    """Whether a text is a JSON object, as the arguments of a call should be."""
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return False


def characters(turns: Sequence[ChatTurn]) -> int:
    """The number of characters of a conversation, tool calls and thoughts included."""
    calls = sum(len(call.arguments) for turn in turns for call in turn.tool_calls)
    return calls + sum(len(turn.content) + len(turn.reasoning) for turn in turns)


def _draft_problems(request: Generate) -> Iterator[str]:
    for name, most in (("num_speculative_tokens", MAX_DRAFT_LENGTH), ("sequences", MAX_SEQUENCES)):
        if not 0 <= getattr(request, name) <= most:
            yield f"{name} must be 0 (adaptive) to {most}, not {getattr(request, name)}"


def _salt_problems(salt: str) -> Iterator[str]:
    if salt.startswith(SHARED_SALT) and len(salt) < len(SHARED_SALT) + MIN_SECRET:
        yield (
            f"a cache_salt that begins with {SHARED_SALT} is a secret of at least {MIN_SECRET} characters behind that; "
            "make one with `openssl rand -hex 16`, or leave the beginning out to share with nobody else"
        )


def _structure_problems(request: Generate) -> Iterator[str]:
    wanted = request.structured_outputs
    assert wanted is not None
    given = {name: text for name in wanted.__struct_fields__ if (text := getattr(wanted, name)) is not None}
    if len(given) != 1:
        said = " and ".join(given) or "none"
        yield f"structured_outputs takes exactly one of json_schema, regex and grammar, not {said}"
    for name, text in given.items():
        if not 1 <= len(text) <= LONGEST_GRAMMAR:
            yield f"structured_outputs.{name} must be 1 to {LONGEST_GRAMMAR} characters long, not {len(text)}"
    for name in ("ignore_eos", "min_tokens"):
        if getattr(request.sampling, name):
            yield f"{name} cannot be had with structured_outputs, which say where the output ends"
    if request.sampling.bad_words:
        yield "bad_words cannot be had with structured_outputs, which may leave no other word"


def problems(s: Sampling, vocab_size: int = MAX_INT) -> Iterator[str]:
    """A sentence for each value that is out of range. Without ``vocab_size`` every possible token id is allowed."""
    if not (s.temperature == 0 or MIN_TEMPERATURE <= s.temperature <= MAX_TEMPERATURE):
        yield (
            f"temperature must be 0 (greedy) or at least {MIN_TEMPERATURE:g} and at most {MAX_TEMPERATURE:g}, "
            f"not {s.temperature:g}"
        )
    if not 0 <= s.top_k <= MAX_INT:
        yield f"top_k must be 0 (off) or positive and below 2^31, not {s.top_k}"
    if not 0 < s.top_p <= 1:
        yield f"top_p must be above 0 and at most 1, not {s.top_p}"
    if not 0 <= s.min_p <= 1:
        yield f"min_p must be between 0 and 1, not {s.min_p}"
    if not 0.01 <= s.repetition_penalty <= 100:
        yield f"repetition_penalty must be between 0.01 and 100 (1 is off), not {s.repetition_penalty}"
    for name, value in (("presence_penalty", s.presence_penalty), ("frequency_penalty", s.frequency_penalty)):
        if not -2 <= value <= 2:
            yield f"{name} must be between -2 and 2 (0 is off), not {value}"
    if not 1 <= s.max_tokens <= MAX_INT:
        yield f"max_tokens must be at least 1 and below 2^31, not {s.max_tokens}"
    if not 0 <= s.min_tokens <= s.max_tokens:
        yield f"min_tokens must be 0 (no least length) to max_tokens, which is {s.max_tokens}, not {s.min_tokens}"
    if not -1 <= s.logprobs <= min(MAX_LOGPROBS, vocab_size):
        yield f"logprobs must be -1 (none) or 0 to {min(MAX_LOGPROBS, vocab_size)}, not {s.logprobs}"
    if len(s.stop) > MAX_STOPS:
        yield f"stop takes at most {MAX_STOPS} strings, not {len(s.stop)}"
    if any(not text for text in s.stop):
        yield "stop must not hold an empty string"
    if any(len(text) > LONGEST_STOP for text in s.stop):
        yield f"stop strings must be at most {LONGEST_STOP} characters long"
    if len(s.stop_token_ids) > MAX_STOP_TOKENS:
        yield f"stop_token_ids takes at most {MAX_STOP_TOKENS} tokens, not {len(s.stop_token_ids)}"
    for token in s.stop_token_ids:
        if not 0 <= token < vocab_size:
            yield f"stop_token_ids must be token ids (0 to {vocab_size - 1}), not {token}"
    if len(s.bad_words) > MAX_BAD_WORDS:
        yield f"bad_words takes at most {MAX_BAD_WORDS} words, not {len(s.bad_words)}"
    if any(not word.strip() or len(word) > LONGEST_STOP for word in s.bad_words):
        yield f"bad_words must be words of 1 to {LONGEST_STOP} characters"
    if len(s.logit_bias) > MAX_BIASES:
        yield f"logit_bias takes at most {MAX_BIASES} tokens, not {len(s.logit_bias)}"
    if len({token for token, _ in s.logit_bias}) < len(s.logit_bias):
        yield "logit_bias must name each token once"
    for token, bias in s.logit_bias:
        if not 0 <= token < vocab_size:
            yield f"logit_bias must name token ids (0 to {vocab_size - 1}), not {token}"
        if not -100 <= bias <= 100:
            yield f"logit_bias must be between -100 and 100, not {bias}"
    if not -(1 << 63) <= s.seed < 1 << 64:
        yield f"seed must fit into 64 bits, which {s.seed} does not"
