"""What a client takes from the model that is served: the sampling of requests that name none, and its thoughts."""

from dataclasses import replace

import pytest

from duoactor import AsyncClient, ChatTurn, Rendering, Sampling
from protocols.messages import Thinking
from tests.serve.script import scripted
from tests.world.cluster import Cluster
from tests.world.models import INFO, ToyLanguage, ToyTarget

OWN = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.0, "repetition_penalty": 1.1}
GREEDY = {name: getattr(Sampling(), name) for name in OWN}
TEXT = "<think>\nHm, hello.\n</think>\n\nHello."
QUESTION = [ChatTurn("user", "Hello")]


def client_of(cluster: Cluster) -> AsyncClient:
    return AsyncClient(cluster.settings.bind, network=cluster.network.host("client"), timeout=60)


@pytest.mark.parametrize(
    ("published", "options", "expected"),
    [
        (OWN, {}, OWN),
        (OWN, {"temperature": 0.0}, OWN | {"temperature": 0.0}),
        (OWN, {"sampling": Sampling(top_p=0.5)}, GREEDY | {"top_p": 0.5}),
        ({"temperature": 1.0}, {}, GREEDY),  # the model names none
    ],
)
async def test_requests_that_name_no_sampling_have_the_models_own(published, options, expected):
    target = ToyTarget(ToyLanguage(), info=replace(INFO, sampling=Sampling(**published)))
    async with Cluster(target=target) as cluster:
        client = client_of(cluster)
        answer = await client.generate("Hello", max_tokens=4, **options)
        status = await client.status()
        await client.aclose()
    assert {name: getattr(answer.sampling, name) for name in OWN} == expected
    assert status.target.sampling == target.info.sampling


@pytest.mark.parametrize("special", [(), (("<think>", 9), ("</think>", 10))])
async def test_thoughts_are_told_from_answers_whole_and_in_a_stream(special):
    async with scripted(TEXT, thinking=Thinking("<think>", "</think>", special=special)) as cluster:
        client = client_of(cluster)
        answer = await client.chat(QUESTION)
        assert (answer.reasoning, answer.content, answer.text) == ("Hm, hello.", "Hello.", TEXT)
        async with client.stream(messages=QUESTION) as stream:
            parts = [stream.split(chunk) async for chunk in stream]
        assert ["".join(some) for some in zip(*parts, strict=True)] == ["Hm, hello.", "Hello."]
        assert stream.request.sampling.skip_special_tokens is not bool(special)
        plain = await client.generate("Hello")
        assert (plain.reasoning, plain.content) == ("", TEXT)
        await client.aclose()


async def test_a_prompt_may_end_inside_a_thought_and_a_turn_may_be_continued_in_one():
    async with scripted("Hm.</think>Yes.", thinking=Thinking("<think>", "</think>", opens=True)) as cluster:
        client = client_of(cluster)
        assert (await client.chat(QUESTION)).reasoning == "Hm."
        off = await client.chat(QUESTION, rendering=Rendering(variables='{"enable_thinking": false}'))
        assert (off.reasoning, off.content) == ("", "Hm.</think>Yes.")
        begun = [*QUESTION, ChatTurn("assistant", "<think>So")]
        continued = await client.chat(begun, rendering=Rendering(generation_prompt=False, continue_final=True))
        assert (continued.reasoning, continued.content) == ("Hm.", "Yes.")
        await client.aclose()
