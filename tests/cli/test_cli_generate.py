"""Generating text, and chatting through a pipe: what is printed, and what is asked."""

from __future__ import annotations

import io
import json
import sys

import pytest

from protocols.messages import ChatTurn, Sampling
from tests.cli.fake_client import FakeClient, run


def test_generate_streams_plain_text(client: FakeClient, capsys: pytest.CaptureFixture[str]):
    assert run(client, "generate", "Say hello") == 0
    assert capsys.readouterr() == ("Hello\n", "")
    assert client.asked[0]["prompt"] == "Say hello"


def test_a_text_that_ends_at_once_is_explained(client: FakeClient, capsys: pytest.CaptureFixture[str]):
    client.texts = ()
    assert run(client, "generate", "What is the capital of France?") == 0
    assert "--chat treats PROMPT as a question" in capsys.readouterr().err
    assert run(client, "generate", "--chat", "What is the capital of France?") == 0
    assert capsys.readouterr().err == ""


def test_generate_in_json_is_one_document(client: FakeClient, capsys: pytest.CaptureFixture[str]):
    assert run(client, "generate", "Say hello", "--json") == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert err == ""
    assert (document["text"], document["token_ids"], document["finish_reason"]) == ("Hello", [0, 1], "stop")
    assert document["metrics"]["time_to_first_token_ms"] == 10.0
    assert document["metrics"]["tokens_per_second"] == pytest.approx(20.0)
    assert document["metrics"]["speculative_decoding"] == {
        "method": "sps",
        "mean_acceptance_length": 2.5,
        "draft_acceptance_rate": 0.375,
        "acceptance_histogram": [0, 1, 1],
        "num_spec_steps": 2,
        "num_draft_tokens": 8,
        "num_accepted_draft_tokens": 3,
    }


def test_every_sampling_flag_reaches_the_request(client: FakeClient):
    arguments = ["--temperature=0.5", "--top-k=4", "--top-p=0.9", "--min-p=0.1", "--repetition-penalty=1.1"]
    arguments += ["--presence-penalty=0.2", "--frequency-penalty=0.3", "--stop=END", "--stop=.", "--stop-token-ids=5"]
    arguments += ["--max-tokens=9", "--seed=8", "--logprobs=0", "--ignore-eos", "--json"]
    arguments += ["--logit-bias=4:-100", "--logit-bias=7:2.5"]
    assert run(client, "generate", "x", *arguments) == 0
    expected = Sampling(0.5, 4, 0.9, 0.1, 1.1, 0.2, 0.3, ("END", "."), (5,), 9, 8, 0, True, ((4, -100.0), (7, 2.5)))
    asked = {name: value for name, value in client.asked[0].items() if name in Sampling.__struct_fields__}
    assert Sampling(**asked) == expected


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        (["generate", "x", "--logprobs=2"], "--logprobs is shown with --json only"),
        (["chat", "--logprobs=2"], "--logprobs"),
    ],
)
def test_logprobs_that_nothing_would_show_are_refused(
    client: FakeClient, command: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
):
    assert run(client, *command) == 2
    assert complaint in capsys.readouterr().err
    assert client.asked == []


def test_a_logit_bias_that_is_none_is_a_usage_error(client: FakeClient, capsys: pytest.CaptureFixture[str]):
    assert run(client, "generate", "x", "--logit-bias=4") == 2
    assert "'4' is not a token id and a number, such as 42:-5" in capsys.readouterr().err


def test_without_flags_the_sampling_is_the_models(client: FakeClient):
    run(client, "generate", "x")
    assert client.asked == [{"prompt": "x", "seed": 0}]


