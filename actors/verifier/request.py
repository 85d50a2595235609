"""One client's request at the verifier: its stream of chunks around its :class:`Speculation`."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from actors.models import Codec
from actors.verifier.rounds import Committed
from actors.verifier.speculation import Speculation
from actors.verifier.text import Detokenizer, StopStrings
from protocols.messages import Chunk, FinishReason, Generate, RequestStats, RequestStatus, TokenLogprobs


@dataclass(slots=True)
class Request:
    """``state`` goes queued, prefill, decode, ended. ``offset`` counts output tokens already sent."""

    client: bytes
    message: Generate
    spec: Speculation
    method: str
    arrived: float  # seconds
    detokenizer: Detokenizer
    stops: StopStrings
    state: str = "queued"
    handle: int = -1
    drafter: bytes | None = None
    drafters: list[str] = field(default_factory=list)
    offset: int = 0
    first_at: float = 0.0
    last_at: float = 0.0
    round_ended_at: float = 0.0
    overhead_us: float = 0.0
    waited_us: float = 0.0  # of the waits already accounted for

    @property
    def rid(self) -> str:
        return self.message.rid

    def status(self) -> RequestStatus:
        done = len(self.spec.committed) - self.spec.prompt_len
        return RequestStatus(self.rid, self.method, self.state, done, self.drafters[-1] if self.drafters else "")

    def chunk(self, committed: Committed) -> Chunk:
        """The next chunk. Ends the request when a stop token, the limit or a stop string ends it."""
        pieces: list[str] = []
        finish = committed.finish
        stop_reason: str | int | None = None
        stop_tokens = self.spec.stop_tokens
        for token in committed.tokens:
            if token in stop_tokens:
                pieces.append("")
                if token in self.message.sampling.stop_token_ids:
                    stop_reason = token
                continue
            text, stopped = self.stops.push(self.detokenizer.push(token))
            pieces.append(text)
            if stopped:
                finish, stop_reason = FinishReason.STOP, self.stops.found
                break
        else:
            if finish is not None:
                text, stopped = self.stops.push(self.detokenizer.flush())
                pieces[-1] += text + self.stops.flush()
        count = len(pieces)
        logprobs: tuple[TokenLogprobs, ...] = tuple(committed.logprobs[:count])
        chunk = Chunk(
            self.rid,
            self.offset,
            tuple(committed.tokens[:count]),
            tuple(pieces),
            tuple(committed.accepted[:count]),
            finish,
            logprobs,
            stop_reason=stop_reason,
            prompt_tokens=self.spec.prompt_len if self.offset == len(self.message.generated) else 0,
        )
        self.offset += count
        if finish is not None:
            chunk = msgspec.structs.replace(chunk, stats=self._stats())
        return chunk

    def _stats(self) -> RequestStats:
        spec = self.spec
        decode_us = (self.last_at - self.first_at) * 1e6
        return msgspec.structs.replace(
            spec.stats(self.method),
            completion_tokens=self.offset,
            time_to_first_token_ms=(self.first_at - self.arrived) * 1000,
            decode_ms=decode_us / 1000,
            overhead_ms=self.overhead_us / 1000,
            drafters=tuple(self.drafters),
        )


def make_request(
    client: bytes, message: Generate, spec: Speculation, method: str, codec: Codec, arrived: float
) -> Request:
    """A queued request. A resumed one begins behind the tokens that the client already has."""
    prompt = spec.committed[: spec.prompt_len]
    request = Request(
        client=client,
        message=message,
        spec=spec,
        method=method,
        arrived=arrived,
        detokenizer=Detokenizer(codec.decode, prompt),
        stops=StopStrings(message.sampling.stop),
        offset=len(message.generated),
    )
    for token in message.generated:
        request.stops.push(request.detokenizer.push(token))
    return request
