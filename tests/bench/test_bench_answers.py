"""How the benchmark asks the verifier, against a client whose streams are made up."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from duoactor.bench.answers import Ours
from duoactor.bench.methods import BY_NAME
from protocols.errors import RequestError
from protocols.messages import ChatTurn, Chunk, FailureCode, FinishReason, RequestStats, Sampling

TURNS = (ChatTurn("user", "Once"), ChatTurn("assistant", "upon"), ChatTurn("user", "a time"))


class BaseModel:
    """A target without a chat template, and without a datastore."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def stream(
        self, prompt: str = "", *, messages: Any = (), method: str, **options: Any
    ) -> AsyncIterator[Chunk]:
        self.asked.append("messages" if messages else prompt)
        if messages or method == "rest":
            raise RequestError(FailureCode.UNSUPPORTED, "not here")
        yield Chunk("r", 0, (1,), ("x",), (False,), FinishReason.LENGTH, stats=RequestStats())


async def test_a_target_without_a_chat_template_is_asked_for_one_only_once():
    client = BaseModel()
    ours = Ours(client)  # type: ignore[arg-type]
    for _ in range(2):
        answer = await ours.answer(BY_NAME["vanilla"], TURNS, Sampling())
        assert answer.text == "x"
    assert client.asked == ["messages", *["Once\n\nupon\n\na time"] * 2]


async def test_a_method_that_is_not_supported_says_nothing_about_templates():
    ours = Ours(BaseModel())  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="not here"):
        await ours.answer(BY_NAME["rest"], TURNS, Sampling())
    assert not ours.plain_prompts
