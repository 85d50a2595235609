"""Prepares a request: its prompt as tokens, its ``max_tokens`` cut to the context, its output so far, its grammar."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from actors.models import Codec, ModelInfo, too_long
from actors.verifier.constraints.binding import Binding
from actors.verifier.constraints.dictated import Dictated
from actors.verifier.constraints.withheld import Withheld
from actors.verifier.output import Output
from actors.verifier.sources.grammar import Grammars
from actors.verifier.streams import Transcript
from actors.verifier.text import Decode
from protocols.errors import RequestError
from protocols.messages import FailureCode, Generate, Sampling
from protocols.validation import characters

# Requests up to this size are prepared in the event loop: it takes half a millisecond, and waking a thread 0.1 ms.
SHORT = 2000  # characters, or tokens of a prompt that is given as such
PIECE = 1 << 16  # characters of a prediction that are tokenized together: the text of some 16,000 tokens
SHORT_OUTPUT = 64  # tokens of a resumed stream


@dataclass(frozen=True, slots=True)
class Prepared:
    text: Transcript
    output: Output
    grammar: Binding | None
    prediction: list[int]


def prepare(codec: Codec, decode: Decode, info: ModelInfo, grammars: Grammars, message: Generate) -> Prepared:
    """Prepare a request; on any thread. Raises RequestError if it cannot be served."""
    prompt = _prompt(codec, message, info.max_context)
    sampling = _fitting(message, prompt, info.vocab_size, info.max_context)
    wanted, dictation = message.structured_outputs, message.dictation
    grammar: Binding | None = None
    if wanted is not None:
        grammar = grammars.grammar(wanted, message.generated)
    elif sampling.min_tokens or sampling.bad_words:
        grammar = Withheld(sampling, info.eos_token_ids, codec, info.vocab_size, message.generated)
    prediction = _predicted(codec, message.prediction, info.max_context)
    dictated = range(0)
    if dictation is not None:
        grammar = binds = Dictated(dictation, codec, info.vocab_size, grammar, message.generated)
        dictated = range(dictation.at, dictation.at + len(binds.tokens))
    output = Output(prompt, sampling, info.eos_token_ids, decode, message.generated, dictated)
    return Prepared(Transcript(prompt, message.generated, sampling), output, grammar, prediction)


def is_short(message: Generate) -> bool:
    """Whether :func:`prepare` takes so little that it may run in the event loop."""
    if message.structured_outputs is not None or message.dictation is not None or message.sampling.bad_words:
        return False
    length = len(message.prompt) + len(message.prediction) + len(message.tools) + characters(message.messages)
    return length <= SHORT and len(message.generated) <= SHORT_OUTPUT


def _prompt(codec: Codec, message: Generate, context: int) -> list[int]:
    if message.messages:
        if message.prompt:
            raise RequestError(FailureCode.BAD_REQUEST, "give either a prompt or messages, not both")
        return codec.chat(message.messages, message.tools, message.rendering, context)
    if isinstance(message.prompt, str):
        return codec.encode(message.prompt, context=context) if message.prompt else []
    return list(message.prompt)


def _predicted(codec: Codec, text: str, most: int) -> list[int]:
    """The first ``most`` tokens of a prediction, or few less: what cannot be said any more is not tokenized. A token at
    the end of a piece may be another than in the whole text, which costs a draft."""
    ids: list[int] = []
    for at in range(0, len(text), PIECE):
        ids += codec.encode(text[at : at + PIECE], False)
        if len(ids) >= most:
            break
    return ids[:most]


def _fitting(message: Generate, prompt: list[int], vocab_size: int, max_context: int) -> Sampling:
    """The sampling with ``max_tokens`` cut to the context. Raises RequestError if not a single token more fits."""
    if not prompt:
        raise RequestError(FailureCode.BAD_REQUEST, "the prompt is empty; send at least one token")
    dictated = message.dictation.tokens if message.dictation is not None else ()
    room = max_context - len(prompt)
    if room < 1 + len(dictated):
        raise too_long(len(prompt) + len(dictated), max_context)
    if any(not 0 <= t < vocab_size for t in (*prompt, *message.generated, *dictated)):
        detail = f"a prompt token is outside the vocabulary of {vocab_size} tokens"
        raise RequestError(FailureCode.BAD_REQUEST, detail)
    sampling = message.sampling
    if sampling.max_tokens > room:
        sampling = msgspec.structs.replace(sampling, max_tokens=room)
    if len(message.generated) >= sampling.max_tokens:
        detail = f"{len(message.generated)} tokens exist already and max_tokens is {sampling.max_tokens}"
        raise RequestError(FailureCode.BAD_REQUEST, detail)
    return sampling
