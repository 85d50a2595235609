"""SPEC.md is normative: it and the code must say the same about every message, field, default, union and value."""

from __future__ import annotations

import hashlib
import inspect
import json
import re
import typing
from enum import StrEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import zmq

from actors.engines.text.tokenizer import tokenizer_digest, tokenizer_parts
from protocols import limits, messages, security, wire, zeromq
from protocols.messages import FailureCode, RefuseCode

TEXT = (Path(messages.__file__).parent / "SPEC.md").read_text(encoding="utf-8")
NAMED = {name: one for name, one in (vars(messages) | vars(security)).items() if isinstance(one, type)}
CODE = {name: one for name, one in NAMED.items() if issubclass(one, (messages.Struct, messages.Message))}
ENUMS = {name: one for name, one in NAMED.items() if issubclass(one, StrEnum)}
for base in ("Struct", "Message"):
    del CODE[base]
del ENUMS["StrEnum"]
UNIONS = ["ToVerifier", "ToClient", "ToDrafter", "ToController", "ToLearner", "Telemetry"]


def rows(text: str) -> list[list[str]]:
    """The cells of every table row in ``text``, headings and rulers left out."""
    found = []
    lines = text.splitlines()
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if line.startswith("|") and not line.startswith("|---") and not following.startswith("|---"):
            cells = re.split(r"(?<!\\)\|", line)[1:-1]
            found.append([cell.strip().replace("\\|", "|") for cell in cells])
    return found


def sections() -> dict[str, str]:
    """Heading of each message or part to the text below it."""
    pieces = re.split(r"^#### (\w+)$", re.split(r"^## 6", TEXT, flags=re.M)[0], flags=re.M)[1:]
    return dict(zip(pieces[::2], pieces[1::2], strict=True))


def default(field: msgspec.structs.FieldInfo) -> str:
    value: Any = field.default
    if value is msgspec.NODEFAULT:
        if field.default_factory is msgspec.NODEFAULT:
            return "required"
        value = field.default_factory()
    if isinstance(value, bytes):
        value = value.decode()
    return f"`{type(value).__name__}()`" if isinstance(value, msgspec.Struct) else f"`{json.dumps(value)}`"


def limited() -> dict[str, tuple[str, str]]:
    """Each limited type: what it is, as the code writes it, and the range that it allows, in words."""
    found: dict[str, tuple[str, str]] = {}
    for module in (limits, messages):
        source = Path(module.__file__).read_text(encoding="utf-8")
        for name, kind in re.findall(r"^(\w+) = Annotated\[(.+), Meta\(.+\)\]", source, flags=re.M):
            (meta,) = vars(module)[name].__metadata__
            found[name] = (kind.replace('"', ""), in_words(meta, kind))
    return found


def in_words(meta: msgspec.Meta, kind: str) -> str:
    if meta.max_length is not None:
        what = {"b": "bytes", "s": "characters", "t": "elements", "d": "entries"}[kind[0]]
        return f"{meta.min_length or 0} to {meta.max_length} {what}"
    if meta.gt is not None:
        return f"above {number(meta.gt)}, at most {number(meta.le)}"
    return f"{number(meta.ge)} to {number(meta.le)}"


def number(value: Any) -> str:
    powers = {2**63 - 1: "2^63 - 1", 2**31 - 1: "2^31 - 1"}
    return powers.get(value, f"{value:g}" if isinstance(value, float) else str(value))


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_every_message_and_part_is_described_and_no_other() -> None:
    assert sorted(sections()) == sorted(CODE)


def test_fields_types_and_defaults_agree_in_order() -> None:
    described = sections()
    for name, one in CODE.items():
        types = {key: kind for base in reversed(one.__mro__) for key, kind in inspect.get_annotations(base).items()}
        expected = [[f"`{f.name}`", f"`{types[f.name]}`", default(f)] for f in msgspec.structs.fields(one)]
        section = re.split(r"^### ", described[name], flags=re.M)[0]
        assert [row[:3] for row in rows(section)] == expected, name
        assert ("No fields." in section) is (not expected), name


def test_the_limits_of_every_type_agree_in_order() -> None:
    table = TEXT.split("| limited type | of | range |")[1].split("\n\n")[0]
    assert [(quoted(row[0])[0], quoted(row[1])[0], row[2]) for row in rows(table)] == [
        (name, kind, words) for name, (kind, words) in limited().items()
    ]


