"""/v1/chat/completions with the stock openai client: text, choices, log-probabilities, usage, speculation."""

import asyncio
import json
import socket

import openai
import pytest
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from duoactor.serve import stream
from protocols.messages import ChatTurn, Sampling
from tests.serve.gateway import LANGUAGE, TURNS, served
from tests.world.cluster import Cluster
from tests.world.models import ToyCodec, ToyLanguage

PROMPT = ToyCodec().chat([ChatTurn("user", "Hello")])


def truth(**sampling) -> str:
    return ToyCodec().decode(LANGUAGE.continuation(PROMPT, Sampling(**sampling)))


async def test_the_openai_client_gets_the_targets_text_whole_and_streamed():
    async with served() as gateway:
        client = gateway.openai()
        model = (await client.models.list()).data[0].id
        ask = {"model": model, "messages": TURNS, "max_tokens": 20, "temperature": 0}
        whole = await client.chat.completions.create(**ask)
        stream = await client.chat.completions.create(**ask, stream=True)
        chunks = [chunk async for chunk in stream]
    assert whole.choices[0].message.content == truth(max_tokens=20)
    assert (whole.choices[0].finish_reason, whole.model) == ("length", "toy")
    assert whole.usage.model_dump(exclude_none=True) == {
        "prompt_tokens": 5,
        "completion_tokens": 20,
        "total_tokens": 25,
        "completion_tokens_details": {"reasoning_tokens": 0},
        "prompt_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
    }
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == truth(max_tokens=20)
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].choices[0].finish_reason == "length"
    assert {chunk.usage for chunk in chunks} == {None}


async def test_the_parts_of_a_message_are_joined_and_a_developer_speaks_as_the_system():
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    turns = []

    class Codec(ToyCodec):
        def chat(self, given, tools="", rendering=None, context=0):
            turns.extend(given)
            return super().chat([ChatTurn("user", turn.content.replace("\n", "")) for turn in given])

    async with served(Cluster(language=LANGUAGE, codec=Codec())) as gateway:
        answer = await gateway.chat(
            messages=[{"role": "developer", "content": "x"}, {"role": "user", "content": parts}]
        )
    assert answer.status_code == 200
    assert turns == [ChatTurn("system", "x"), ChatTurn("user", "Hel\nlo")]


