"""Real processes: ``duoactor up`` with the bundled pair, and waiting for what processes do."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

WAIT_S = 120  # for processes to load a model on a busy machine; only a hang reaches it


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "duoactor", *arguments]


def run(*arguments: str, enter: Sequence[str] = (), **options) -> subprocess.CompletedProcess[str]:
    """``enter``: words in front of the command."""
    return subprocess.run([*enter, *command(*arguments)], capture_output=True, text=True, timeout=WAIT_S, **options)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def until(condition, what: str):
    """Poll processes, which tell nobody; a hang fails with what was waited for."""
    end = time.monotonic() + WAIT_S
    while not (result := condition()):
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.05)
    return result


def below(pid: int) -> list[int]:
    """A process and all that it has started, and those in turn."""
    threads = Path(f"/proc/{pid}/task").glob("*/children")
    return [pid, *(one for thread in threads for child in thread.read_text().split() for one in below(int(child)))]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def runs(pid: int, role: str) -> bool:
    return f"-m\0duoactor\0{role}\0" in Path(f"/proc/{pid}/cmdline").read_text()


class Up:
    def __init__(self, directory: Path, *flags: str) -> None:
        self.directory = directory
        self.address = f"ipc://{directory}/run/v.ipc"
        usual = [
            *([] if "--http" in flags else ["--http=none"]),
            *([] if "--target" in flags else ["--target=bundled"]),
        ]
        self.process = subprocess.Popen(
            command("up", "--bind", self.address, "--json", *usual, *flags),
            stdout=subprocess.PIPE,
            stderr=(directory / "up.log").open("w"),
            text=True,
        )
        assert self.process.stdout is not None
        decoder, text = json.JSONDecoder(), ""
        for line in self.process.stdout:
            text += line
            try:
                self.document, _ = decoder.raw_decode(text)
                return
            except ValueError:
                continue
        raise AssertionError((directory / "up.log").read_text())

    def pid(self, role: str) -> int:
        return next(actor["pid"] for actor in self.document["actors"] if actor["role"] == role)

    def stop(self, how: int = signal.SIGTERM) -> int:
        """Its exit code, once nothing of it is left."""
        actors = below(self.process.pid)[1:]
        self.process.send_signal(how)
        code = self.process.wait(WAIT_S)
        until(lambda: not any(map(alive, actors)), "the actors to end")
        run = self.directory / "run"
        assert how == signal.SIGKILL or not run.exists() or not any(run.iterdir())
        return code
