"""With keys, as README says it: what `up` prints works as it is, and a stop is told to everybody at once."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.world.processes import WAIT_S, command, run, until

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[subprocess.Popen[str], list[str], Path]]:
    """The process, what it printed, and the directory of its keys."""
    directory = tmp_path_factory.mktemp("keys")
    for name in ("verifier", "laptop"):
        run("keys", name, "--directory", "keys", cwd=directory)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags = ("--bind", f"tcp://0.0.0.0:{port}", "--key", "keys/verifier.key", "--allow", "keys")
    process = subprocess.Popen(
        command("up", "bundled", "--quiet", *flags), cwd=directory, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
    lines = list(iter(process.stdout.readline, "Stop:  Ctrl-C\n"))
    yield process, lines, directory
    process.kill()
    process.wait()


def printed(lines: list[str], label: str, directory: Path) -> list[str]:
    """The arguments of a printed command, with a key of one's own in its place."""
    line = next(line for line in lines if line.startswith(f"{label}:"))
    program, *arguments = shlex.split(line.removeprefix(f"{label}:"))
    assert program == "duoactor" and "verifier.key" not in line
    return [str(directory / "keys" / "laptop.key") if argument == "YOUR.key" else argument for argument in arguments]


@pytest.mark.parametrize("label", ["Try", "See"])
def test_a_printed_command_works_from_anywhere(up, label: str, tmp_path: Path):
    _, lines, directory = up
    arguments = printed(lines, label, directory)
    limit = ("--max-tokens", "5") if label == "Try" else ()
    done = run(*arguments, *limit, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip()


def test_variables_say_where_and_with_which_keys(up):
    _, lines, directory = up
    address = re.search(r"tcp://\S+", lines[0]).group()
    keys = {"DUOACTOR_KEY": "keys/laptop.key", "DUOACTOR_SERVER_KEY": "keys/verifier.pub"}
    environment = {**os.environ, "DUOACTOR_CONNECT": address, **keys}

    def listed() -> bool:  # in whatever state; a starved drafter is dropped, and comes back
        done = run("drafters", env=environment, cwd=directory)
        assert (done.returncode, done.stderr) == (0, "")
        return len(done.stdout.splitlines()) > 1 and "no drafters" not in done.stdout

    until(listed, "the drafter")


def test_without_a_key_one_sentence_says_what_is_missing(up):
    _, lines, _ = up
    address = re.search(r"tcp://\S+", lines[0]).group()
    done = run("status", "--connect", address)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1 and "--key" in done.stderr and "--server-key" in done.stderr


def test_who_streams_is_told_at_once_that_it_is_stopped(up):  # the last: it stops what the others use
    process, lines, directory = up
    arguments = printed(lines, "Try", directory)
    stream = subprocess.Popen(
        command(*arguments, "--max-tokens", "5000", "--ignore-eos"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert stream.stdout and stream.stdout.read(20)
    process.send_signal(signal.SIGINT)
    _, err = stream.communicate(timeout=WAIT_S)
    assert stream.returncode == 1
    assert "the verifier was shut down" in err and len(err.splitlines()) == 1
    assert process.wait(WAIT_S) == 0
