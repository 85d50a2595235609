"""What begins with a slash is for us, not for the model."""

from __future__ import annotations

import io

import pytest

from duoactor.render import TokenStream
from protocols.errors import RequestError
from protocols.messages import ChatTurn
from tests.cli.fake_client import FakeClient, FakeStream, run


def say(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(line + "\n" for line in lines)))


def type_in(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    """As on a terminal, then Ctrl-D."""
    left = iter(lines)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)

    def typed(prompt: str) -> str:
        try:
            return next(left)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", typed)


def test_help_lists_the_commands_and_asks_nobody(client: FakeClient, monkeypatch: pytest.MonkeyPatch, capsys):
    say(monkeypatch, "/help")
    assert run(client, "chat") == 0
    out, err = capsys.readouterr()
    assert out == "" and client.asked == []
    assert all(command in err for command in ("/help", "/clear", "/exit"))


def test_an_unknown_command_says_what_there_is(client: FakeClient, monkeypatch: pytest.MonkeyPatch, capsys):
    say(monkeypatch, "/reset")
    assert run(client, "chat") == 0
    err = capsys.readouterr().err
    assert err.startswith("there is no command /reset; there are:\n") and "/clear" in err
    assert client.asked == []


def test_a_path_in_a_sentence_is_no_command(client: FakeClient, monkeypatch: pytest.MonkeyPatch):
    say(monkeypatch, "/etc/hosts is a file?", "/tmp/x")
    assert run(client, "chat") == 0
    assert [asked["messages"][-1].content for asked in client.asked] == ["/etc/hosts is a file?", "/tmp/x"]


def test_clear_forgets_the_conversation_but_not_the_system_message(
    client: FakeClient, monkeypatch: pytest.MonkeyPatch, capsys
):
    say(monkeypatch, "One", "/clear", "Two")
    assert run(client, "chat", "--system", "Be brief") == 0
    assert client.asked[1]["messages"] == (ChatTurn("system", "Be brief"), ChatTurn("user", "Two"))
    assert capsys.readouterr().err == "the conversation is forgotten\n"


@pytest.mark.parametrize("command", ["/exit", "/quit"])
def test_exit_leaves(client: FakeClient, command: str, monkeypatch: pytest.MonkeyPatch):
    say(monkeypatch, command, "One")
    assert run(client, "chat") == 0
    assert client.asked == []


def test_ctrl_c_cuts_an_answer_short_and_the_conversation_goes_on(
    client: FakeClient, monkeypatch: pytest.MonkeyPatch, capsys
):
    type_in(monkeypatch, "One", "Two")
    interrupts = iter([True, False, False])
    closed: list[bool] = []

    def write(self, pieces, accepted, text):
        written(self, pieces, accepted, text)
        if next(interrupts, False):
            raise KeyboardInterrupt

    written = TokenStream.write
    monkeypatch.setattr(TokenStream, "write", write)
    monkeypatch.setattr(FakeStream, "close", lambda stream: closed.append(True))
    assert run(client, "chat") == 0
    assert capsys.readouterr().out == "Hel\nHello\n\n"
    assert client.asked[1]["messages"] == (
        ChatTurn("user", "One"),
        ChatTurn("assistant", "Hel"),
        ChatTurn("user", "Two"),
    )
    assert len(closed) == 2


def interrupted_at_the_prompt(monkeypatch: pytest.MonkeyPatch, keys: list[str | type[BaseException]]) -> None:
    """Lines, and what is pressed in place of one."""
    left = iter(keys)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)

    def typed(prompt: str) -> str:
        key = next(left)
        if isinstance(key, str):
            return key
        raise key

    monkeypatch.setattr("builtins.input", typed)


def test_ctrl_c_at_the_prompt_keeps_the_conversation(client: FakeClient, monkeypatch: pytest.MonkeyPatch, capsys):
    interrupted_at_the_prompt(monkeypatch, ["One", KeyboardInterrupt, "Two", KeyboardInterrupt, EOFError])
    assert run(client, "chat") == 0
    assert [turn.content for turn in client.asked[1]["messages"]] == ["One", "Hello", "Two"]
    assert capsys.readouterr().err == "Ctrl-C once more, Ctrl-D or /exit ends the conversation\n" * 2


def test_ctrl_c_twice_at_the_prompt_leaves(client: FakeClient, monkeypatch: pytest.MonkeyPatch):
    interrupted_at_the_prompt(monkeypatch, ["One", KeyboardInterrupt, KeyboardInterrupt, "Two"])
    assert run(client, "chat") == 130
    assert len(client.asked) == 1


def test_a_refused_turn_is_told_and_not_remembered(client: FakeClient, monkeypatch: pytest.MonkeyPatch, capsys):
    type_in(monkeypatch, "One")
    client.fails = RequestError("bad_request", "the conversation is too long")
    assert run(client, "chat") == 0
    assert capsys.readouterr().err == "duoactor: the conversation is too long\n"


def test_in_a_pipe_a_refused_turn_ends_it(client: FakeClient, monkeypatch: pytest.MonkeyPatch, capsys):
    say(monkeypatch, "One", "Two")
    client.fails = RequestError("bad_request", "the conversation is too long")
    assert run(client, "chat") == 1
    assert len(client.asked) == 1
