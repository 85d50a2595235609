"""Every decoder of what strangers send: it takes any bytes, and gives a value or the one error that it may raise."""

from __future__ import annotations

import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from actors.records import LoggedRequest, encoded, read_log
from duoactor.config import read
from duoactor.serve import live, parameters, tokens
from duoactor.serve.anthropic import messages as anthropic
from duoactor.serve.errors import ApiError
from duoactor.serve.openai import chat, completions, responses
from duoactor.serve.tool_calls.forms import FORMS, form_parser
from protocols import address, messages, wire
from protocols.errors import ConfigError, ProtocolError, RequestError
from protocols.security import read_key
from tests.world.extremes import Extremes

NAMES = ("search", "get_weather")


@dataclass(frozen=True)
class Target:
    """``decode`` raises only for a defect; ``seeds`` are what a mutation begins with."""

    decode: Callable[[bytes], object]
    seeds: Sequence[bytes]


def _messages(union: object) -> Target:
    """A body behind a right header. What can be decoded can be encoded, and is the same then."""
    decoder = wire.Decoder(union)
    extremes = Extremes(0)
    kinds = typing.get_args(union)

    def decode(body: bytes) -> object:
        frames = [wire.HEADER, body]
        wire.request_id(frames)
        try:
            message = decoder.decode(frames)
        except ProtocolError:
            return None
        assert decoder.decode(wire.encode(message)) == message
        assert wire.kind(wire.encode(message)) == type(message).__name__
        return message

    return Target(decode, [wire.encode(extremes.value(kind, ""))[1] for kind in kinds for _ in range(4)])


def _frames(data: bytes) -> object:
    """Any frames, cut at zeros."""
    frames = data.split(b"\0")
    wire.kind(frames), wire.request_id(frames), wire.is_foreign(frames)
    try:
        return wire.Decoder(messages.ToVerifier).decode(frames)
    except ProtocolError:
        return None


def _http(parse: Callable[[bytes], object], *bodies: object) -> Target:
    def decode(body: bytes) -> object:
        try:
            return parse(body)
        except (ApiError, RequestError):
            return None

    return Target(decode, [msgspec.json.encode(body) for body in bodies])


def _calls(form: str, *texts: str) -> Target:
    """A model's text in pieces of every length: the same events, as far as text and calls go, as in one piece."""

    def events(pieces: Sequence[str]) -> list[object]:
        parser = form_parser(FORMS[form], NAMES)
        return [event for piece in pieces for event in parser.feed(piece)] + parser.end()

    def decode(data: bytes) -> object:
        text = data.decode(errors="replace")
        size = 1 + len(text) % 7
        events([text[at : at + size] for at in range(0, len(text), size)])
        return events([text])

    return Target(decode, [text.encode() for text in texts])


def _text(parse: Callable[[str], object], *texts: str) -> Target:
    def decode(data: bytes) -> object:
        try:
            return parse(data.decode(errors="replace"))
        except ConfigError:
            return None

    return Target(decode, [text.encode() for text in texts])


def _file(parse: Callable[[Path], object], directory: Path, *contents: bytes) -> Target:
    path = directory / "file"

    def decode(data: bytes) -> object:
        path.write_bytes(data)
        path.chmod(0o600)
        try:
            return parse(path)
        except ConfigError:
            return None

    return Target(decode, contents)


def targets(directory: Path) -> dict[str, Target]:
    """By name. ``directory`` is for files to be read."""
    turns = [{"role": "user", "content": "Hi"}, {"role": "tool", "tool_call_id": "1", "content": "x"}]
    function = {"name": "search", "description": "d", "parameters": {"type": "object"}}
    tools = [{"type": "function", "function": function}]
    logged = LoggedRequest(prompt=(1, 2), text=(3,), sampling=messages.Sampling(seed=7, stop=("a",)), model_id="m")
    sampling = {"max_tokens": 5, "temperature": 0.5, "seed": 1, "stop": ["a"], "stream": True, "logit_bias": {"5": 1}}
    unions = ("ToVerifier", "ToClient", "ToDrafter", "ToController", "ToLearner", "Telemetry")
    return {
        **{name: _messages(getattr(messages, name)) for name in unions},
        "frames": Target(_frames, [b"duoactor/3\0\x92\xa6Cancel\xa1r", b"duoactor/9\0x", b"\0"]),
        "chat": _http(chat.parse, {"messages": turns, "tools": tools, **sampling}),
        "completions": _http(completions.parse, {"prompt": [[5, 9]], "logprobs": 2, **sampling}, {"prompt": "x"}),
        "responses": _http(responses.parse, {"input": turns[:1], "max_output_tokens": 5}, {"input": "x"}),
        "anthropic": _http(
            anthropic.parse,
            {"model": "m", "max_tokens": 5, "messages": turns[:1], "tools": [{"name": "f", "input_schema": {}}]},
        ),
        "anthropic count": _http(anthropic.parse_count, {"model": "m", "messages": turns[:1]}),
        "tokenize": _http(tokens.parse_tokenize, {"prompt": "Hi", "model": "m"}, {"messages": turns, "tools": tools}),
        "detokenize": _http(tokens.parse_detokenize, {"tokens": [5, 9]}),
        "live swap": _http(lambda body: parameters.decode(body, live.SwapOrder), {"old": "d1", "new": "d2"}),
        "live drain": _http(lambda body: parameters.decode(body, live.DrainOrder), {"actor_id": "d1"}),
        "hermes": _calls("hermes", '<tool_call>{"name": "search", "arguments": {"q": ["a", "b]"]}}</tool_call> Done.'),
        "llama": _calls("llama", '<|python_tag|>{"name": "search", "parameters": {"q": 1}}; {"name": "x"}'),
        "mistral": _calls("mistral", '[TOOL_CALLS][{"name": "search", "arguments": {}}]', "[TOOL_CALLS]search[ARGS]{}"),
        "address": _text(address.parse, "tcp://[::1]:7601", "ipc:///run/x.sock", "tcp://0.0.0.0:80"),
        "duo.toml": _file(read, directory, b'[verifier]\nbind = "tcp://127.0.0.1:1"\n[drafter]\nthreads = 1\n'),
        "request log": _file(lambda path: list(read_log(path)), directory, encoded(logged), 2 * encoded(logged)[:-9]),
        "key": _file(lambda path: read_key(path, "secret"), directory, b"x" * 40 + b"\n"),
    }
