"""Each command against a client that answers from memory."""

from __future__ import annotations

import errno
import re
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from actors.settings import ControllerSettings, DrafterSettings, VerifierSettings
from duoactor.cli import cli, main
from duoactor.cli.options import ELSEWHERE, SAMPLING_HELP
from duoactor.config import write_new
from duoactor.serve.settings import GatewaySettings
from protocols.errors import ConfigError, ConnectionLost, RequestError
from protocols.messages import Sampling
from tests.cli.fake_client import FakeClient, run

SCREEN = 42  # lines


@pytest.mark.parametrize("name", sorted(cli.list_commands(click.Context(cli))))
def test_every_help_has_an_example_and_fits_on_a_screen_or_says_where_the_rest_is(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", "80")
    assert main([name, "--help"]) == 0
    brief = capsys.readouterr().out
    assert re.search(rf"Example: +(.*\n +)*.*duoactor {name}", brief)
    assert len(brief.splitlines()) <= SCREEN
    assert [line for line in brief.splitlines() if len(line) > 80] == []
    if "--help-all" in flags_in(brief):
        assert main([name, "--help-all"]) == 0
        assert set(flags_in(brief)) < set(flags_in(capsys.readouterr().out))


def flags_in(help_text: str) -> list[str]:
    return re.findall(r"^  (?:-\w, )?(--[a-z-]+)", help_text, flags=re.MULTILINE)


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
    main([command, "--help" if command in ("drafter", "controller") else "--help-all"])
    shown = flags_in(capsys.readouterr().out)
    assert len(shown) == len(set(shown))
    missing = {"skip_special_tokens"}  # it is true, and a flag could not say no
    if command == "chat":
        missing.add("logprobs")  # there is no place where a conversation would show them
    for name in set(struct.__struct_fields__) - missing:
        assert shown.count("--" + name.replace("_", "-")) == 1


def test_every_drafter_option_has_a_flag_of_up_but_those_that_up_decides(capsys: pytest.CaptureFixture[str]):
    main(["up", "--help-all"])
    shown = flags_in(capsys.readouterr().out)
    missing = {
        name
        for name in DrafterSettings.__struct_fields__
        if name != "draft" and "--draft-" + name.replace("_", "-") not in shown
    }
    assert missing == {"connect", "key", "server_key"}


def test_every_sampling_option_is_explained():
    assert set(SAMPLING_HELP) == set(Sampling.__struct_fields__)


def test_help_has_what_most_people_need_first_and_how_to_connect_last(capsys: pytest.CaptureFixture[str]):
    main(["up", "--help-all"])
    _, *sections = re.split(r"^(?=\S.*:$)", capsys.readouterr().out, flags=re.MULTILINE)
    flags = {section.partition(":")[0]: flags_in(section) for section in sections}
    assert list(flags) == ["Options", "Verifier", "Drafters", "Gateway", "Connection"]
    assert {"--target", "--draft", "--http", "--config"} <= set(flags["Options"])
    assert flags["Connection"] == ["--bind", "--key", "--allow"]


def test_flags_of_other_servers_are_answered_by_those_that_are_meant(capsys: pytest.CaptureFixture[str]):
    for flag, meant in (
        ("--host", "--http HOST:PORT"),
        ("--ctx-size", "--kv-tokens"),
        ("-m", "duoactor up MODEL"),
        ("-md", "There is no -md; --draft"),
        ("-ngl", "--device cuda"),
    ):
        assert main(["up", flag, "1"]) == 2
        assert meant in capsys.readouterr().err
    assert main(["generate", "Hi", "--temp", "1"]) == 2 and "--temperature" in capsys.readouterr().err
    main(["up", "--help-all"])
    main(["generate", "--help"])
    known = set(re.findall("--[a-z-]+", capsys.readouterr().out))
    assert set(re.findall("--[a-z-]+", " ".join(ELSEWHERE.values()))) <= known


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("stop", "`duoactor ps` shows"),
        ("upp", "did you mean up?"),
        ("models", "`duoactor list`"),
        ("version", "`duoactor --version`"),
        ("rm", "hub's cache"),
        ("zzz", "--help lists them"),
    ],
)
def test_a_command_that_is_none_is_answered_by_the_one_that_is_meant(name, meant, capsys: pytest.CaptureFixture[str]):
    assert main([name]) == 2
    assert f"There is no command {name}; " in (told := capsys.readouterr().err) and meant in told


@pytest.mark.parametrize("arguments", [["smollm2"], ["--model", "smollm2"], ["-m", "smollm2"]])
def test_serve_with_a_model_as_in_vllm_is_answered_by_up(arguments: list[str], capsys: pytest.CaptureFixture[str]):
    assert main(["serve", *arguments]) == 2
    assert "`duoactor up MODEL`" in capsys.readouterr().err


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


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            FileNotFoundError(errno.ENOENT, "No such file or directory", "/no/x"),
            "/no/x cannot be used (No such",
        ),
        (
            PermissionError(errno.EACCES, "Permission denied", "/x"),
            "/x cannot be used (Permission denied)",
        ),
        (OSError(errno.ENOSPC, "No space left on device"), "a file, or the output, cannot be written (No space left"),
        (OSError(errno.EFBIG, "File too large", "/x"), "/x cannot be written (File too large): make room there"),
    ],
)
def test_a_place_that_cannot_be_written_is_named_with_what_to_do(
    client: FakeClient, capsys: pytest.CaptureFixture[str], error: OSError, told: str
):
    client.fails = error
    assert run(client, "generate", "Hi") == 1
    err = capsys.readouterr().err
    assert err.startswith(f"duoactor: {told}") and "another place" in err and err.count("\n") == 1


def test_a_new_file_that_does_not_fit_on_the_disk_is_not_left_half_written(tmp_path: Path):
    """The next try would have said that it exists already."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        with pytest.raises(ConfigError, match="cannot be written"):
            write_new(str(tmp_path / "duo.toml"), "x" * 100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [*tmp_path.iterdir()] == []
    write_new(str(tmp_path / "duo.toml"), "x" * 100)


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


def test_the_address_and_the_keys_reach_the_client(client: FakeClient):
    run(client, "generate", "x", "--connect", "tcp://h:1", "--key", "a.key", "--server-key", "v.pub")
    run(client, "status")
    assert client.connected == [("tcp://h:1", "a.key", "v.pub"), ("", "", "")]


# --- the commands


def test_all_commands_are_there():
    assert isinstance(cli, click.Group)
    assert set(cli.list_commands(click.Context(cli))) == {
        "demo", "up", "verifier", "drafter", "controller", "generate", "chat", "run",
        "drafters", "swap", "drain", "status", "keys", "config", "datastore", "bench", "inflate", "replay", "serve",
        "top", "doctor", "distill", "learner", "pull", "list", "ps", "prove",
    }  # fmt: skip


def test_the_list_of_commands_cuts_no_sentence_short():
    done = CliRunner().invoke(cli, ["--help"], terminal_width=80)
    assert done.exit_code == 0 and "..." not in done.output.partition("Options:")[2]
