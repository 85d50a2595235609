"""Refuses sampling parameters that cannot be honoured; nothing is ever clipped or ignored in silence."""

from __future__ import annotations

import math
from collections.abc import Iterator

from protocols.errors import RequestError
from protocols.messages import FailureCode, Sampling

MIN_TEMPERATURE = 1e-5  # below it logits / temperature leaves float32
MAX_LOGPROBS = 20
MAX_STOPS = 16
LONGEST_STOP = 1024  # characters
MAX_BIASES = 1024


def validate(sampling: Sampling, vocab_size: int) -> None:
    """Raises :class:`RequestError` ("bad_request") about the first value that is out of range."""
    for problem in problems(sampling, vocab_size):
        raise RequestError(FailureCode.BAD_REQUEST, problem)


def problems(s: Sampling, vocab_size: int) -> Iterator[str]:
    """One sentence for every value that is out of range."""
    if not (s.temperature == 0 or MIN_TEMPERATURE <= s.temperature < math.inf):
        yield f"temperature must be 0 (greedy) or at least {MIN_TEMPERATURE:g}, not {s.temperature}."
    if s.top_k < 0:
        yield f"top_k must be 0 (off) or positive, not {s.top_k}."
    if not 0 < s.top_p <= 1:
        yield f"top_p must be above 0 and at most 1, not {s.top_p}."
    if not 0 <= s.min_p <= 1:
        yield f"min_p must be between 0 and 1, not {s.min_p}."
    if not 0.01 <= s.repetition_penalty <= 100:
        yield f"repetition_penalty must be between 0.01 and 100 (1 is off), not {s.repetition_penalty}."
    for name, value in (("presence_penalty", s.presence_penalty), ("frequency_penalty", s.frequency_penalty)):
        if not -2 <= value <= 2:
            yield f"{name} must be between -2 and 2 (0 is off), not {value}."
    if s.max_tokens < 1:
        yield f"max_tokens must be at least 1, not {s.max_tokens}."
    if not -1 <= s.logprobs <= min(MAX_LOGPROBS, vocab_size):
        yield f"logprobs must be -1 (none) or 0 to {min(MAX_LOGPROBS, vocab_size)}, not {s.logprobs}."
    if len(s.stop) > MAX_STOPS:
        yield f"stop takes at most {MAX_STOPS} strings, not {len(s.stop)}."
    if any(not text for text in s.stop):
        yield "stop must not hold an empty string."
    if any(len(text) > LONGEST_STOP for text in s.stop):
        yield f"stop strings must be at most {LONGEST_STOP} characters long."
    for token in s.stop_token_ids:
        if not 0 <= token < vocab_size:
            yield f"stop_token_ids must be ids of this vocabulary (0 to {vocab_size - 1}), not {token}."
    if len(s.logit_bias) > MAX_BIASES:
        yield f"logit_bias takes at most {MAX_BIASES} tokens, not {len(s.logit_bias)}."
    if len({token for token, _ in s.logit_bias}) < len(s.logit_bias):
        yield "logit_bias must name each token once."
    for token, bias in s.logit_bias:
        if not 0 <= token < vocab_size:
            yield f"logit_bias must name ids of this vocabulary (0 to {vocab_size - 1}), not {token}."
        if not -100 <= bias <= 100:
            yield f"logit_bias must be between -100 and 100, not {bias}."
    if not -(1 << 63) <= s.seed < 1 << 64:
        yield f"seed must fit into 64 bits, which {s.seed} does not."
