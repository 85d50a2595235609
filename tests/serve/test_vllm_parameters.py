"""Parameters of vLLM's that show or cut tokens, and stop strings that stay in the answer: the same by every method."""

import pytest

from protocols.messages import Method
from tests.serve.gateway import TURNS, served
from tests.serve.script import scripted
from tests.world.models import ToyCodec

CODEC = ToyCodec()


async def test_token_ids_are_told_whole_and_streamed():
    asked = {"temperature": 0, "max_tokens": 6, "return_token_ids": True}
    async with served() as gateway:
        chat = (await gateway.chat(**asked)).json()
        text = (await gateway.post("/v1/completions", prompt=["Hi", "Ho"], **asked)).json()
        chat_events = await gateway.events("/v1/chat/completions", messages=TURNS, **asked)
        text_events = await gateway.events("/v1/completions", prompt="Hi", **asked)
        plain = (await gateway.chat(temperature=0)).json()
    assert chat["prompt_token_ids"] == CODEC.encode("Hello")
    assert CODEC.decode(chat["choices"][0]["token_ids"]) == chat["choices"][0]["message"]["content"]
    assert [one["prompt_token_ids"] for one in text["choices"]] == [CODEC.encode("Hi"), CODEC.encode("Ho")]
    assert [CODEC.decode(one["token_ids"]) for one in text["choices"]] == [one["text"] for one in text["choices"]]
    for events, whole in ((chat_events, chat["choices"][0]), (text_events, text["choices"][0])):
        ids = [token for event in events for choice in event["choices"] for token in choice.get("token_ids", [])]
        assert ids == whole["token_ids"]
    assert [event["prompt_token_ids"] for event in chat_events if "prompt_token_ids" in event] == [
        chat["prompt_token_ids"]
    ]
    assert "prompt_token_ids" not in plain and "token_ids" not in plain["choices"][0]


async def test_a_prompt_is_cut_to_its_last_tokens():
    asked = {"temperature": 0, "max_tokens": 6}
    async with served() as gateway:
        cut = (await gateway.post("/v1/completions", prompt="Hello", truncate_prompt_tokens=3, **asked)).json()
        same = (await gateway.post("/v1/completions", prompt="llo", **asked)).json()
        chat = (await gateway.chat(truncate_prompt_tokens=3, temperature=0, max_tokens=6)).json()
        short = (await gateway.chat(truncate_prompt_tokens=50, temperature=0, max_tokens=6)).json()
        fits = await gateway.post("/v1/completions", prompt=[5] * 5000, truncate_prompt_tokens=-1, **asked)
        wrong = await gateway.chat(truncate_prompt_tokens=0)
    assert cut["choices"] == same["choices"] and cut["usage"]["prompt_tokens"] == 3
    assert chat["choices"][0]["message"]["content"] == same["choices"][0]["text"]
    assert short["usage"]["prompt_tokens"] == 5
    assert fits.json()["usage"]["prompt_tokens"] == 4096 - 6
    assert wrong.status_code == 400 and wrong.json()["error"]["param"] == "truncate_prompt_tokens"


@pytest.mark.parametrize("method", [Method.VANILLA, Method.AUTO, Method.PLD, Method.SPS])
async def test_a_stop_string_is_part_of_the_answer_where_it_is_asked_for(method: Method):
    asked = {"messages": TURNS, "stop": ["x"], "include_stop_str_in_output": True, "method": method}
    async with served(scripted("One two, box and more.", piece=4)) as gateway:
        whole = (await gateway.post("/v1/chat/completions", **asked)).json()["choices"][0]
        events = await gateway.events("/v1/chat/completions", **asked)
        without = (await gateway.post("/v1/chat/completions", **{**asked, "include_stop_str_in_output": False})).json()
    assert whole["message"]["content"] == "One two, box" and whole["stop_reason"] == "x"
    said = [choice["delta"].get("content") or "" for event in events for choice in event["choices"]]
    assert "".join(said) == "One two, box"
    assert without["choices"][0]["message"]["content"] == "One two, bo"


async def test_an_answer_has_its_least_length_and_no_bad_word():
    asked = {"messages": TURNS, "max_tokens": 12, "temperature": 0}
    async with served() as gateway:
        free = (await gateway.post("/v1/chat/completions", **asked)).json()["choices"][0]["message"]["content"]
        stopped = {**asked, "stop": [free[1], free[6]]}
        short = (await gateway.post("/v1/chat/completions", **stopped)).json()["choices"][0]["message"]["content"]
        least = (await gateway.post("/v1/chat/completions", **stopped, min_tokens=5)).json()["choices"][0]
        asked |= {"bad_words": [free[3:5]]}
        chat = (await gateway.post("/v1/chat/completions", **asked)).json()["choices"][0]["message"]["content"]
        prompt = {"prompt": "Hello", "max_tokens": 12, "temperature": 0, "bad_words": [free[3:5]]}
        text = (await gateway.post("/v1/completions", **prompt)).json()["choices"][0]["text"]
        del prompt["max_tokens"]
        llama = (await gateway.post("/completion", **prompt, n_predict=12)).json()["content"]
    assert len(short) < 5 and free.startswith(least["message"]["content"]) and len(least["message"]["content"]) >= 5
    assert chat == text == llama and free[3:5] not in chat and chat[:4] == free[:4]
