"""From what a client asks for to a request that the verifier can queue, or the sentence that says why not."""

from __future__ import annotations

import msgspec

from actors.models import Codec
from actors.tree.methods import strategy_for
from actors.verifier.book import Book
from actors.verifier.output import Output
from actors.verifier.request import Request
from actors.verifier.speculation import Speculation
from protocols.errors import RequestError
from protocols.messages import FailureCode, Generate, Sampling
from protocols.validation import validate


def admit(book: Book, codec: Codec, peer: bytes, message: Generate, now: float) -> Request:
    """The request that ``message`` asks for; it is not in the book yet. RequestError if it cannot be served."""
    info = book.info
    strategy = strategy_for(message.method or book.settings.method)
    validate(message, info.vocab_size)
    prompt = _prompt(codec, message)
    sampling = _fitting(message, prompt, info.vocab_size, info.max_context)
    spec = Speculation(
        message.rid,
        prompt,
        sampling,
        strategy,
        book.plan(strategy, message, None, now),
        info.vocab_size,
        Output(prompt, sampling, info.eos_token_ids, codec.decode, message.generated),
        book.max_window,
        message.generated,
        book.sources,
        branches=info.dtype == "float32",
        usual=book.usual_rates.of(strategy.method, sampling.temperature > 0),
    )
    return Request(peer, message, spec, strategy.method, now, offset=len(message.generated))


def _prompt(codec: Codec, message: Generate) -> list[int]:
    if message.messages:
        if message.prompt:
            raise RequestError(FailureCode.BAD_REQUEST, "give either a prompt or messages, not both")
        return codec.chat(message.messages)
    if isinstance(message.prompt, str):
        return codec.encode(message.prompt) if message.prompt else []
    return list(message.prompt)


def _fitting(message: Generate, prompt: list[int], vocab_size: int, max_context: int) -> Sampling:
    """The sampling asked for, its ``max_tokens`` cut to the room that the prompt leaves."""
    if not prompt:
        raise RequestError(FailureCode.BAD_REQUEST, "the prompt is empty; send at least one token")
    if any(not 0 <= t < vocab_size for t in (*prompt, *message.generated)):
        detail = f"a prompt token is outside the vocabulary of {vocab_size} tokens"
        raise RequestError(FailureCode.BAD_REQUEST, detail)
    room = max_context - len(prompt)
    if room < 1:
        detail = (
            f"the prompt has {len(prompt)} tokens and the context holds {max_context}; "
            f"shorten it to at most {max_context - 1}"
        )
        raise RequestError(FailureCode.CONTEXT_LENGTH, detail)
    sampling = message.sampling
    if sampling.max_tokens > room:
        sampling = msgspec.structs.replace(sampling, max_tokens=room)
    if len(message.generated) >= sampling.max_tokens:
        detail = f"{len(message.generated)} tokens exist already and max_tokens is {sampling.max_tokens}"
        raise RequestError(FailureCode.BAD_REQUEST, detail)
    return sampling
