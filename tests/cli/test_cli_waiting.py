"""Silence is explained, once, on stderr."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.cli.fake_client import FakeChunk, FakeClient, run


class Timer:
    """Fires when a test says that time has passed, and never by itself: a busy machine is not silence."""

    running: list[Timer]

    def __init__(self, interval: float, function: Callable[..., Any], args: tuple[Any, ...]):
        self.fire = lambda: function(*args)

    def start(self) -> None:
        self.running.append(self)

    def cancel(self) -> None:
        if self in self.running:
            self.running.remove(self)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Timer, "running", [], raising=False)
    monkeypatch.setattr("duoactor.cli.waiting.threading.Timer", Timer)


def silence() -> None:
    """More of it than anybody bears without a word."""
    for timer in tuple(Timer.running):
        timer.fire()


class Slow(FakeClient):
    @contextmanager
    def connect(self, address: str, key: str, server_key: str) -> Iterator[FakeClient]:
        silence()
        yield self


class Thoughtful(FakeClient):
    def _answer(self, prompt: str, options: dict[str, Any]) -> Iterator[FakeChunk]:
        silence()
        yield from super()._answer(prompt, options)


def test_a_verifier_that_is_still_loading_is_waited_for_with_a_word(capsys: pytest.CaptureFixture[str]):
    assert run(Slow(), "status", "--connect", "tcp://127.0.0.1:7601") == 0
    assert capsys.readouterr().err == (
        "duoactor: waiting for the verifier at tcp://127.0.0.1:7601, which may be loading its model …\n"
    )


def test_so_is_the_first_token(capsys: pytest.CaptureFixture[str]):
    assert run(Thoughtful(), "generate", "x") == 0
    out, err = capsys.readouterr()
    assert out == "Hello\n"
    assert err.startswith("duoactor: waiting for the first token") and len(err.splitlines()) == 1


@pytest.mark.parametrize("command", [["status"], ["generate", "x"]])
def test_a_document_is_waited_for_in_silence(command: list[str], capsys: pytest.CaptureFixture[str]):
    assert run(Slow(), *command, "--json") == 0
    assert capsys.readouterr().err == ""


def test_who_is_quick_says_nothing(capsys: pytest.CaptureFixture[str]):
    assert run(FakeClient(), "generate", "x") == 0
    silence()  # too late: nobody waits any more
    assert capsys.readouterr().err == ""