async def test_the_last_chunk_has_the_usage_if_it_is_asked_for():
    async with served() as gateway:
        stream = await gateway.openai().chat.completions.create(
            model="toy", messages=TURNS, max_tokens=9, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 9
    assert {chunk.usage for chunk in chunks[:-1]} == {None}


@pytest.mark.parametrize("usage", [False, True])
async def test_the_last_chunk_and_the_body_say_how_well_the_drafts_did(usage):
    async with served() as gateway:
        gateway.cluster.start_drafter("d1")
        await gateway.cluster.connected("d1")
        ask = {"messages": TURNS, "max_tokens": 60, "ignore_eos": True, "method": "sps"}
        whole = (await gateway.post("/v1/chat/completions", **ask)).json()
        events = await gateway.events("/v1/chat/completions", **ask, stream_options={"include_usage": usage})
    for found in (whole["metrics"], events[-1]["metrics"]):
        drafts = found["speculative_decoding"]
        assert drafts["method"] == "sps"
        assert drafts["num_accepted_draft_tokens"] + drafts["num_spec_steps"] == 59
        assert drafts["num_draft_tokens"] >= drafts["num_accepted_draft_tokens"] > 0
        assert found["time_to_first_token_ms"] >= 0
        assert found["tokens_per_second"] > 0
    assert all("metrics" not in event for event in events[:-1])
    assert "accepted_prediction_tokens" not in str(whole)


async def test_speculation_is_chosen_by_request_and_never_changes_the_text():
    async with served() as gateway:
        gateway.cluster.start_drafter("d1")
        await gateway.cluster.connected("d1")
        client = gateway.openai()

        async def ask(**extra):
            answer = await client.chat.completions.create(
                model="toy", messages=TURNS, max_tokens=40, seed=4, extra_body={"ignore_eos": True, **extra}
            )
            return answer.choices[0].message.content, answer.model_extra["metrics"]["speculative_decoding"]

        plain, without = await ask(speculative=False)
        same, drafted = await ask(method="sps", num_speculative_tokens=3)
    assert plain == same == truth(max_tokens=40, temperature=1.0, seed=4)
    assert (without["method"], without["num_draft_tokens"]) == ("vanilla", 0)
    assert drafted["method"] == "sps"
    assert 0 < drafted["num_draft_tokens"] <= 3 * drafted["num_spec_steps"]


async def test_choices_of_a_seed_are_those_of_the_seeds_that_follow():
    async with served() as gateway:
        answer = await gateway.openai().chat.completions.create(
            model="toy", messages=TURNS, max_tokens=12, temperature=0.9, seed=7, n=3
        )
    expected = [truth(max_tokens=12, temperature=0.9, seed=seed) for seed in (7, 8, 9)]
    assert [choice.message.content for choice in answer.choices] == expected
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (5, 36)


async def test_streamed_choices_carry_their_index():
    async with served() as gateway:
        events = await gateway.events("/v1/chat/completions", messages=TURNS, max_tokens=12, seed=7, n=3)
    texts = ["", "", ""]
    for choice in (choice for event in events for choice in event["choices"]):
        texts[choice["index"]] += choice["delta"].get("content", "")
    assert texts == [truth(max_tokens=12, temperature=1.0, seed=seed) for seed in (7, 8, 9)]
    assert "metrics" in events[-1] and events[-1]["choices"][0]["finish_reason"] == "length"


async def test_without_a_seed_two_answers_differ():
    async with served() as gateway:
        texts = {(await gateway.chat(max_tokens=30)).json()["choices"][0]["message"]["content"] for _ in range(2)}
    assert len(texts) == 2


async def test_log_probabilities_name_every_token_and_are_left_out_otherwise():
    async with served() as gateway:
        whole = (await gateway.chat(max_tokens=5, logprobs=True, top_logprobs=0)).json()["choices"][0]
        events = await gateway.events("/v1/chat/completions", messages=TURNS, max_tokens=5, logprobs=True)
        without = (await gateway.chat()).json()["choices"][0]
    assert "".join(one["token"] for one in whole["logprobs"]["content"]) == whole["message"]["content"]
    assert {one["logprob"] for one in whole["logprobs"]["content"]} == {-0.5}
    assert all(bytes(one["bytes"]).decode() == one["token"] for one in whole["logprobs"]["content"])
    streamed = [
        one for event in events for c in event["choices"] for one in (c["logprobs"] or {"content": []})["content"]
    ]
    assert len(streamed) == 5
    assert without["logprobs"] is None


async def test_a_stop_string_ends_the_text_before_it_and_is_named():
    text = truth(max_tokens=40)
    async with served() as gateway:
        answer = (await gateway.chat(max_tokens=40, temperature=0, stop=text[10:12])).json()["choices"][0]
    assert answer["message"]["content"] == text[: text.index(text[10:12])]
    assert (answer["finish_reason"], answer["stop_reason"]) == ("stop", text[10:12])


async def test_an_answer_without_a_limit_goes_on_to_the_models_own_end():
    language = ToyLanguage(eos_rate=0.02)
    async with served(Cluster(language=language)) as gateway:
        answer = (await gateway.chat(max_tokens=None, temperature=0)).json()
    truth = language.continuation(PROMPT, Sampling(max_tokens=4000))
    assert answer["usage"]["completion_tokens"] == len(truth) < 4000
    assert answer["choices"][0]["finish_reason"] == "stop"


async def test_closing_a_stream_cancels_the_request():
    async with served() as gateway:
        stream = await gateway.openai().chat.completions.create(
            model="toy", messages=TURNS, max_tokens=4000, stream=True, extra_body={"ignore_eos": True}
        )
        async for _ in stream:
            break
        async with asyncio.timeout(60):
            assert (await gateway.gateway.status()).requests
            await stream.close()
            await gateway.idle()
            assert (await gateway.gateway.status()).requests == ()


async def test_a_client_that_does_not_read_is_given_up(monkeypatch):
    monkeypatch.setattr("duoactor.serve.stream.SEND_TIMEOUT_S", 0.1)
    async with served() as gateway:
        gateway.listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # its connections inherit it
        body = json.dumps({"messages": TURNS, "max_tokens": 4000, "stream": True, "ignore_eos": True}).encode()
        head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", gateway.port))
            client.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
            while not gateway.cluster.verifier.state.requests:
                await asyncio.sleep(0.001)
            async with asyncio.timeout(60):
                while gateway.gateway._open:  # the verifier works for others long before
                    await asyncio.sleep(0.001)
                answer = b""
                client.setblocking(False)
                while part := await asyncio.get_running_loop().sock_recv(client, 1 << 16):
                    answer += part
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"[DONE]" not in answer


async def test_what_came_while_a_client_read_slowly_is_sent_together(monkeypatch):
    sent, send = [], stream._body
    async with served() as gateway:

        async def slow(to, events, are_last):
            sent.append((events.count(b"data: "), are_last))
            if len(sent) == 1:
                (choices,) = gateway.gateway._open
                while choices.streams[0].unread < 19:
                    await asyncio.sleep(0)
            await send(to, events, are_last)

        monkeypatch.setattr(stream, "_body", slow)
        events = await gateway.events("/v1/chat/completions", messages=TURNS, temperature=0, max_tokens=20)
    assert "".join(event["choices"][0]["delta"].get("content") or "" for event in events) == truth(max_tokens=20)
    assert sent == [(2, False), (20, True)]


async def test_the_last_token_the_end_and_the_end_of_the_body_are_one_write():
    written, write = [], RequestResponseCycle.send

    async def noted(cycle, message):
        written.append((message.get("body", b"").count(b"data: "), message.get("more_body")))
        await write(cycle, message)

    async with served() as gateway:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(RequestResponseCycle, "send", noted)
            await gateway.events("/v1/chat/completions", messages=TURNS, temperature=0, max_tokens=1)
            await gateway.events("/v1/chat/completions", messages=TURNS, temperature=0, max_tokens=5)
    head, whole, *longer = written
    assert (head, whole) == ((0, None), (3, False))
    assert sum(events for events, _ in longer) == 7
    assert longer[-1][0] >= 2
    assert [more for _, more in longer].count(False) == 1


async def test_a_client_that_leaves_before_the_answer_is_whole_cancels_every_choice():
    async with served() as gateway:
        asking = asyncio.create_task(gateway.chat(max_tokens=4000, n=2, ignore_eos=True))
        while len(gateway.cluster.verifier.state.requests) < 2:
            await asyncio.sleep(0.001)
        asking.cancel()
        async with asyncio.timeout(60):
            await gateway.idle()


async def test_sixteen_streams_at_once_are_each_their_own():
    async with served() as gateway:
        client = gateway.openai()

        async def one(seed: int) -> str:
            stream = await client.chat.completions.create(
                model="toy", messages=TURNS, max_tokens=30, seed=seed, stream=True
            )
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        texts = await asyncio.gather(*(one(seed) for seed in range(16)))
    assert texts == [truth(max_tokens=30, temperature=1.0, seed=seed) for seed in range(16)]


async def test_a_killed_drafter_changes_no_text():
    async with served() as gateway:
        gateway.cluster.start_drafter("d1")
        await gateway.cluster.connected("d1")
        stream = await gateway.openai().chat.completions.create(
            model="toy", messages=TURNS, max_tokens=200, temperature=0, stream=True, extra_body={"ignore_eos": True}
        )
        text = ""
        async for chunk in stream:
            text += chunk.choices[0].delta.content or ""
            if len(text) > 20 and "d1" not in gateway.cluster.killed:
                await gateway.cluster.kill("d1")
    assert text == truth(max_tokens=200, ignore_eos=True)


async def test_the_openai_clients_own_errors_are_raised():
    async with served(keys=("secret",)) as gateway:
        with pytest.raises(openai.AuthenticationError):
            await gateway.openai("wrong").chat.completions.create(model="toy", messages=TURNS)
        with pytest.raises(openai.NotFoundError, match="does not exist"):
            await gateway.openai("secret").chat.completions.create(model="gpt-4", messages=TURNS)
        with pytest.raises(openai.BadRequestError) as caught:
            await gateway.openai("secret").chat.completions.create(model="toy", messages=TURNS, temperature=-1)
    assert (caught.value.param, caught.value.type) == ("temperature", "invalid_request_error")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prediction_is_a_draft_that_changes_no_token_and_is_counted_in_the_usage(stream):
    ask = {"max_tokens": 40, "ignore_eos": True, "seed": 5, "stream_options": {"include_usage": True}}
    async with served(Cluster(language=LANGUAGE, forward_s=0.003)) as gateway:
        plain = (await gateway.chat(**ask)).json()
        text = plain["choices"][0]["message"]["content"]
        edited = f"{text[:10]}??{text[12:25]}{text[30:]}"
        parts = [{"type": "text", "text": edited}]
        asked = {"messages": TURNS, **ask, "prediction": {"type": "content", "content": parts}}
        if stream:
            events = await gateway.events("/v1/chat/completions", **asked)
            (*made, last) = events
            answer = "".join(one["choices"][0]["delta"].get("content", "") for one in made)
        else:
            last = (await gateway.post("/v1/chat/completions", **asked)).json()
            answer = last["choices"][0]["message"]["content"]
    assert answer == text
    details = last["usage"]["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] + details["rejected_prediction_tokens"] == len(edited)
    assert details["accepted_prediction_tokens"] >= 25
    assert last["metrics"]["speculative_decoding"]["num_accepted_draft_tokens"] > 0
    assert "accepted_prediction_tokens" not in plain["usage"]["completion_tokens_details"]
