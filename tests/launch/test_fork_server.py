"""Actors that are forked from a process that has made their imports. Here it has made none, but for one test."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from unittest.mock import AsyncMock

import pytest

from duoactor.launch import forks
from duoactor.launch.child import ActorPlan, Child, environment_of, own_command
from duoactor.launch.forks import ForkServer, computes_here, is_forked
from duoactor.launch.supervisor import Event, LaunchError, Supervisor
from protocols.messages import Role

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux")
WITHOUT_IMPORTS = """
import sys
from types import SimpleNamespace
sys.modules["actors.engines.preload"] = SimpleNamespace(preload=lambda: None)
from duoactor.cli.fork_server import main
sys.exit(main())
"""


def plan(*arguments: str, forked: bool = True) -> ActorPlan:
    return ActorPlan(Role.CONTROLLER, "c", own_command(*arguments), forked=forked)


class Forked:
    """A server and what its children have said."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.lines: list[str] = []
        self.progress: list[str] = []
        self.server = ForkServer(self.lines.append, self.progress.append)

    async def start(self, *arguments: str) -> Child:
        return await self.server.start(plan(*arguments), self.lines.append, lambda progress: None)

    async def controller(self) -> Child:
        """One that waits for a verifier: it lives until it is ended."""
        before = len(self.lines)
        child = await self.start("controller", f"--connect=ipc://{self.directory}/verifier")
        while not any("waiting for a verifier" in line for line in self.lines[before:]):
            await asyncio.sleep(0.01)
        return child


def command_line(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")


@pytest.fixture
async def forked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[Forked]:
    command = (sys.executable, "-c", WITHOUT_IMPORTS, " " * forks.ROOM)
    monkeypatch.setattr(forks, "SERVER", ActorPlan(Role.VERIFIER, "fork server", command))
    os.chmod(tmp_path, 0o700)
    forked = Forked(tmp_path)
    yield forked
    await forked.server.close()


LOGGING = """
import logging, sys
from types import SimpleNamespace

def preload():
    log = logging.getLogger("duoactor.engines")
    log.info("compiling")
    log.warning("it cannot be compiled")

sys.modules["actors.engines.preload"] = SimpleNamespace(preload=preload)
from duoactor.cli.fork_server import main
sys.exit(main())
"""


async def test_what_the_imports_log_is_progress_and_their_warnings_are_lines(
    forked: Forked, monkeypatch: pytest.MonkeyPatch
):
    command = (sys.executable, "-c", LOGGING, " " * forks.ROOM)
    monkeypatch.setattr(forks, "SERVER", ActorPlan(Role.VERIFIER, "fork server", command))
    child = await forked.start("--version")
    assert await child.wait() == 0
    assert list(dict.fromkeys(forked.progress)) == ["compiling", ""]
    assert forked.lines[0] == "it cannot be compiled" and forked.lines[1].startswith("duoactor ")


async def test_what_a_forked_actor_says_and_its_exit_code_are_heard(forked: Forked):
    child = await forked.start("--version")
    assert await child.wait() == 0
    assert len(forked.lines) == 1 and forked.lines[0].startswith("duoactor ")
    child = await forked.start("controller", "--no-such-option")
    assert await child.wait() == 2
    assert any("--no-such-option" in line for line in child.tail)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, 0)])
async def test_a_signal_ends_a_forked_actor_as_any_other(forked: Forked, number: signal.Signals, code: int):
    child = await forked.controller()
    assert os.getpgid(child.pid) == child.pid
    os.kill(child.pid, number)
    assert await child.wait() == code


async def test_a_forked_actor_ends_when_its_supervisor_is_gone(forked: Forked):
    child = await forked.start("controller", "--supervised", f"--connect=ipc://{forked.directory}/verifier")
    child._transport.close()  # its standard input, as the system does for a killed supervisor
    await child._exited.wait()


async def test_the_actors_go_on_when_the_server_is_killed_and_the_next_one_gets_a_new_server(forked: Forked):
    first = await forked.controller()
    assert forked.server._child
    os.kill(forked.server._child.pid, signal.SIGKILL)
    await forked.server._child.wait()
    with pytest.raises(ConnectionError):
        await forked.controller()
    second = await forked.controller()
    for child in (first, second):
        child.terminate()
        assert await child.wait() == 0


async def test_a_forked_actor_is_listed_under_its_own_command(forked: Forked):
    child = await forked.controller()
    assert command_line(child.pid)[1:4] == ["-m", "duoactor", "controller"]
    child.kill()
    await child.wait()


async def test_where_no_server_can_be_started_actors_are_started_one_by_one(monkeypatch: pytest.MonkeyPatch):
    broken = ActorPlan(Role.VERIFIER, "fork server", (sys.executable, "-c", "raise SystemExit(1)"))
    monkeypatch.setattr(forks, "SERVER", broken)
    events: list[Event] = []
    actor = ActorPlan(Role.VERIFIER, "v", own_command("--version"), forked=True)
    with pytest.raises(LaunchError, match="stopped before it was ready"):
        async with Supervisor((actor,), AsyncMock(return_value=None), report=events.append):
            pass
    assert any(event.kind == "line" and event.text.startswith("duoactor ") for event in events)


def test_only_actors_of_our_own_that_compute_on_the_cpu_are_forked(monkeypatch: pytest.MonkeyPatch):
    assert is_forked(plan("drafter"))
    assert not is_forked(plan("drafter", forked=False))
    assert not is_forked(ActorPlan(Role.DRAFTER, "d", ("program",), forked=True))
    assert computes_here("cpu") and not computes_here("cuda")
    monkeypatch.setattr(forks, "ACCELERATORS", ("/dev/null",))
    assert computes_here("cpu") and not computes_here("auto")


def test_the_imports_leave_no_thread_behind_that_a_fork_would_lack():
    program = "from actors.engines.preload import preload; preload(); import os; print(os.listdir('/proc/self/task'))"
    environment = environment_of(forks.SERVER)
    said = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert said.stdout.count(",") == 0, said.stdout
