"""/v1/completions with the stock openai client, /tokenize and /detokenize as vLLM's users call them."""

import re

import pytest

from protocols.messages import Sampling, TokenLogprobs
from tests.serve.gateway import LANGUAGE, served
from tests.world.cluster import Cluster
from tests.world.models import ToyCodec

CODEC = ToyCodec()


def truth(prompt: str, **sampling) -> str:
    return CODEC.decode(LANGUAGE.continuation(CODEC.encode(prompt), Sampling(**sampling)))


async def test_a_prompt_is_continued_whole_and_streamed():
    async with served() as gateway:
        client = gateway.openai()
        whole = await client.completions.create(model="toy", prompt="Once", temperature=0)
        stream = await client.completions.create(model="toy", prompt="Once", temperature=0, max_tokens=30, stream=True)
        chunks = [chunk async for chunk in stream]
    assert whole.choices[0].text == truth("Once", max_tokens=16)  # OpenAI's default length
    assert whole.object == "text_completion"
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (4, 16)
    assert "".join(chunk.choices[0].text for chunk in chunks) == truth("Once", max_tokens=30)
    assert chunks[-1].choices[0].finish_reason == "length"
    assert chunks[-1].model_extra["metrics"]["tokens_per_second"] > 0


@pytest.mark.parametrize(
    "prompt", [["Once", "Then"], [CODEC.encode("Once"), CODEC.encode("Then")], CODEC.encode("Once"), "Once"]
)
async def test_prompts_are_texts_or_tokens_one_or_several_and_choices_stand_in_their_order(prompt):
    texts = ["Once", "Then"] if isinstance(prompt[0], list) or len(prompt) == 2 else ["Once"]
    async with served() as gateway:
        answer = await gateway.openai().completions.create(model="toy", prompt=prompt, max_tokens=9, seed=3, n=2)
    expected = [truth(text, max_tokens=9, temperature=1.0, seed=seed) for text in texts for seed in (3, 4)]
    assert [choice.text for choice in answer.choices] == expected
    assert answer.usage.prompt_tokens == 4 * len(texts)
    assert [choice.index for choice in answer.choices] == list(range(len(expected)))


@pytest.mark.parametrize("prompt", ["", [], [[]], [1, "x"], {"a": 1}, [None], [1.5], [[1], "x"], 7])
async def test_other_prompts_are_refused(prompt):
    async with served() as gateway:
        answer = await gateway.post("/v1/completions", prompt=prompt)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["type"] == "invalid_request_error"


async def test_log_probabilities_say_where_each_token_begins():
    async with served() as gateway:
        whole = (await gateway.post("/v1/completions", prompt="Once", max_tokens=6, logprobs=0, seed=1)).json()
        events = await gateway.events("/v1/completions", prompt="Once", max_tokens=6, logprobs=0, seed=1)
    found = whole["choices"][0]["logprobs"]
    assert "".join(found["tokens"]) == whole["choices"][0]["text"]
    assert found["text_offset"] == [0, 1, 2, 3, 4, 5]
    assert found["token_logprobs"] == [-0.5] * 6
    assert [at for event in events for at in event["choices"][0]["logprobs"]["text_offset"]] == [0, 1, 2, 3, 4, 5]


async def test_the_gateway_counts_tokens_as_the_verifier_does():
    async with served() as gateway:
        text = await gateway.post("/tokenize", model="toy", prompt="Once", return_token_strs=True)
        turns = await gateway.post("/tokenize", messages=[{"role": "user", "content": "Once"}])
        back = await gateway.post("/detokenize", tokens=text.json()["tokens"])
        both = await gateway.post("/tokenize", prompt="a", messages=[])
        outside = await gateway.post("/detokenize", tokens=[64])
        negative = await gateway.post("/detokenize", tokens=[-1])
    ids = CODEC.encode("Once")
    assert text.json() == {"count": 4, "max_model_len": 4096, "tokens": ids, "token_strs": list("Once")}
    assert turns.json()["tokens"] == ids
    assert back.json() == {"prompt": "Once", "content": "Once"}
    assert [both.status_code, outside.status_code] == [400, 400]
    assert negative.json()["error"]["message"] == "tokens[0]: expected int >= 0"


class Halves(ToyCodec):
    """Every token is a half of a character, and is shown as U+FFFD."""

    def pieces(self, ids):
        return ["\ufffd" for _ in ids]

    def octets(self, ids):
        return [bytes([0x80 + token]) for token in ids]


async def test_tokens_that_are_parts_of_characters_are_told_apart_by_their_bytes(monkeypatch):
    five = ((2, 3, 4, 5, 6), (-1.0,) * 5)
    monkeypatch.setattr("tests.world.models.TokenLogprobs", lambda chosen: TokenLogprobs(chosen, *five))
    async with served(Cluster(language=LANGUAGE, codec=Halves())) as gateway:
        text = await gateway.post("/v1/completions", prompt="Hello", max_tokens=4, logprobs=5)
        chat = await gateway.chat(logprobs=True, top_logprobs=5)
    logprobs = text.json()["choices"][0]["logprobs"]
    assert [len(top) >= 5 for top in logprobs["top_logprobs"]] == [True] * 4
    assert all(re.fullmatch(r"bytes:\\x[0-9a-f]{2}", name) for top in logprobs["top_logprobs"] for name in top)
    assert all(name in top for name, top in zip(logprobs["tokens"], logprobs["top_logprobs"], strict=True))
    for token in chat.json()["choices"][0]["logprobs"]["content"]:
        assert len({tuple(top["bytes"]) for top in token["top_logprobs"]}) == 5
