"""Responses that are asked for again, or gone on with: the latest ones, in memory, each for its own API key."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import msgspec

from duoactor.serve.errors import ApiError
from duoactor.serve.openai import responses
from duoactor.serve.openai.items import turns
from duoactor.serve.question import Question
from duoactor.serve.tool_calls.events import Parser
from protocols.messages import ChatTurn

MOST = 1024  # responses
MOST_BYTES = 32 * 1024 * 1024  # memory of all of them


class Conversation(NamedTuple):
    """The turns, without instructions, which the API does not carry over, and the JSON of the last answer."""

    turns: tuple[ChatTurn, ...]
    body: bytes


class Kept:
    def __init__(self, most: int = MOST, most_bytes: int = MOST_BYTES) -> None:
        self._most, self._room = most, most_bytes
        self._found: OrderedDict[tuple[str, str], Conversation] = OrderedDict()  # keyed by the key's holder and id

    def keep(self, holder: str, ident: str, conversation: Conversation) -> None:
        """Keep a conversation. The oldest make room."""
        self._found[holder, ident] = conversation
        self._room -= held(holder, ident, conversation)
        while self._found and (self._room < 0 or len(self._found) > self._most):
            self._drop(*next(iter(self._found)))

    def found(self, holder: str, ident: str) -> Conversation:
        """A kept conversation. ApiError (404) if it is not kept (any more)."""
        if (holder, ident) not in self._found:
            raise ApiError(404, f"no response {ident} is kept here", code="response_not_found")
        return self._found[holder, ident]

    def drop(self, holder: str, ident: str) -> None:
        """Keep it no longer. ApiError as :meth:`found`."""
        self.found(holder, ident)
        self._drop(holder, ident)

    def _drop(self, holder: str, ident: str) -> None:
        self._room += held(holder, ident, self._found.pop((holder, ident)))


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
    holder: str  # owner of the API key
    asked: tuple[ChatTurn, ...] = ()

    def parse(self, body: bytes) -> tuple[responses.ResponsesRequest, Question]:
        wanted, question = responses.parse(body)
        self.asked = turns("", wanted.input)
        if wanted.previous_response_id:
            self.asked = (*self._earlier(wanted.previous_response_id), *self.asked)
        instructions = turns(wanted.instructions, ())
        return wanted, replace(question, prompts=((*instructions, *self.asked),))

    def _earlier(self, ident: str) -> tuple[ChatTurn, ...]:
        try:
            return self.kept.found(self.holder, ident).turns
        except ApiError as error:
            detail = f"{error}: send the whole conversation, without previous_response_id"
            raise ApiError(404, detail, param="previous_response_id", code="previous_response_not_found") from None

    def answer(
        self, wanted: responses.ResponsesRequest, model: str, parser: Callable[[], Parser]
    ) -> responses.ResponsesAnswer:
        made = responses.ResponsesAnswer(wanted, model, parser)
        made.ended = partial(self._keep, made) if wanted.store else None
        return made

    def _keep(self, answer: responses.ResponsesAnswer, made: responses.Response) -> None:
        conversation = Conversation((*self.asked, answer.turn()), msgspec.json.encode(made))
        self.kept.keep(self.holder, answer.id, conversation)
