"""Frames and bodies: what one side encodes the other decodes, and nothing else gets through."""

from __future__ import annotations

import typing

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from protocols import messages, wire
from protocols.errors import ProtocolError
from protocols.messages import (
    ActorStatus,
    Budget,
    Cancel,
    Chunk,
    Generate,
    Grow,
    Hello,
    Message,
    Role,
    StatusReport,
    TargetStatus,
    ToVerifier,
)
from tests.world.arbitrary import values

NAMES = ("ToVerifier", "ToClient", "ToDrafter", "ToController", "ToLearner", "Telemetry")
UNIONS = [getattr(messages, name) for name in NAMES]
CASES = [(union, one) for union in UNIONS for one in typing.get_args(union)]


@pytest.mark.parametrize(("union", "one"), CASES, ids=lambda case: getattr(case, "__name__", ""))
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_every_message_comes_back_as_it_was_sent(union: object, one: type[Message], data: st.DataObject) -> None:
    message = typing.cast(Message, data.draw(values(one)))
    frames = wire.encode(message)
    assert wire.Decoder(union).decode(frames) == message
    assert wire.kind(frames) == one.__name__


def test_a_message_of_an_older_peer_gets_the_defaults_of_the_fields_it_lacks() -> None:
    header, _ = wire.encode(Cancel("r"))
    older = msgspec.msgpack.encode(["Grow", "r", 1, 5, [-1], [7], [-0.5]])
    assert wire.Decoder(ToVerifier).decode([header, older]) == Grow("r", 1, 5, (-1,), (7,), (-0.5,))


def test_fields_that_a_newer_peer_appends_are_ignored() -> None:
    header, _ = wire.encode(Cancel("r"))
    newer = msgspec.msgpack.encode(["Cancel", "r", "because", {"a": [1]}])
    assert wire.Decoder(ToVerifier).decode([header, newer]) == Cancel("r")


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.binary(max_size=40), max_size=4))
def test_garbage_is_a_protocol_error_and_nothing_else(frames: list[bytes]) -> None:
    with pytest.raises(ProtocolError):
        wire.Decoder(ToVerifier).decode(frames)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.binary(max_size=60))
def test_a_garbage_body_behind_a_right_header_is_a_protocol_error_or_a_message(body: bytes) -> None:
    wire.kind([wire.HEADER, body])
    wire.request_id([wire.HEADER, body])
    try:
        message = wire.Decoder(ToVerifier).decode([wire.HEADER, body])
    except ProtocolError:
        return
    assert isinstance(message, Message)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xdd\xff\xff\xff\xff",  # an array of four billion
        b"\x93\xa6Cancel\xa1r" + b"\x91" * 1_000_000,  # a million arrays deep
        b"\x92\xa6Cancel\xa2\xff\xff",  # not UTF-8
        b"\x91\xa6Cancel",  # a field without default is missing
        b"\x92\xa4Open\xa1r",  # a message for somebody else
        b"\x92\xa6Cancel\xa1r" + b"\x00",  # something behind it
        b"\x92\xa6Cancel\x05",  # a number where text belongs
    ],
)
def test_bodies_made_to_hurt_are_protocol_errors(body: bytes) -> None:
    with pytest.raises(ProtocolError, match=r"^the body of a message cannot be decoded: [^\n]+[^.]$"):
        wire.Decoder(ToVerifier).decode([wire.HEADER, body])


GOOD = {
    "Hello": ["drafter", "d", "1"],
    "DraftStats": ["d", [[1, 100.0]], 0.5],
    "Grow": ["r", 1, 5, [-1], [7], [-0.5]],
    "Generate": ["r", "text"],
    "Budget": [1, 1000, ["tree", "d"], 4, None, 8, 0.0],
}
BAD = [
    ("Hello", 1, ""),
    ("Hello", 1, "x" * 129),
    ("DraftStats", 1, [[1, 0.0]]),
    ("DraftStats", 1, [[1, float("inf")]]),
    ("DraftStats", 1, [[0, 100.0]]),
    ("DraftStats", 1, [[1, 100.0]] * 65),
    ("DraftStats", 2, float("nan")),
    ("Grow", 1, -1),
    ("Grow", 2, 2**31),
    ("Grow", 3, [-2]),
    ("Grow", 4, [7] * 513),
    ("Grow", 5, [float("nan")]),
    ("Grow", 5, [-float("inf")]),
    ("Grow", 5, [0.1]),
    ("Generate", 0, "r" * 129),
    ("Generate", 1, [2**31]),
    ("Budget", 6, float("nan")),
    ("Budget", 1, 332_000),
    ("Budget", 3, 10**9),
]


