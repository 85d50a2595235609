"""Silence is explained, once, on stderr."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from test_cli import FakeClient, run


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("duoactor.cli.waiting.SILENCE_S", 0.02)


class Slow(FakeClient):
    @contextmanager
    def connect(self, address: str, key: str, server_key: str) -> Iterator[FakeClient]:
        time.sleep(0.1)
        yield self


class Thoughtful(FakeClient):
    def stream(self, prompt: str = "", **options):
        time.sleep(0.1)
        yield from super().stream(prompt, **options)


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


def test_who_is_quick_says_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr("duoactor.cli.waiting.SILENCE_S", 30)
    assert run(FakeClient(), "generate", "x") == 0
    assert capsys.readouterr().err == ""