def test_thoughts_are_dimmed_on_a_terminal_and_named_in_json(
    client: FakeClient, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    client.texts = ("[Hm]", "[, hi]", "Hel", "lo")
    run(client, "generate", "--chat", "x", "--json")
    document = json.loads(capsys.readouterr().out)
    assert (document["text"], document["reasoning"], document["content"]) == ("[Hm][, hi]Hello", "Hm, hi", "Hello")
    run(client, "generate", "--chat", "x")
    assert capsys.readouterr().out == "[Hm][, hi]Hello\n"
    monkeypatch.setattr("duoactor.render.knows_escapes", lambda stream: stream is not sys.stderr)
    monkeypatch.delenv("NO_COLOR", raising=False)
    run(client, "generate", "--chat", "x")
    assert capsys.readouterr().out == "\x1b[2mHm\x1b[0m\x1b[2m, hi\x1b[0m\n\nHello\n"


@pytest.mark.parametrize(
    ("reason", "flags", "told"),
    [
        ("stop", ("--max-tokens=2",), "2 tokens, "),
        ("length", ("--max-tokens=2",), "2 tokens (cut there by --max-tokens), "),
        ("length", (), "2 tokens (cut there by the end of the context), "),
    ],
)
@pytest.mark.parametrize("command", [("generate", "x"), ("chat",)])
def test_a_text_that_was_cut_is_marked_on_a_terminal_and_nowhere_else(
    client: FakeClient, command, reason, flags, told, capsys: pytest.CaptureFixture[str], monkeypatch
):
    client.ends = reason
    monkeypatch.setattr("sys.stdin", io.StringIO("One\n"))
    assert run(client, *command, *flags) == 0
    assert capsys.readouterr() == ("Hello\n", "")
    monkeypatch.setattr("sys.stdin", io.StringIO("One\n"))
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    assert run(client, *command, *flags) == 0
    out, err = capsys.readouterr()
    assert out == "Hello\n" and err.startswith(told)


def test_the_method_and_its_budget_reach_the_request(client: FakeClient):
    run(client, "generate", "x", "--method", "pearl", "--num-speculative-tokens", "7", "--sequences", "2")
    asked = client.asked[0]
    assert (asked["method"], asked["num_speculative_tokens"], asked["sequences"]) == ("pearl", 7, 2)


def test_a_dash_reads_the_prompt_from_standard_input(client: FakeClient, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("from a pipe"))
    assert run(client, "generate", "-") == 0
    assert client.asked[0]["prompt"] == "from a pipe"


def test_an_empty_prompt_is_refused_without_asking_anybody(client: FakeClient, capsys: pytest.CaptureFixture[str]):
    assert run(client, "generate", "") == 1
    assert "the prompt is empty" in capsys.readouterr().err
    assert client.connected == []


def test_chat_makes_the_prompt_a_turn(client: FakeClient):
    run(client, "generate", "--chat", "Hi")
    assert client.asked[0]["messages"] == (ChatTurn("user", "Hi"),)
    assert client.asked[0]["prompt"] == ""


def test_colours_tell_drafted_tokens_from_the_targets_own(client: FakeClient, capsys: pytest.CaptureFixture[str]):
    run(client, "generate", "x", "--color", "always")
    out = capsys.readouterr().out
    assert "\x1b[35mHel" in out and "\x1b[32mlo" in out
    run(client, "generate", "x", "--color", "auto")  # not a terminal
    assert "\x1b" not in capsys.readouterr().out


def test_a_piped_chat_has_one_turn_per_line_and_remembers(
    client: FakeClient, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("sys.stdin", io.StringIO("One\n\nTwo\n"))
    assert run(client, "chat", "--system", "Be brief") == 0
    assert capsys.readouterr().out == "Hello\nHello\n"
    assert client.asked[1]["messages"] == (
        ChatTurn("system", "Be brief"),
        ChatTurn("user", "One"),
        ChatTurn("assistant", "Hello"),
        ChatTurn("user", "Two"),
    )


def test_what_is_no_number_is_called_so(client: FakeClient, capsys: pytest.CaptureFixture[str]):
    for option, kind in (("--temperature", "number"), ("--top-k", "whole number")):
        assert run(client, "generate", "x", option, "warm") == 2
        assert f"'warm' is not a valid {kind}." in " ".join(capsys.readouterr().err.split())
