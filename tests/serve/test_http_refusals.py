"""What the gateway refuses: each with the status, the shape and the parameter's name that OpenAI's clients expect."""

import asyncio
import codecs
import difflib
import json
import re
from unittest.mock import patch

import pytest

from duoactor.client.stream import AsyncStream
from duoactor.serve.errors import ApiError
from duoactor.serve.fields import LONGEST_NAME, MOST_SPELT
from duoactor.serve.openai.chat import ChatRequest
from duoactor.serve.openai.completions import CompletionRequest
from duoactor.serve.parameters import convert, decode, read
from duoactor.serve.structure import shape_of
from protocols.limits import MAX_TURNS
from tests.serve.gateway import TURNS, served

CHAT = "/v1/chat/completions"
F = {"type": "function", "function": {"name": "f"}}
CALL = {"id": "1", "function": {"name": "f", "arguments": "{"}}

REFUSED = [
    ({"tools": [{"type": "function", "function": {"description": "f"}}]}, "tools[0].function.name"),
    ({"tools": [F, {"type": "function", "function": {"name": "g h"}}]}, "tools[1].function.name"),
    ({"tools": [F, F]}, "tools[1].function.name"),
    ({"tools": [{"type": "function", "function": {"name": "f", "parameters": "x"}}]}, "tools[0].function.parameters"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": [F], "tool_choice": "always"}, "tool_choice"),
    ({"tools": [F], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
    ({"tools": [F], "tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
    ({"tools": [F], "tool_choice": {"type": "custom"}}, "tool_choice.type"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema.schema"),
    ({"structured_outputs": {}}, "structured_outputs"),
    ({"structured_outputs": {"regex": "a", "json": {}}}, "structured_outputs"),
    ({"structured_outputs": {"json": "["}}, "structured_outputs.json"),
    ({"structured_outputs": {"regexp": "a"}}, "structured_outputs.regexp"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
    ({"structured_outputs": {"json": "no"}}, "structured_outputs.json"),
    ({"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}}, "structured_outputs.regex"),
    ({"guided_json": "no"}, "structured_outputs.json"),
    ({"guided_whitespace_pattern": "x"}, "guided_whitespace_pattern"),
    ({"guided_regex": "a", "grammar": "start: /a/"}, "structured_outputs"),
    ({"guided_regex": "a", "structured_outputs": {"regex": "b"}}, "structured_outputs"),
    ({"n_predict": 5}, "max_tokens"),
    ({"options": {"temperature": 1}, "temperature": 0}, "temperature"),
    ({"echo": True}, "echo"),
    ({"suffix": "end"}, "suffix"),
    ({"best_of": 3}, "best_of"),
    ({"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
    ({"min_tokens": 4, "response_format": {"type": "json_object"}}, "min_tokens"),
    ({"bad_words": ["a", ""]}, "bad_words"),
    ({"audio": {"voice": "x"}}, "audio"),
    ({"temprature": 0.5}, "temprature"),
    ({"temperature": "warm"}, "temperature"),
    ({"temperature": -0.5}, "temperature"),
    ({"temperature": 1e9}, "temperature"),
    ({"max_tokens": 8.5}, "max_tokens"),
    ({"stop_token_ids": [5] * 1025}, "stop_token_ids"),
    ({"top_p": -1}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"min_p": 2}, "min_p"),
    ({"presence_penalty": 3}, "presence_penalty"),
    ({"n": 0}, "n"),
    ({"n": 65}, "n"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_completion_tokens": -2}, "max_completion_tokens"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"logit_bias": {"abc": 1}}, "logit_bias"),
    ({"logit_bias": {"9999": 1}}, "logit_bias"),
    ({"logit_bias": {"5": 101}}, "logit_bias"),
    ({"stop": ["x"] * 17}, "stop"),
    ({"seed": 1 << 70}, "seed"),
    ({"method": "magic"}, "method"),
    ({"speculative": False, "method": "sps"}, "method"),
    ({"num_speculative_tokens": 0}, "num_speculative_tokens"),
    ({"stream_options": {"include_usage": "yes"}}, "stream_options.include_usage"),
    ({"messages": []}, "messages"),
    ({"typical_p": 0.9}, "typical_p"),
    ({"mirostat": 2, "mirostat_tau": 5}, "mirostat"),
    ({"stream_options": {"include_usages": True}}, "stream_options.include_usages"),
    ({"response_format": {"type": "json_object", "shcema": {}}}, "response_format.shcema"),
    ({"response_format": {"type": "json_object", "example": {}}}, "response_format.example"),
    ({"messages": [{"role": "user", "contents": "x"}]}, "messages[0].contents"),
    ({"messages": [{"role": "user", "content": "x", "audio": {"id": "1"}}]}, "messages[0].audio"),
    ({"messages": [{"role": "assistant", "content": "x", "prefix": True}, *TURNS]}, "messages[0].prefix"),
    ({"continue_final_message": True}, "continue_final_message"),
    ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
    ({"messages": [{"role": "function", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
    ({"messages": [{"role": "user", "content": "x", "tool_calls": [CALL]}]}, "messages[0].tool_calls"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
    ({"messages": [*TURNS, {"role": "assistant", "tool_calls": [{"id": "1"}]}]}, "messages[1].tool_calls[0].function"),
    ({"format": "yaml"}, "response_format.json_schema.schema"),
    ({"messages": [{"role": "tool", "content": "x", "tool_call_id": "i" * 257}]}, "messages[0].tool_call_id"),
    ({"messages": [{"role": "assistant", "function_call": {"name": "f"}}]}, "messages[0].function_call"),
]  # fmt: skip


async def test_what_is_not_supported_is_refused_by_name():
    async with served() as gateway:
        for changes, param in REFUSED:
            answer = await gateway.chat(**changes)
            assert answer.status_code == 400, (changes, answer.text)
            error = answer.json()["error"]
            assert error["param"] == param, (changes, error)
            assert error["type"] == "invalid_request_error"
            assert param.split(".")[-1].split("]")[-1] in error["message"]
        assert gateway.cluster.verifier.state.counters["bad_requests"] == 0  # none of them reached the verifier


async def test_what_changes_nothing_is_tolerated_and_null_is_nothing():
    idle = {
        "user": "me", "metadata": {"a": "b"}, "store": False, "tools": [], "tool_choice": "auto", "service_tier": "x",
        "response_format": {"type": "text"}, "echo": False, "best_of": 1, "parallel_tool_calls": True, "top_k": -1,
        "temperature": None, "stop": None, "logit_bias": None, "function_call": None, "foo": None,
    }  # fmt: skip
    async with served() as gateway:
        answer = await gateway.chat(**idle)
    assert answer.status_code == 200, answer.text


async def test_integers_may_be_written_with_a_point_as_json_schema_has_them():
    plain = {"max_tokens": 8, "seed": 1, "n": 2, "top_k": 5, "stop_token_ids": [7, 9], "best_of": 1, "min_tokens": 0}
    pointed = {name: [float(one) for one in v] if isinstance(v, list) else float(v) for name, v in plain.items()}
    ids = [[5, 6], [7.0, 8.0]]
    async with served() as gateway:
        whole, same = [(await gateway.chat(**given)).json() for given in (plain, pointed)]
        free = {"type": "object", "properties": {"x": {"const": 8.0}}}
        tools = [{"type": "function", "function": {"name": "f", "parameters": free}}]
        told, _ = decode(json.dumps({"messages": TURNS, "tools": tools}).encode(), ChatRequest)
        texts = (await gateway.post("/v1/completions", prompt=ids, max_tokens=4.0)).json()
    assert whole["choices"] == same["choices"]
    assert len(texts["choices"]) == 2
    assert isinstance(told.tools[0].function.parameters["properties"]["x"]["const"], float)


async def test_hints_at_any_depth_are_ignored_without_a_word_and_counted():
    hints = {
        "store": True, "reasoning_effort": "high", "verbosity": "low", "prompt_cache_key": "k",
        "stream_options": {"include_obfuscation": False},
        "tools": [{**F, "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]},
            {"role": "assistant", "content": "y", "reasoning_content": "hm", "annotations": []},
            *TURNS,
        ],
    }  # fmt: skip
    async with served() as gateway:
        answer = await gateway.chat(**hints)
        metrics = (await gateway.request("GET", "/metrics")).text
    assert answer.status_code == 200, answer.text
    assert "x-duoactor-warning" not in answer.headers
    assert 'duoactor:ignored_parameters_total{parameter="cache_control"} 2.0' in metrics


@pytest.mark.parametrize("stream", [False, True])
async def test_unknown_fields_of_newer_clients_are_ignored_and_named_in_a_header(stream):
    new = {"zap": 1, "messages": [{"role": "user", "content": "x", "quux": "caf\u00e9\n", "caf\u00e9": 1}]}
    async with served() as gateway:
        answer = await gateway.chat(stream=stream, **new)
        metrics = (await gateway.request("GET", "/metrics")).text
    assert answer.status_code == 200, answer.text
    named = set(re.split(": |, ", answer.headers["x-duoactor-warning"]))
    assert named >= {"zap", "messages[0].quux", "messages[0].caf\\xe9"}
    assert 'duoactor:ignored_parameters_total{parameter=""} 3.0' in metrics


@pytest.mark.parametrize("stream", [False, True])
async def test_a_limit_above_the_context_is_cut_and_a_header_says_so(stream):
    async with served() as gateway:
        cut = await gateway.chat(max_tokens=5000, stream=stream)
        fits = await gateway.chat(max_tokens=100, stream=stream)
    assert cut.headers["x-duoactor-warning"].startswith("max_tokens 5000 was cut to 409")
    assert "x-duoactor-warning" not in fits.headers


@pytest.mark.parametrize("asked", [(1 << 31) - 2, (1 << 31) - 1, 1 << 31, 1 << 32, (1 << 63) - 1])
@pytest.mark.parametrize(
    ("path", "param", "prompt"),
    [
        ("/v1/chat/completions", "max_tokens", {"messages": [{"role": "user", "content": "x"}]}),
        ("/v1/completions", "max_tokens", {"prompt": "x"}),
        ("/v1/responses", "max_output_tokens", {"input": "x"}),
        ("/v1/messages", "max_tokens", {"messages": [{"role": "user", "content": "x"}]}),
        ("/completion", "n_predict", {"prompt": "x"}),
    ],
)
async def test_a_limit_above_the_wires_is_named_by_the_clients_number(path, param, prompt, asked):
    async with served() as gateway:
        cut = await gateway.post(path, **prompt, model="toy", **{param: asked})
    assert cut.status_code == 200, cut.text
    assert cut.headers["x-duoactor-warning"].startswith(f"{param} {asked} was cut to 409")


async def test_minus_one_is_no_limit_and_an_empty_stop_is_none():
    async with served() as gateway:
        chat = await gateway.chat(max_tokens=-1, stop="")
        text = await gateway.post("/v1/completions", prompt="x", max_tokens=-1, stop=[""])
    for answer in (chat, text):
        usage = answer.json()["usage"]
        assert usage["total_tokens"] == 4096 and "x-duoactor-warning" not in answer.headers


async def test_more_prompts_than_are_answered_at_once_are_refused_before_one_is_tokenized():
    asked = {"prompt": ["x"] * 65, "max_tokens": 1, "echo": True}
    async with served() as gateway:
        with patch.object(gateway.gateway.client, "tokenize") as tokenize:
            answer = await gateway.post("/v1/completions", **asked)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "n")
    assert not tokenize.called


@pytest.mark.parametrize("n", [1, 2])
async def test_a_fault_of_ours_is_a_500_and_no_wait_without_an_end(n):
    async with served() as gateway, asyncio.timeout(10):
        with patch.object(AsyncStream, "take", side_effect=RuntimeError("a fault")):
            answer = await gateway.chat(n=n)
    assert answer.status_code == 500 and "RuntimeError" in answer.json()["error"]["message"]


def test_a_body_of_unknown_fields_holds_up_no_other_request_for_long(monkeypatch):
    compared, compare = [], difflib.get_close_matches
    monkeypatch.setattr(difflib, "get_close_matches", lambda *a, **k: compared.append(a[0]) or compare(*a, **k))
    fields = [*(f"x{number:06}" for number in range(100_000)), "y" * (1 << 22)]
    wanted, ignored = decode(json.dumps({"messages": TURNS} | dict.fromkeys(fields, 1)).encode(), ChatRequest)
    assert len(compared) <= MOST_SPELT and max(map(len, compared)) <= LONGEST_NAME
    assert len(ignored.unknown) == len(fields) and len(ignored.warning) < 200 and wanted.n == 1


async def test_a_misspelt_parameter_is_met_with_the_right_one():
    async with served() as gateway:
        answer = await gateway.chat(temprature=0.5)
    assert answer.json()["error"]["message"].endswith("did you mean temperature?")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"messages":' + b'[{"a":' * 5_000,
        b'{"seed": 1e999}',
        b'{"prompt": "\xff"}',
        codecs.BOM_UTF8,
        codecs.BOM_UTF8 * 2 + b"{}",
        json.dumps({"messages": TURNS}).encode("utf-16"),
        json.dumps({"messages": TURNS}).encode("utf-32"),
    ],
)
async def test_a_body_that_is_no_json_object_is_a_400(body):
    async with served() as gateway:
        answer = await gateway.request("POST", CHAT, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert "codec" not in answer.text and answer.json()["error"]["message"].startswith("the body ")


async def test_a_byte_order_mark_before_a_body_is_ignored_as_rfc_8259_allows():
    body = codecs.BOM_UTF8 + json.dumps({"messages": TURNS, "max_tokens": 2}).encode()
    async with served() as gateway:
        answer = await gateway.request("POST", CHAT, content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["usage"]["completion_tokens"]) == (200, 2)


@pytest.mark.parametrize("asked", [{"prompt": "x"}, {"messages": []}])
async def test_no_message_can_be_continued_where_none_is(asked):
    async with served() as gateway:
        answer = await gateway.post("/tokenize", continue_final_message=True, **asked)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "continue_final_message")


async def test_half_of_a_character_in_a_body_is_named():
    body = b'{"messages": [{"role": "user", "content": "\\ud83d"}]}'
    async with served() as gateway:
        answer = await gateway.request("POST", CHAT, content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["message"]) == (
        400,
        r"the body holds half of a character: an escape \ud800 to \udfff without its other one",
    )


HALF = r"holds half of a character: an escape \ud800 to \udfff without its other one"
TOO_LARGE = "holds a number that is too large: name one between -1.7e308 and 1.7e308"


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("NaN", "holds NaN, which JSON does not have: name a number"),
        ("Infinity", "holds Infinity, which JSON does not have: name a number"),
        ("[1, -Infinity]", "holds -Infinity, which JSON does not have: name a number"),
        ("1e999", TOO_LARGE),
        ("-1e999", TOO_LARGE),
        ("1" * 5000, TOO_LARGE),
        (r'"NaN \udc00"', HALF),
        (r'{"\ud83d": 1}', HALF),
        ("nan", "is not valid JSON: JSON is malformed: "),
        (r'"\ud83d\ude00" NaN', "is not valid JSON: JSON is malformed: "),
    ],
)
def test_what_makes_a_body_or_a_schema_in_text_no_json_is_named(value: str, sentence: str):
    with pytest.raises(ApiError) as refused:
        read(f'{{"temperature": {value}}}'.encode())
    assert refused.value.status == 400 and str(refused.value).startswith(f"the body {sentence}")
    asked = read(json.dumps({"prompt": "a", "structured_outputs": {"json": f'{{"maximum": {value}}}'}}).encode())
    with pytest.raises(ApiError) as refused:
        shape_of(convert(asked, CompletionRequest)[0])
    assert refused.value.param == "structured_outputs.json"
    assert str(refused.value).startswith(f"structured_outputs.json {sentence}")


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"messages": TURNS, "method": "magic"}, "method can be auto, tree, duodecoding, "),
        ({}, "messages is missing"),
        ({"messages": TURNS, "tools": [{"type": "function"}]}, "tools[0].function is missing"),
    ],
)
async def test_a_refusal_says_what_can_be_done(body: dict, sentence: str):
    async with served() as gateway:
        refused = await gateway.post(CHAT, **body)
    assert refused.json()["error"]["message"].startswith(sentence)


async def test_other_content_types_paths_and_methods_are_refused_in_the_same_shape():
    async with served() as gateway:
        form = await gateway.request("POST", CHAT, content="a=b", headers={"content-type": "text/plain"})
        nowhere = await gateway.request("GET", "/v1/nothing")
        get = await gateway.request("GET", CHAT)
        model = await gateway.request("GET", "/v1/models/other")
    assert [answer.status_code for answer in (form, nowhere, get, model)] == [415, 404, 405, 404]
    assert all(answer.json()["error"]["type"] == "invalid_request_error" for answer in (form, nowhere, get, model))
    assert get.headers["allow"] == "POST"


async def test_a_body_without_end_is_a_413_before_it_is_read_to_its_end(monkeypatch):
    monkeypatch.setattr("duoactor.serve.bodies.MAX_BODY", 1000)
    async with served() as gateway:
        answer = await gateway.request("POST", CHAT, content=b"x" * 1001, headers={"content-type": "application/json"})
    assert answer.status_code == 413


async def test_a_body_that_does_not_come_is_a_408(monkeypatch):
    monkeypatch.setattr("duoactor.serve.bodies.BODY_TIMEOUT_S", 0.05)
    async with served() as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n".encode())
        writer.write(b"content-length: 100\r\n\r\n{")
        async with asyncio.timeout(60):
            line = await reader.readline()
        writer.close()
    assert line.split()[1] == b"408"


async def test_a_prompt_that_is_too_long_names_the_context():
    async with served() as gateway:
        answer = await gateway.chat(messages=[{"role": "user", "content": "x" * 5000}], stream=True)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"


async def test_more_turns_than_a_request_may_have_are_refused_at_once_with_their_number():
    async with served() as gateway:
        answer = await gateway.chat(messages=TURNS * (MAX_TURNS + 1))
    assert answer.status_code == 400
    assert "a conversation has at most 16384 turns, not 16385; leave old ones out" in answer.json()["error"]["message"]


async def test_overload_is_a_429_that_says_when_to_come_again(monkeypatch):
    monkeypatch.setattr("actors.verifier.admission.MAX_REQUESTS", 0)
    async with served() as gateway:
        answer = await gateway.chat()
    assert answer.status_code == 429
    assert int(answer.headers["retry-after"]) > 0
    assert answer.json()["error"]["code"] == "rate_limit_exceeded"


async def test_an_unexpected_error_is_a_500_without_details(monkeypatch, caplog):
    async with served() as gateway:
        monkeypatch.setattr(gateway.gateway, "ask", lambda *asked: 1 / 0)
        answer = await gateway.chat()
    assert answer.status_code == 500
    assert answer.json()["error"]["type"] == "server_error"
    assert "division" not in answer.text
    assert "ZeroDivisionError" in caplog.text


async def test_a_stream_that_breaks_after_its_first_token_ends_with_an_error_event():
    async with served() as gateway:
        lines = []
        async with gateway.openai()._client.stream(
            "POST", f"{gateway.url}{CHAT}", json={"messages": TURNS, "stream": True, "ignore_eos": True}
        ) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("data: "):
                    lines.append(line.removeprefix("data: "))
                if len(lines) == 3:
                    for request in gateway.cluster.verifier.state.requests:
                        gateway.cluster.verifier.admission.fail(request, "internal", "it broke")
    assert answer.status_code == 200
    assert lines[-1] == "[DONE]"
    assert json.loads(lines[-2]) == {
        "error": {"message": "it broke", "type": "server_error", "param": None, "code": None}
    }
