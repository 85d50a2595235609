"""Each command against a client that answers from memory."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from actors.settings import ControllerSettings, DrafterSettings, VerifierSettings
from duoactor.cli import cli, main
from duoactor.cli.environment import Environment
from duoactor.cli.options import SAMPLING_HELP
from duoactor.serve.settings import GatewaySettings
from protocols.errors import ConnectionLost, RequestError
from protocols.messages import (
    ChatTurn,
    DrafterStatus,
    RequestStats,
    RequestStatus,
    Sampling,
    StatusReport,
    TokenLogprobs,
)

STATS = RequestStats(
    method="sps", prompt_tokens=3, completion_tokens=2, time_to_first_token_ms=10.0, decode_ms=90.0,
    rounds=2, draft_tokens=8, accepted_tokens=3, acceptance_histogram=(0, 1, 1),
)  # fmt: skip
REPORT = StatusReport(
    "r", "org/model", "cpu", "bfloat16", "sps", 61_000.0, 8192, 100, pid=4,
    requests=(RequestStatus("q1", "sps", "decode", 7, "d1"),),
    drafters=(DrafterStatus("d1", "org/draft", "active", 1, 250.0, 100, 60, 0, "box", 77),),
)  # fmt: skip


@dataclass
class FakeChunk:
    text: str
    token_ids: tuple[int, ...] = ()
    accepted: tuple[bool, ...] = ()
    finish_reason: str | None = None
    stats: RequestStats | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()

    @property
    def pieces(self) -> tuple[str, ...]:
        return (self.text,) if self.token_ids else ()


@dataclass
class FakeClient:
    """Answers every stream with ``texts``; notes what it was asked."""

    texts: tuple[str, ...] = ("Hel", "lo")
    fails: Exception | None = None
    asked: list[dict[str, Any]] = field(default_factory=list)
    connected: list[tuple[str, str, str]] = field(default_factory=list)

    def stream(self, prompt: str = "", **options: Any) -> Iterator[FakeChunk]:
        self.asked.append({"prompt": prompt, **options})
        if self.fails:
            raise self.fails
        for number, text in enumerate(self.texts):
            yield FakeChunk(text, (number,), (number > 0,))
        yield FakeChunk("", finish_reason="stop", stats=STATS)

    def status(self) -> StatusReport:
        if self.fails:
            raise self.fails
        return REPORT

    def swap(self, old: str, new: str) -> str:
        self.asked.append({"swap": (old, new)})
        return "moved 1"

    def drain(self, actor_id: str) -> str:
        self.asked.append({"drain": actor_id})
        return ""

    @contextmanager
    def connect(self, address: str, key: str, server_key: str) -> Iterator[FakeClient]:
        self.connected.append((address, key, server_key))
        yield self


@pytest.fixture
def client() -> FakeClient:
    return FakeClient()


def run(client: FakeClient, *arguments: str) -> int:
    return main(arguments, Environment(connect=client.connect))  # type: ignore[arg-type]


# --- help


@pytest.mark.parametrize("name", sorted(cli.commands))
def test_every_help_has_an_example(name: str, capsys: pytest.CaptureFixture[str]):
    assert main([name, "--help"]) == 0
    assert re.search(rf"Example: +(.*\n +)*.*duoactor {name}", capsys.readouterr().out)


def flags_in(help_text: str) -> list[str]:
    return re.findall(r"^ +(?:-\w, )?(--[a-z-]+)", help_text, flags=re.MULTILINE)


@pytest.mark.parametrize(
    ("command", "struct"),
    [
        ("verifier", VerifierSettings),
        ("drafter", DrafterSettings),
        ("controller", ControllerSettings),
        ("serve", GatewaySettings),
        ("up", VerifierSettings),
        ("generate", Sampling),
        ("chat", Sampling),
    ],
)
def test_every_field_is_a_flag_exactly_once(command: str, struct: Any, capsys: pytest.CaptureFixture[str]):
    main([command, "--help"])
    shown = flags_in(capsys.readouterr().out)
    assert len(shown) == len(set(shown))
    missing = {"skip_special_tokens"}  # it is true, and a flag could not say no
    if command == "chat":
        missing.add("logprobs")  # there is no place where a conversation would show them
    for name in set(struct.__struct_fields__) - missing:
        assert shown.count("--" + name.replace("_", "-")) == 1


def test_every_drafter_option_has_a_flag_of_up_but_those_that_up_decides(capsys: pytest.CaptureFixture[str]):
    main(["up", "--help"])
    shown = flags_in(capsys.readouterr().out)
    missing = {
        name
        for name in DrafterSettings.__struct_fields__
        if name != "draft" and "--draft-" + name.replace("_", "-") not in shown
    }
    assert missing == {"connect", "key", "server_key"}


def test_every_sampling_option_is_explained():
    assert set(SAMPLING_HELP) == set(Sampling.__struct_fields__)


def test_no_command_needs_torch_to_show_its_help():
    program = "import sys; from duoactor.cli import main; main(['demo', '--help']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True).returncode == 0


# --- errors


def test_an_error_is_one_sentence_and_exit_code_1(client: FakeClient, capsys: pytest.CaptureFixture[str]):
    client.fails = ConnectionLost("nobody answers at ipc:///x: start `duoactor up`")
    assert run(client, "status") == 1
    out, err = capsys.readouterr()
    assert (out, err) == ("", "duoactor: nobody answers at ipc:///x: start `duoactor up`\n")


def test_a_mistake_of_our_own_shows_no_traceback_either(client: FakeClient, capsys: pytest.CaptureFixture[str]):
    client.fails = ZeroDivisionError("oops")
    assert run(client, "generate", "Hi") == 1
    err = capsys.readouterr().err
    assert err.startswith("duoactor: unexpected ZeroDivisionError: oops") and "Traceback" not in err


def test_debug_shows_where_an_error_comes_from(client: FakeClient):
    client.fails = RequestError("bad_request", "temperature must not be negative")
    with pytest.raises(RequestError):
        run(client, "--debug", "generate", "Hi")


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["generate"],
        ["generate", "x", "--max-tokens", "many"],
        ["verifier", "--threads", "-1"],
        ["up", "--method", "magic"],
        ["swap", "one"],
    ],
)
def test_a_usage_error_is_exit_code_2(client: FakeClient, arguments: list[str], capsys: pytest.CaptureFixture[str]):
    assert run(client, *arguments) == 2
    assert "Error:" in capsys.readouterr().err


def test_ctrl_c_is_exit_code_130_and_quiet(client: FakeClient, capsys: pytest.CaptureFixture[str]):
    client.fails = KeyboardInterrupt()  # type: ignore[assignment]
    assert run(client, "generate", "Hi") == 130
    assert capsys.readouterr().err.strip() == ""


def test_a_reader_that_leaves_is_no_error(tmp_path: Path):
    program = "from duoactor.cli import main; import sys; sys.exit(main(['config', 'init', '-']))"
    writer = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert writer.stdout and writer.stderr
    writer.stdout.close()  # as head does when it has seen enough
    assert writer.stderr.read() == b""
    assert writer.wait() == 0


def test_actors_refuse_a_bad_file_before_anything_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "duo.toml"
    file.write_text("[drafter]\nspeed = 9\n")
    for command in ("up", "verifier", "drafter", "controller"):
        assert main([command, "--config", str(file)]) == 1
        assert "[drafter] has no key speed" in capsys.readouterr().err


# --- generate


def test_generate_streams_plain_text(client: FakeClient, capsys: pytest.CaptureFixture[str]):
    assert run(client, "generate", "Say hello") == 0
    assert capsys.readouterr() == ("Hello\n", "")
    assert client.asked[0]["prompt"] == "Say hello"


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
    assert client.asked[0]["sampling"] == expected


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


def test_without_flags_sampling_is_the_default(client: FakeClient):
    run(client, "generate", "x")
    assert client.asked[0]["sampling"] == Sampling()


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


def test_the_address_and_the_keys_reach_the_client(client: FakeClient):
    run(client, "generate", "x", "--connect", "tcp://h:1", "--key", "a.key", "--server-key", "v.pub")
    run(client, "status")
    assert client.connected == [("tcp://h:1", "a.key", "v.pub"), ("", "", "")]


# --- chat


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


# --- the commands


def test_all_commands_are_there():
    assert isinstance(cli, click.Group)
    assert set(cli.commands) == {
        "demo", "up", "verifier", "drafter", "controller", "generate", "chat",
        "drafters", "swap", "drain", "status", "keys", "config", "datastore", "bench", "inflate", "replay", "serve",
        "top", "doctor", "distill", "learner",
    }  # fmt: skip


def test_the_list_of_commands_cuts_no_sentence_short():
    done = CliRunner().invoke(cli, ["--help"], terminal_width=80)
    assert done.exit_code == 0 and "..." not in done.output.partition("Options:")[2]
