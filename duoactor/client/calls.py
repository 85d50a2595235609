"""A client's open calls, streams and questions: each can be repeated at any verifier."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from protocols.errors import DuoactorError
from protocols.messages import (
    Chunk,
    Detokenize,
    Done,
    DrainActor,
    FinishReason,
    Generate,
    Status,
    StatusReport,
    Swap,
    Tokenize,
    Tokenized,
    Undo,
)

Question = Status | Swap | DrainActor | Undo | Tokenize | Detokenize
Answer = Done | StatusReport | Tokenized
News = Chunk | Answer | DuoactorError

ANSWERS: Mapping[type[Question], type[Answer]] = {
    Status: StatusReport,
    Tokenize: Tokenized,
    Detokenize: Tokenized,
    Swap: Done,
    DrainActor: Done,
    Undo: Done,
}

SETTLED_TOKENS = 16  # that come from a verifier before it ends: the request is not taken for the cause then


@dataclass(slots=True)
class Asking:
    """A question and whether it has been sent. Each may be repeated: a second swap or drain finds nothing to move."""

    question: Question
    at: str | None = None  # the address of the verifier that is asked; None: none yet
    submitted: bool = False
    answered: bool = False

    def answered_by(self, answer: Answer) -> bool:
        """Whether it is an answer to this question at all."""
        whole = not isinstance(answer, Tokenized) or len(answer.pieces) == len(answer.token_ids)
        return whole and isinstance(answer, ANSWERS[type(self.question)])

    def waits(self, now: float) -> bool:
        """Whether its verifier is to be asked now."""
        return not self.submitted

    def message(self, now: float) -> Question:
        return self.question

    def sent(self, incarnation: str) -> None:
        """To the verifier with an ``incarnation``."""
        self.submitted, self.answered = True, False

    def welcomed(self, address: str, incarnation: str) -> None:
        """The verifier at ``address`` is another, or has forgotten us."""
        if self.at == address:
            self.submitted = False

    def lost(self, in_order: bool, elsewhere: bool) -> None:
        """Its verifier has gone. ``elsewhere``: another goes on with the call."""
        self.given_back()

    def given_back(self) -> None:
        """The verifier does not work on it, and says so."""
        self.submitted, self.at = False, None


@dataclass(slots=True)
class StreamState:
    """One stream at the client. ``submitted``: the verifier was asked; ``answered``: it has begun to."""

    request: Generate
    since: float = 0.0  # seconds
    at: str | None = None  # the address of the verifier that serves it; None: none does
    asked: str = ""  # incarnation of the verifier that was asked last, unless that one gave the request back
    refused_by: set[str] = field(default_factory=set)  # addresses that had no room
    retries: int = 0
    retry_at: float = 0.0
    token_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    submitted: bool = False
    answered: bool = False
    attempt: int = 0  # see section 6.6 of SPEC.md: a request may be what ends the verifier
    begun: bool = False  # whether the verifier works on it, or may
    had: int = 0  # tokens when it was last asked for

    def accept(self, chunk: Chunk) -> Chunk | None:
        """The new part of a chunk, or None if there is none. If tokens before it are missing, they are asked for."""
        have = len(self.token_ids)
        if not len(chunk.token_ids) == len(chunk.pieces) == len(chunk.accepted):
            return None  # no verifier of ours says so
        if chunk.offset > have:
            self.submitted = False
            return None
        self.answered = self.begun = True
        known = have - chunk.offset
        if known >= len(chunk.token_ids) and chunk.finish_reason is None:
            return None
        if known:
            chunk = replace(
                chunk,
                offset=have,
                token_ids=chunk.token_ids[known:],
                pieces=chunk.pieces[known:],
                accepted=chunk.accepted[known:],
                logprobs=chunk.logprobs[known:],
                trace=None,  # it is of more tokens
            )
        self.token_ids.extend(chunk.token_ids)
        self.finish_reason = chunk.finish_reason
        return chunk

    @property
    def deadline(self) -> float:
        return self.since + self.request.deadline_ms / 1000 if self.request.deadline_ms else math.inf

    def waits(self, now: float) -> bool:
        return not self.submitted and self.retry_at <= now

    def message(self, now: float) -> Generate:
        """The request for what is still to come."""
        left_ms = max(1.0, 1000 * (self.deadline - now)) if self.request.deadline_ms else 0.0
        return replace(self.request, generated=tuple(self.token_ids), attempt=self.attempt, deadline_ms=left_ms)

    def sent(self, incarnation: str) -> None:
        self.submitted, self.answered = True, False
        self.had, self.begun, self.asked = len(self.token_ids), not self.attempt, incarnation

    def welcomed(self, address: str, incarnation: str) -> None:
        if self.at in (None, address) and self.asked not in ("", incarnation):
            self._outlived()
        if self.at == address:
            self.submitted = False

    def lost(self, in_order: bool, elsewhere: bool) -> None:
        self.submitted, self.at = False, None
        if in_order:
            self.asked = ""  # so no request is the cause
        elif elsewhere:
            self._outlived()
            self.asked = ""

    def given_back(self) -> None:
        self.submitted, self.begun, self.at, self.asked = False, False, None, ""

    def _outlived(self) -> None:
        """The verifier ended, and not in order, while it may have worked on this request."""
        if self.begun:
            self.attempt = 1 if len(self.token_ids) - self.had >= SETTLED_TOKENS else self.attempt + 1
        self.begun = False
