"""The next chunk of a stream's answer."""

from __future__ import annotations

from itertools import chain

import msgspec

from actors.verifier.streams import Stream
from protocols.messages import Chunk, RequestStats


def chunk_of(stream: Stream, now: float) -> Chunk:
    """The next chunk: all committed tokens that the client does not have, with their text."""
    delivery, output = stream.delivery, stream.output
    unsent, delivery.unsent, delivery.sent_at = delivery.unsent, [], now
    rounds = [committed for committed, _ in unsent]
    tokens = tuple(chain.from_iterable(one.tokens for one in rounds))
    first = delivery.offset == len(stream.message.generated)
    pieces, last = output.spell(len(tokens))
    chunk = Chunk(
        stream.rid,
        delivery.offset,
        tokens,
        tuple(pieces),
        tuple(chain.from_iterable(one.accepted for one in rounds)),
        logprobs=tuple(chain.from_iterable(one.logprobs for one in rounds)),
        trace=unsent[-1][1],
        prompt_tokens=stream.text.prompt_len if first else 0,
        cached_tokens=delivery.cached_tokens if first else 0,
    )
    delivery.offset += len(pieces)
    if last:
        end = {"finish_reason": output.finish, "stop_reason": output.stop_reason, "stats": _stats(stream)}
        chunk = msgspec.structs.replace(chunk, **end)
    return chunk


def _stats(stream: Stream) -> RequestStats:
    text, times = stream.text, stream.times
    return msgspec.structs.replace(
        stream.tally.stats(stream.method, text.prompt_len, text.written),
        completion_tokens=stream.delivery.offset,
        time_to_first_token_ms=(times.first_at - times.arrived) * 1000,
        decode_ms=(times.last_at - times.first_at) * 1000,
        overhead_ms=times.overhead_us / 1000,
        drafters=tuple(stream.loan.names),
        prediction_tokens=len(stream.prediction),
        cached_tokens=stream.delivery.cached_tokens,
    )
