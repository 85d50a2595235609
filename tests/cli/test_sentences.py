"""Sentences of ours on stderr: folded where a terminal is narrow, whole in a pipe."""

from __future__ import annotations

import io
import sys

import pytest

from duoactor import render
from duoactor.cli import main
from duoactor.cli.environment import Environment
from protocols.errors import RequestError
from tests.cli.fake_client import FakeClient, run

NARROW = 40  # columns


def on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setattr("duoactor.render.width", lambda terminal: NARROW)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")


def refused(client: FakeClient, *command: str) -> None:
    client.fails = RequestError("bad_request", "the conversation is too long for this model, so begin a new one")
    run(client, *command)


def disk_is_full(client: FakeClient, *command: str) -> None:
    client.fails = OSError(28, "No space left on device")
    run(client, *command)


def unexpected(client: FakeClient, *command: str) -> None:
    client.fails = ValueError("something that nobody has thought of happened in here")
    run(client, *command)


@pytest.mark.parametrize("trouble", [refused, disk_is_full, unexpected])
@pytest.mark.parametrize("command", [("generate", "x"), ("chat",)])
def test_an_error_is_folded_between_words(trouble, command, client, monkeypatch, capsys):
    on_a_narrow_terminal(monkeypatch)
    monkeypatch.setattr("sys.stdin", io.StringIO("One\n"))
    trouble(client, *command)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) > 1 and all(line.startswith(render.CONTINUED) for line in lines[1:])
    assert all(len(line) <= NARROW or "`" in line for line in lines), lines


@pytest.mark.parametrize("trouble", [refused, disk_is_full, unexpected])
def test_an_error_in_a_pipe_is_one_line(trouble, client, capsys):
    trouble(client, "generate", "x")
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_no_http_since_the_verifier_has_keys_is_folded(tmp_path, capsys, monkeypatch):
    on_a_narrow_terminal(monkeypatch)
    assert main(["up", str(tmp_path / "nowhere"), "--key", str(tmp_path / "no.key")], Environment()) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("duoactor: no HTTP, since") and lines[1].startswith(render.CONTINUED)
    assert all(len(line) <= NARROW or str(tmp_path) in line for line in lines), lines


def test_a_command_in_a_sentence_stays_whole(capsys, monkeypatch):
    on_a_narrow_terminal(monkeypatch)
    command = "`duoactor up --config a-file-with-a-name.toml`"
    render.say(f"the file is written, so use it with {command}, or with another option")
    lines = capsys.readouterr().err.splitlines()
    assert any(command in line for line in lines) and len(lines) > 2
    assert all(len(line) <= NARROW or command in line for line in lines)


def test_a_sentence_takes_the_line_away_that_tells_of_progress(capsys, monkeypatch):
    on_a_narrow_terminal(monkeypatch)
    with render.Spinner(sys.stderr) as spinner:
        spinner.show("half of it")
        render.say("more")
        spinner.show("half of it")
    shown = capsys.readouterr().err
    assert shown == "\r\x1b[Khalf of it\r\x1b[Kduoactor: more\n\r\x1b[Khalf of it\r\x1b[K"


@pytest.mark.parametrize("closed", ["stdout", "stderr"])
def test_output_that_is_closed_changes_no_exit_code(closed, client, monkeypatch):
    monkeypatch.setattr(sys, closed, None)
    assert run(client, "generate", "x") == 0
    monkeypatch.setattr(sys, closed, None)
    refused(client, "generate", "x")


@pytest.mark.parametrize("number", [13, 28, 30])
def test_an_error_of_a_file_says_how_to_see_where_it_comes_from(number, client, capsys):
    client.fails = OSError(number, "it cannot be", "/a/file")
    assert run(client, "generate", "x") == 1
    told = capsys.readouterr().err
    assert told.startswith("duoactor: /a/file cannot be ") and "`duoactor --debug …`" in told
