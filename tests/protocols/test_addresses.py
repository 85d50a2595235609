"""Which addresses are accepted, and what is said about the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.process import open_network
from actors.settings import DrafterSettings
from protocols.address import IPC_PATH_MAX, parse, reachable
from protocols.errors import ConfigError

BAD = [
    "",
    "verifier",
    "127.0.0.1:7601",
    "http://127.0.0.1:7601",
    "tcp://",
    "tcp://127.0.0.1",
    "tcp://:7601",
    "tcp://127.0.0.1:port",
    "tcp://127.0.0.1:70000",
    "tcp://127.0.0.1:-1",
    "tcp://::1:7601",
    "tcp://a b:1",
    "tcp://127.0.0.1:7601/x",
    "ipc://",
    "ipc://@abstract",
    "ipc://*",
    "ipc:///run/",
    "ipc:///" + "x" * IPC_PATH_MAX,
    "ipc://~nobody-of-that-name/x.sock",
    "ipc://~no\0body/x.sock",
]


@pytest.mark.parametrize("bind", [False, True])
@pytest.mark.parametrize("text", BAD)
def test_a_bad_address_gets_one_sentence_that_says_what_a_right_one_is(text: str, bind: bool) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text, bind=bind)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert "such as" in sentence or "shorter" in sentence


@pytest.mark.parametrize(
    "text", ["ipc:///run/a,ipc:///run/b", "tcp://127.0.0.1:1, tcp://127.0.0.1:2", "ipc:///a,tcp://b:1"]
)
def test_several_addresses_are_not_one(text: str) -> None:
    with pytest.raises(ConfigError, match=r"several addresses: give one, and start another actor"):
        parse(text)
    assert parse("ipc:///run/a,b").path.name == "a,b"
    with pytest.raises(ConfigError, match="several addresses"):  # before a drafter loads its model
        open_network(DrafterSettings(connect=text))


@pytest.mark.parametrize("text", ["tcp://127.0.0.1:0", "tcp://127.0.0.1:*", "tcp://*:7601"])
def test_only_a_bind_may_leave_host_or_port_open(text: str) -> None:
    parse(text, bind=True)
    with pytest.raises(ConfigError, match="name both"):
        parse(text)


@pytest.mark.parametrize(
    ("text", "local"),
    [
        ("tcp://127.0.0.1:1", True),
        ("tcp://127.8.9.1:1", True),
        ("tcp://[::1]:1", True),
        ("tcp://localhost:1", True),
        ("tcp://0.0.0.0:1", False),
        ("tcp://[::]:1", False),
        ("tcp://192.168.0.2:1", False),
        ("tcp://localhost.example.org:1", False),
        ("ipc:///run/x.sock", True),
    ],
)
def test_loopback_is_told_from_the_rest(text: str, local: bool) -> None:
    assert parse(text).local is local
    assert str(parse(text)) == text


def test_an_ipc_path_is_made_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir("/")
    monkeypatch.setenv("HOME", "/home/someone")
    assert str(parse("ipc://run/x.sock")) == "ipc:///run/x.sock"
    assert str(parse("ipc://~/x.sock")) == "ipc:///home/someone/x.sock"


def test_telemetry_goes_beside_the_address() -> None:
    assert str(parse("ipc:///run/x.sock").telemetry) == "ipc:///run/x.sock.telemetry"
    assert str(parse("tcp://127.0.0.1:7601").telemetry) == "tcp://127.0.0.1:7602"


def test_an_announced_wildcard_stands_for_the_host_that_was_connected_to() -> None:
    assert reachable("tcp://0.0.0.0:7602", "tcp://gpu-box:7601") == "tcp://gpu-box:7602"
    assert reachable("tcp://[::]:7602", "tcp://[fe80::2]:7601") == "tcp://[fe80::2]:7602"
    assert reachable("tcp://127.0.0.1:7602", "tcp://localhost:7601") == "tcp://127.0.0.1:7602"
    assert reachable("ipc:///run/x.telemetry", "ipc:///run/x") == "ipc:///run/x.telemetry"
    assert reachable("", "tcp://gpu-box:7601") == ""


def test_whoever_may_bind_a_path_can_be_subscribed_to() -> None:
    longest = "ipc:///" + "x" * (IPC_PATH_MAX - len("/.telemetry"))
    announced = str(parse(longest, bind=True).telemetry)
    assert str(parse(announced)) == announced
    for refused in (longest + "x", announced + "x"):
        with pytest.raises(ConfigError, match="too long"):
            parse(refused, bind=True)
    with pytest.raises(ConfigError, match="too long"):
        parse(announced, bind=True)  # its own telemetry would not fit
