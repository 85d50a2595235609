"""What a caller can get wrong, said before anything is sent."""

import inspect
import json
import math
import sys

import msgspec
import numpy as np
import pytest

from duoactor import AsyncClient, ChatTurn, Client, RequestError, Sampling, StructuredOutputs
from duoactor.client.options import DEFAULTS, DESCRIPTIONS, Options
from duoactor.client.request import make_request
from protocols.messages import Generate, ToolCall

HI = [{"role": "user", "content": "hi"}]


def ask(prompt="hi", messages=(), **options) -> Generate:
    return make_request(prompt, messages, options)


WRONG = {  # what is asked, and what the sentence holds
    "a text for a number": ({"max_tokens": "5"}, "max_tokens must be a whole number, not '5'"),
    "a fraction for a count": ({"max_tokens": 5.0}, "max_tokens must be a whole number, not 5.0"),
    "a truth for a count": ({"top_k": True}, "top_k must be a whole number, not True"),
    "a number for a truth": ({"ignore_eos": 1}, "ignore_eos must be True or False"),
    "too few tokens": ({"max_tokens": 0}, "max_tokens must be at least 1"),
    "a count beyond 64 bits": ({"max_tokens": 1 << 70}, "max_tokens must be at least 1 and below"),
    "no number": ({"temperature": math.nan}, "temperature must be 0 .greedy. or at least"),
    "an endless number": ({"temperature": math.inf}, "temperature"),
    "a text for a temperature": ({"temperature": "hot"}, "temperature must be a number, not 'hot'"),
    "a share above 1": ({"top_p": 1.5}, "top_p must be above 0 and at most 1"),
    "a seed beyond 64 bits": ({"seed": 1 << 64}, "seed must fit into 64 bits"),
    "a seed that is a text": ({"seed": "42"}, "seed must be a whole number"),
    "a stop that is a number": ({"stop": 3}, "stop must be a text or a list of texts"),
    "stops that are numbers": ({"stop": ["a", 1]}, "stop must be a text or a list of texts"),
    "an empty stop": ({"stop": ""}, "stop must not hold an empty string"),
    "a stop that is no text": ({"stop": "\ud83d"}, "stop holds half of a character"),
    "stop tokens as a text": ({"stop_token_ids": "ab"}, "stop_token_ids must be a list of token ids"),
    "a negative stop token": ({"stop_token_ids": [-1]}, "stop_token_ids"),
    "biases as a list of ids": ({"logit_bias": [1, 2]}, "logit_bias must be a mapping"),
    "an option that there is not": ({"temprature": 1}, "'temprature' is not known; did you mean temperature"),
    "an option like nothing": ({"zzz": 1}, "'zzz' is not known; there are temperature, top_k"),
    "a method that there is not": ({"method": "duodecode"}, "'duodecode' is not known; did you mean duodecoding"),
    "a method that is a number": ({"method": 3}, "method must be a text"),
    "a negative gamma": ({"num_speculative_tokens": -5}, "num_speculative_tokens must be 0 .adaptive. to 256, not -5"),
    "a gamma that is a text": ({"num_speculative_tokens": "4"}, "num_speculative_tokens must be a whole number"),
    "a sampling that is a mapping": ({"sampling": {"seed": 1}}, "sampling must be a duoactor.Sampling"),
    "a sampling with a wrong type": ({"sampling": Sampling(max_tokens="5")}, "max_tokens must be a whole number"),
    "a sampling with a wrong value": ({"sampling": Sampling(top_p=2.0)}, "top_p"),
    "a structure that is a mapping": (
        {"structured_outputs": {"regex": "a"}},
        "structured_outputs must be a duoactor.StructuredOutputs",
    ),
    "a structure of nothing": ({"structured_outputs": StructuredOutputs()}, "exactly one of .*, not none"),
    "a structure of two": (
        {"structured_outputs": StructuredOutputs(regex="a", grammar="b")},
        "exactly one of json_schema, regex and grammar, not regex and grammar",
    ),
    "an empty regex": ({"structured_outputs": StructuredOutputs(regex="")}, "structured_outputs.regex must be 1 to"),
    "a grammar without end": (
        {"structured_outputs": StructuredOutputs(grammar="x" * 300_000)},
        "structured_outputs.grammar must be 1 to 262144 characters long, not 300000",
    ),
    "a schema that is a list": (
        {"structured_outputs": StructuredOutputs(json_schema=[])},
        "structured_outputs.json_schema must be a text",
    ),
    "a schema that is no JSON": (
        {"structured_outputs": StructuredOutputs(json_schema={"const": {1, 2}})},
        "structured_outputs.json_schema is not JSON",
    ),
    "a regex with half of a character": (
        {"structured_outputs": StructuredOutputs(regex="\ud83d")},
        "structured_outputs.regex holds half of a character",
    ),
    "no prompt": ({"prompt": None}, "prompt must be a text, a list of token ids, or a list of turns, not None"),
    "bytes": ({"prompt": b"hi"}, "prompt must be a text"),
    "a number": ({"prompt": 5}, "prompt must be a text"),
    "one turn alone": ({"prompt": HI[0]}, "prompt must be a text"),
    "several prompts": ({"prompt": ["a", "b"]}, "ask for each text in a call of its own"),
    "an empty prompt": ({"prompt": ""}, "the prompt is empty"),
    "an empty list": ({"prompt": []}, "the prompt is empty"),
    "half a character": ({"prompt": "hi \ud83d"}, "prompt holds half of a character .*at 3"),
    "a negative token": ({"prompt": [1, -2]}, "prompt must hold token ids, which -2 is not"),
    "a token beyond all vocabularies": ({"prompt": [1, 1 << 40]}, "prompt must hold token ids"),
    "a truth among tokens": ({"prompt": [1, True]}, "prompt must be a list of token ids"),
    "prompt and messages": ({"prompt": "a", "messages": HI}, "either a prompt or messages, not both"),
    "ids and messages": ({"prompt": [1], "messages": HI}, "either a prompt or messages, not both"),
    "a text as messages": ({"prompt": "", "messages": "hi"}, "messages must be a list of turns"),
    "a turn without content": ({"prompt": [{"role": "user"}]}, r"prompt\[0\] has no content; a turn is"),
    "a turn without role": ({"prompt": "", "messages": [*HI, {"content": "x"}]}, r"messages\[1\] has no role"),
    "a role that is no text": ({"prompt": "", "messages": [{"role": 1, "content": "x"}]}, r"\[0\].role must be a text"),
    "an empty role": ({"prompt": "", "messages": [{"role": "", "content": "x"}]}, r"\[0\].role is empty"),
    "content that is None": ({"prompt": "", "messages": [ChatTurn("user", None)]}, r"\[0\].content must be a text"),
    "content that is no text": ({"prompt": "", "messages": [ChatTurn("user", "\udc00")]}, "half of a character"),
    "a turn with more than is understood": (
        {"prompt": "", "messages": [{"role": "user", "content": "x", "audio": []}]},
        "'audio', which no turn has here",
    ),
    "a call without a function": (
        {"prompt": "", "messages": [{"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]}]},
        r"messages\[0\].tool_calls\[0\] must be a call in OpenAI's shape",
    ),
    "tools that are names": ({"tools": ["look"]}, "tools must be a list of functions"),
    "tools for a text": ({"tools": [{"type": "function"}]}, "tools need messages"),
    "turns that are texts": ({"prompt": "", "messages": ["hi"]}, r"messages\[0\] must be a turn, not 'hi'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_right_is_said_at_once_by_name(name):
    options, sentence = WRONG[name]
    with pytest.raises(RequestError, match=sentence) as caught:
        ask(**options)
    assert caught.value.code == "bad_request"


def test_the_call_itself_raises_not_the_first_chunk():
    client = AsyncClient("memory://nobody")
    with pytest.raises(RequestError, match="max_tokens"):
        client.stream("hi", max_tokens="5")
    blocking = Client("memory://nobody")
    with pytest.raises(RequestError, match="max_tokens"):
        blocking.stream("hi", max_tokens="5")
    blocking.close()


@pytest.mark.parametrize("prompt", [[1, 2], (1, 2), range(1, 3), np.array([1, 2]), [np.int64(1), np.int32(2)]])
def test_token_ids_may_come_as_any_sequence_of_numbers(prompt):
    assert ask(prompt).prompt == (1, 2)


def test_numbers_may_be_numpys_and_whole_numbers_may_stand_for_fractions():
    sampling = ask(max_tokens=np.int64(5), temperature=1, top_p=np.float32(0.5)).sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p) == (5, 1.0, 0.5)


def test_a_single_option_wins_over_the_sampling_given_and_none_is_not_given():
    sampling = ask(sampling=Sampling(seed=7, max_tokens=9), max_tokens=3, temperature=None).sampling
    assert sampling == Sampling(seed=7, max_tokens=3)


def test_stops_and_biases_take_the_shapes_that_people_use():
    sampling = ask(stop="x", logit_bias={5: 1}).sampling
    assert sampling.stop == ("x",) and sampling.logit_bias == ((5, 1.0),)
    assert ask(stop=["x", "y"], logit_bias=[(5, 1.0)]).sampling.stop == ("x", "y")


def test_a_schema_may_be_the_text_or_the_mapping_itself():
    schema = {"type": "object", "title": "å"}
    text = '{"type": "object", "title": "å"}'
    for given in (schema, text):
        wanted = StructuredOutputs(json_schema=given)
        assert ask(structured_outputs=wanted).structured_outputs == StructuredOutputs(json_schema=text)
    assert ask().structured_outputs is None


def test_a_conversation_may_be_the_prompt():
    assert ask(HI).messages == ask("", HI).messages == (ChatTurn("user", "hi"),)


def test_tools_and_their_calls_come_in_openais_shape():
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    turns = [{"role": "assistant", "content": None, "tool_calls": [call]}]
    turns += [{"role": "tool", "content": "blue", "tool_call_id": "1"}]
    tools = [{"type": "function", "function": {"name": "look"}}]
    request = ask("", turns, tools=tools)
    assert request.messages == (
        ChatTurn("assistant", "", (ToolCall("1", "look", "{}"),)),
        ChatTurn("tool", "blue", tool_call_id="1"),
    )
    assert json.loads(request.tools) == tools
    again = ask("", list(request.messages), tools=request.tools, sampling=request.sampling)
    assert msgspec.structs.replace(again, rid=request.rid) == request


def test_every_sampling_parameter_is_an_option():
    assert set(Options.__annotations__) == set(DEFAULTS)
    assert set(Sampling.__struct_fields__) <= set(DEFAULTS)


def test_a_request_finds_out_no_types_anew():
    ask(temperature=0.5)
    frames = []
    sys.setprofile(lambda frame, event, _: frames.append(frame) if event == "call" else None)
    try:
        ask(temperature=0.5)
    finally:
        sys.setprofile(None)
    assert "typing" not in {frame.f_globals.get("__name__") for frame in frames}
    assert len(frames) < 200  # 575 with them


@pytest.mark.parametrize("client", [Client, AsyncClient])
@pytest.mark.parametrize("call", ["stream", "generate", "chat"])
def test_help_shows_every_option_with_its_default_and_meaning(client, call):
    method = getattr(client, call)
    parameters = inspect.signature(method).parameters
    assert {name: parameters[name].default for name in DEFAULTS} == dict(DEFAULTS)
    assert not any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    assert all(f"{name}: {description}" in method.__doc__ for name, description in DESCRIPTIONS.items())
