"""How conversations become prompts: what the verifier is asked to render, by each API's own words."""

import asyncio

import pytest

from protocols.messages import Rendering
from tests.serve.gateway import LANGUAGE, TURNS, served
from tests.serve.script import scripted
from tests.world.cluster import Cluster
from tests.world.models import ToyCodec

BEGUN = [*TURNS, {"role": "assistant", "content": "It is"}]
OPEN, NOTHING = Rendering(False, True), Rendering(False)
CLAUDE = {"model": "toy", "max_tokens": 8}


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        ("/v1/chat/completions", {"messages": BEGUN}, Rendering()),
        ("/v1/chat/completions", {"messages": BEGUN, "continue_final_message": True}, OPEN),
        (
            "/v1/chat/completions",
            {"messages": BEGUN, "continue_final_message": True, "add_generation_prompt": False},
            OPEN,
        ),
        ("/v1/chat/completions", {"messages": BEGUN, "add_generation_prompt": False}, NOTHING),
        ("/v1/chat/completions", {"messages": [*TURNS, {**BEGUN[-1], "prefix": True}]}, OPEN),
        ("/v1/messages", {"messages": TURNS, **CLAUDE}, Rendering()),
        ("/v1/messages", {"messages": BEGUN, **CLAUDE}, Rendering(True, True)),
        ("/v1/messages/count_tokens", {"messages": BEGUN, "model": "toy"}, Rendering(True, True)),
        ("/tokenize", {"messages": BEGUN, "continue_final_message": True}, OPEN),
        ("/tokenize", {"messages": BEGUN, "add_generation_prompt": False}, NOTHING),
    ],
)
async def test_an_assistants_last_message_is_continued_where_the_api_says_so(path, body, expected):
    async with served(scripted("fine")) as gateway:
        answer = await gateway.post(path, **body)
    assert answer.status_code == 200, answer.text
    assert gateway.cluster.codec.renderings == [expected]


async def test_a_gateway_can_make_special_tokens_in_messages_plain_text():
    async with served(scripted("fine"), escape=True) as gateway:
        await gateway.chat()
        await gateway.post("/tokenize", messages=TURNS)
    assert gateway.cluster.codec.renderings == [Rendering(plain=True)] * 2


class WithBos(ToyCodec):
    def encode(self, text, special_tokens=True, context=0):
        return [1, *super().encode(text)] if special_tokens else super().encode(text)


async def test_tokenize_puts_no_special_tokens_in_front_where_that_is_asked_for():
    async with served(Cluster(language=LANGUAGE, codec=WithBos())) as gateway:
        usual = (await gateway.post("/tokenize", prompt="AB")).json()["tokens"]
        bare = (await gateway.post("/tokenize", prompt="AB", add_special_tokens=False)).json()["tokens"]
    assert usual == [1, *bare]


class Older(ToyCodec):
    def pieces(self, ids):
        return ["old" for _ in ids]


async def test_a_verifier_that_comes_back_with_another_model_brings_its_own_words():
    async with served(Cluster(language=LANGUAGE, codec=Older())) as gateway:
        before = await gateway.chat(logprobs=True, temperature=0)
        gateway.cluster.codec = ToyCodec()
        gateway.cluster.crash_verifier()
        await asyncio.gather(gateway.cluster.tasks["verifier"], return_exceptions=True)
        gateway.cluster.start_verifier()
        after = await gateway.chat(logprobs=True, temperature=0)
    said = [[one["token"] for one in answer.json()["choices"][0]["logprobs"]["content"]] for answer in (before, after)]
    assert said[0] == ["old"] * 8 and "old" not in said[1]
