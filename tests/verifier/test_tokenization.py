"""Questions about text and tokens are answered beside the decoding, bounded, and never end the verifier."""

import asyncio
from types import SimpleNamespace

import pytest

from actors.cost import CostModel
from actors.verifier.compute import InlineCompute
from actors.verifier.context import Equipment
from actors.verifier.tokenization import MAX_WAITING, Tokenization
from duoactor import AsyncClient, ChatTurn, RequestError
from protocols.messages import Detokenize, Failed, Tokenize, Tokenized
from tests.world.caller import ADDRESS
from tests.world.clock import run
from tests.world.cluster import Cluster
from tests.world.models import EOS, ToyCodec, ToyLanguage, ToyTarget


def ask(*questions, codec=None):
    """The answers that the verifier gives to one client."""
    answers = []

    async def go():
        equipment = Equipment(ToyTarget(ToyLanguage()), codec or ToyCodec(), CostModel({1: 1000.0}), InlineCompute())
        texts = Tokenization(SimpleNamespace(equipment=equipment, send=lambda peer, answer: answers.append(answer)))
        for question in questions:
            texts.ask(b"peer", question)
        while len(answers) < len(questions):
            await asyncio.sleep(0.01)

    run(go())
    return answers


def test_a_text_a_conversation_and_ids_have_the_same_tokens():
    text = chr(68) + chr(72)
    expected = ((5, 9), (chr(68), chr(72)), text)
    answers = ask(
        Tokenize("a", text),
        Tokenize("b", messages=(ChatTurn("user", chr(68)), ChatTurn("user", chr(72)))),
        Detokenize("c", (5, 9)),
    )
    assert answers == [Tokenized(rid, *expected) for rid in "abc"]


@pytest.mark.parametrize(
    "question",
    [
        Detokenize("r", (64,)),
        Detokenize("r", (-1,)),
        Tokenize("r", "x" * (1 << 23)),
        Tokenize("r", "x", messages=(ChatTurn("user", "y"),)),
    ],
)
def test_what_cannot_be_tokenized_is_refused(question):
    (answer,) = ask(question)
    assert isinstance(answer, Failed)
    assert answer.code == "bad_request"


def test_a_tokenizer_that_fails_fails_the_question_only():
    class Broken(ToyCodec):
        def encode(self, text):
            raise ValueError("no such byte") if text == "?" else None

    assert [type(a) for a in ask(Tokenize("a", "?"), Detokenize("b", (5,)), codec=Broken())] == [Failed, Tokenized]


def test_more_questions_than_may_wait_are_refused_as_overload_and_later_ones_are_not():
    first = ask(*[Detokenize(str(i), (5,)) for i in range(MAX_WAITING + 3)])
    refused = [a for a in first if isinstance(a, Failed)]
    assert [a.code for a in refused] == ["overloaded"] * 3


def test_a_client_asks_while_its_own_stream_runs():
    async def go():
        async with (
            Cluster(language=ToyLanguage()) as cluster,
            AsyncClient(ADDRESS, network=cluster.network.host("c")) as client,
        ):
            stream = client.stream((5, 9), max_tokens=50)
            first = await anext(stream)
            asked = await client.tokenize("hi"), await client.detokenize([5, 9])
            rest = [chunk async for chunk in stream]
            with pytest.raises(RequestError, match="vocabulary"):
                await client.detokenize([10_000])
            return first, asked, rest

    first, (hi, ids), rest = run(go())
    assert (hi.text, hi.token_ids, ids.text) == ("hi", (41, 42), chr(68) + chr(72))
    assert first.prompt_tokens == 2
    assert {chunk.prompt_tokens for chunk in rest} == {0}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"max_tokens": 5}, None),
        ({"stop_token_ids": (7,), "max_tokens": 4000}, 7),
        ({"stop": (chr(63 + 7), "zzz"), "max_tokens": 4000}, chr(63 + 7)),
    ],
)
def test_the_last_chunk_says_what_ended_it(options, expected):
    async def go():
        async with (
            Cluster(language=ToyLanguage()) as cluster,
            AsyncClient(ADDRESS, network=cluster.network.host("c")) as client,
        ):
            return [chunk async for chunk in client.stream((5, 9), ignore_eos=True, **options)]

    chunks = run(go())
    assert chunks[-1].stop_reason == expected
    assert {chunk.stop_reason for chunk in chunks[:-1]} <= {None}


def test_the_models_own_end_has_no_stop_reason():
    async def go():
        async with (
            Cluster(language=ToyLanguage(eos_rate=0.2)) as cluster,
            AsyncClient(ADDRESS, network=cluster.network.host("c")) as client,
        ):
            return [chunk async for chunk in client.stream((5, 9), max_tokens=4000)]

    last = run(go())[-1]
    assert (last.finish_reason, last.stop_reason, last.token_ids[-1]) == ("stop", None, EOS)