@pytest.mark.parametrize(("name", "at", "value"), BAD)
def test_a_value_out_of_its_range_is_refused_by_decoding(name: str, at: int, value: object) -> None:
    fields = list(GOOD[name])
    wire.Decoder(ToVerifier).decode([wire.HEADER, msgspec.msgpack.encode([name, *fields])])
    fields[at] = value
    with pytest.raises(ProtocolError):
        wire.Decoder(ToVerifier).decode([wire.HEADER, msgspec.msgpack.encode([name, *fields])])


def test_another_version_is_named_together_with_our_own_before_anything_is_decoded() -> None:
    with pytest.raises(ProtocolError) as caught:
        wire.Decoder(ToVerifier).decode([wire.MAGIC + b"7", b"\xc1"])
    assert "version 7" in str(caught.value)
    assert f"version {wire.PROTOCOL}" in str(caught.value)


@pytest.mark.parametrize(
    "header", [b"", b"duoactor", b"duoactor/", b"duoactor/x", b"duoactor/" + b"9" * 400, b"HTTP/1"]
)
def test_a_foreign_header_is_not_taken_for_a_version(header: bytes) -> None:
    with pytest.raises(ProtocolError, match="not duoactor's"):
        wire.Decoder(ToVerifier).decode([header, b""])


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_wrong_number_of_frames_is_told(count: int) -> None:
    with pytest.raises(ProtocolError, match=f"has 2 frames; this one has {count}"):
        wire.Decoder(ToVerifier).decode([wire.HEADER] * count)


def test_a_message_over_the_size_limit_is_refused_at_both_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_BYTES", 100)
    with pytest.raises(ProtocolError, match="over the limit"):
        wire.encode(Generate("r", prompt="x" * 200))
    with pytest.raises(ProtocolError, match="over the limit"):
        wire.Decoder(ToVerifier).decode([wire.HEADER, b"x" * 200])


def test_enums_travel_as_their_values() -> None:
    _, body = wire.encode(Hello(Role.DRAFTER, "d", "i"))
    assert msgspec.msgpack.decode(body)[:3] == ["Hello", "drafter", "d"]


def test_a_nested_message_keeps_its_type() -> None:
    report = StatusReport(
        "r", "tree", 1.0, TargetStatus("m", "cpu", "float32", 10, 2), ActorStatus("v"), budgets=(Budget(1, 1000),)
    )
    assert wire.Decoder(messages.ToClient).decode(wire.encode(report)) == report
    assert wire.Decoder(messages.ToClient).decode(wire.encode(Chunk("r", 0, (), (), ()))) == Chunk("r", 0, (), (), ())


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (["Generate", "r", "text", [], [-1.0]], "Generate.sampling.temperature: expected `float` >= 0.0"),
        (["Generate", "r", "text", [["user"]]], "Generate.messages[0]"),
        (["Generate", "r", "text", [], [0.0], "tree", [], 10**9], "Generate.num_speculative_tokens: expected `int` <="),
        (["DraftStats", "d", [[1, 0.0]], 0.5], "DraftStats.step_us[0][1]: expected `float` >= 0.1"),
    ],
)
def test_a_sentence_about_a_bad_value_names_its_field(fields: list[object], words: str) -> None:
    with pytest.raises(ProtocolError) as refused:
        wire.Decoder(ToVerifier).decode([wire.HEADER, msgspec.msgpack.encode(fields)])
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("fields", "rid"),
    [
        (["Generate", "r", 5], "r"),
        (["Generate", "r" * 128, 5], "r" * 128),
        (["Generate", "r" * 129, 5], None),
        (["Generate", 7, 5], None),
        (["Generate"], None),
        (["Cancel", "r", 5], None),
        (["Swap", "s", ""], "s"),
        (["Grow", "r", 1], None),
    ],
)
def test_the_id_of_a_question_is_found_though_the_rest_is_malformed(fields: list[object], rid: str | None) -> None:
    assert wire.request_id([wire.HEADER, msgspec.msgpack.encode(fields)]) == rid
