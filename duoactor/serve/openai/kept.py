"""Conversations that ``previous_response_id`` goes on with: the latest ones, in memory, each for its own API key."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import msgspec

from duoactor.serve.errors import ApiError
from duoactor.serve.openai import responses
from duoactor.serve.openai.items import turns
from duoactor.serve.question import Question
from duoactor.serve.tool_calls.events import Parser
from protocols.messages import ChatTurn

MOST = 1024  # conversations
MOST_BYTES = 32 * 1024 * 1024  # memory of all of them


class Kept:
    def __init__(self, most: int = MOST, most_bytes: int = MOST_BYTES) -> None:
        self._most, self._room = most, most_bytes
        self._turns: OrderedDict[tuple[str, str], tuple[ChatTurn, ...]] = OrderedDict()  # by key's holder and id

    def keep(self, holder: str, ident: str, turns: tuple[ChatTurn, ...]) -> None:
        """Keep a conversation without its instructions, which the API does not carry over. The oldest make room."""
        self._turns[holder, ident] = turns
        self._room -= held(holder, ident, turns)
        while self._turns and (self._room < 0 or len(self._turns) > self._most):
            (holder, ident), turns = self._turns.popitem(last=False)
            self._room += held(holder, ident, turns)

    def found(self, holder: str, ident: str) -> tuple[ChatTurn, ...]:
        """A kept conversation. ApiError (404) if it is not kept (any more)."""
        turns = self._turns.get((holder, ident))
        if turns is None:
            detail = f"no response {ident} is kept here: send the whole conversation, without previous_response_id"
            raise ApiError(404, detail, param="previous_response_id", code="previous_response_not_found")
        return turns


def held(*parts: object) -> int:
    """Bytes of memory of a conversation. Turns that it shares with another are counted for each."""
    whole = 0
    for part in parts:
        whole += sys.getsizeof(part)
        if isinstance(part, tuple):
            whole += held(*part)
        elif isinstance(part, msgspec.Struct):
            whole += held(*msgspec.structs.astuple(part))
    return whole


@dataclass(slots=True)
class Keeping:
    """One request of the Responses API: the earlier turns, and its answer, which is kept unless ``store`` is
    false."""

    kept: Kept
    holder: str  # of the API key
    asked: tuple[ChatTurn, ...] = ()

    def parse(self, body: bytes) -> tuple[responses.ResponsesRequest, Question]:
        wanted, question = responses.parse(body)
        self.asked = turns("", wanted.input)
        if wanted.previous_response_id:
            self.asked = (*self.kept.found(self.holder, wanted.previous_response_id), *self.asked)
        instructions = turns(wanted.instructions, ())
        return wanted, replace(question, prompts=((*instructions, *self.asked),))

    def answer(
        self, wanted: responses.ResponsesRequest, model: str, parser: Callable[[], Parser]
    ) -> responses.ResponsesAnswer:
        made = responses.ResponsesAnswer(wanted, model, parser)
        made.ended = partial(self._keep, made) if wanted.store else None
        return made

    def _keep(self, answer: responses.ResponsesAnswer) -> None:
        self.kept.keep(self.holder, answer.id, (*self.asked, answer.turn()))