def test_no_number_string_or_array_is_without_limits() -> None:
    def without(kind: Any) -> list[Any]:
        if kind in (str, bytes, int, float) or typing.get_origin(kind) in (tuple, dict):
            return [kind]
        if typing.get_origin(kind) is typing.Annotated:
            inner = typing.get_args(typing.get_args(kind)[0])
            return [one for part in inner if part is not ... for one in without(part) if typing.get_origin(one) is None]
        return [one for part in typing.get_args(kind) for one in without(part)]

    unlimited = {}
    for name, one in CODE.items():
        hints = typing.get_type_hints(one, include_extras=True)
        unlimited |= {(name, field): bad for field in one.__struct_fields__ if (bad := without(hints[field]))}
    assert unlimited == {("Sampling", "seed"): [int]}  # every 64 bits are a seed


@pytest.mark.parametrize("union", UNIONS)
def test_unions_agree_in_order(union: str) -> None:
    (row,) = [row for row in rows(TEXT) if row[0] == f"`{union}`"]
    assert quoted(row[2]) == [one.__name__ for one in typing.get_args(getattr(messages, union))]


def test_every_message_is_in_some_union() -> None:
    sent = {one.__name__ for union in UNIONS for one in typing.get_args(getattr(messages, union))}
    assert sent == {name for name, one in CODE.items() if issubclass(one, messages.Message)}


@pytest.mark.parametrize("name", ENUMS)
def test_enumerations_agree_in_order(name: str) -> None:
    (row,) = [row for row in rows(TEXT) if row[0] == f"`{name}`" and len(row) == 2]
    assert quoted(row[1]) == [one.value for one in ENUMS[name]]


@pytest.mark.parametrize("codes", [RefuseCode, FailureCode])
def test_every_error_code_is_explained(codes: type[StrEnum]) -> None:
    table = TEXT.split(f"| `{codes.__name__}` | meaning |")[1].split("\n\n")[0]
    assert [quoted(row[0])[0] for row in rows(table)] == [one.value for one in codes]


def test_version_frames_and_sizes_agree() -> None:
    assert f"# The duoactor protocol, version {wire.PROTOCOL}\n" in TEXT
    frame = next(row for row in rows(TEXT) if row[0] == "0")
    assert quoted(frame[1]) == [wire.HEADER.decode()]
    assert f"more than {wire.MAX_BYTES // 2**20} MiB" in TEXT


async def test_socket_options_are_those_of_the_table() -> None:
    table = {name: row for row in rows(TEXT) if len(row) == 4 for name in quoted(row[0]) if name.isupper()}
    written = {name: re.sub(r" ms|not set", "", row[2]).split(", ") for name, row in table.items()}
    network = zeromq.ZmqNetwork()
    listener = network.listen("tcp://127.0.0.1:0")
    link, feed = network.connect(listener.address), network.subscribe(listener.telemetry)
    every = [listener._pump.socket, listener._publisher, link._pump.socket, feed._pump.socket]
    for name, places in {
        "MAXMSGSIZE": every,
        "LINGER": every,
        "SNDHWM": every,
        "RCVHWM": every,
        "IMMEDIATE": [link._pump.socket],
        "ROUTING_ID": [link._pump.socket],
    }.items():
        expected: int | bytes = int(written[name][0]) if written[name][0] else b""
        assert [place.get(getattr(zmq, name)) for place in places] == [expected] * len(places), name
    for names, values, places in [
        (("RECONNECT_IVL", "RECONNECT_IVL_MAX"), zeromq.RECONNECT_MS, every[2:]),
        (("HEARTBEAT_IVL", "HEARTBEAT_TIMEOUT"), zeromq.KEEPALIVE_MS, every),
    ]:
        assert written[names[0]] == [str(value) for value in values]
        for name, pause in zip(names, values, strict=True):
            assert all(place.get(getattr(zmq, name)) == pause for place in places)
    network.close()


def test_the_specs_vector_of_a_tokenizers_digest_is_what_the_code_computes():
    document, digest, block = re.search(r"```text\n(\{\"vocab.*)\n(\w{64})\n(\w{8})\n```", TEXT).groups()
    known = json.loads(document)

    class Tokenizer:
        all_special_ids, all_special_tokens = (), ()
        backend_tokenizer = SimpleNamespace(to_str=lambda: json.dumps({"model": {"merges": known["merges"]}}))

        def get_vocab(self):
            return dict(reversed(known["vocab"]))

    assert hashlib.sha256(document.encode()).hexdigest() == digest == tokenizer_digest(Tokenizer())
    assert tokenizer_parts(Tokenizer()).blocks.hex() == block
