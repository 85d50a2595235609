"""Commands that start the model they ask, with small programs in place of its actors."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from duoactor.cli import main
from duoactor.cli.environment import Environment
from protocols.messages import ChatTurn
from tests.cli.fake_actors import fake_world
from tests.cli.fake_client import FakeClient


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, client: FakeClient) -> tuple[Environment, dict[object, int]]:
    """Actors that only live, their process ids, and a client that answers from memory."""
    actors, environment = fake_world(monkeypatch)
    environment.connect = client.connect  # type: ignore[assignment]
    return environment, actors.pids


def ended(pids: dict[object, int]) -> bool:
    return bool(pids) and not [pid for pid in pids.values() if os.path.exists(f"/proc/{pid}")]


def test_run_starts_a_model_answers_and_stops_it(world, client: FakeClient, capsys):
    environment, pids = world
    assert main(["run", "bundled", "Hi", "--max-tokens", "5"], environment) == 0
    assert capsys.readouterr().out == "Hello\n"
    assert client.asked == [{"prompt": "", "messages": (ChatTurn("user", "Hi"),), "seed": 0, "max_tokens": 5}]
    (address, *keys) = client.connected[0]
    assert address.startswith("ipc://") and keys == ["", ""]
    assert ended(pids) and not Path(address.removeprefix("ipc://")).parent.exists()


def test_run_of_a_model_without_a_chat_template_continues_the_text(world, client: FakeClient):
    client.template = ""
    assert main(["run", "bundled", "def f(x):"], world[0]) == 0
    assert client.asked == [{"prompt": "def f(x):", "seed": 0}]


@pytest.mark.parametrize("command", ["run", "chat"])
def test_run_without_a_prompt_and_chat_with_a_model_are_conversations(
    world, client: FakeClient, monkeypatch, command: str
):
    environment, pids = world
    monkeypatch.setattr("sys.stdin", io.StringIO("One\nTwo\n"))
    assert main([command, "bundled"], environment) == 0
    assert [len(asked["messages"]) for asked in client.asked] == [1, 3]
    assert ended(pids)


def test_what_fails_stops_the_model_too(world, client: FakeClient, capsys):
    environment, pids = world
    client.fails = KeyboardInterrupt()  # type: ignore[assignment]
    assert main(["run", "bundled", "Hi"], environment) == 130
    assert ended(pids)


def test_a_model_to_start_and_a_verifier_elsewhere_are_refused_together(world, capsys):
    assert main(["chat", "bundled", "--connect", "tcp://h:1"], world[0]) == 2
    assert "leave one out" in capsys.readouterr().err
