"""An actor as a child process: its start, its output, and that neither end outlives the other."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from actors.settings import PEER_VARIABLES
from protocols.messages import Role

STOP_S = 5.0  # time between SIGTERM and SIGKILL
END_OF_OUTPUT_S = 1.0  # after its exit: for output that a process which left its group still holds open
TAIL = 20  # lines of a child's output that are kept for the error message
LONGEST_LINE = 1 << 20  # bytes; a longer one is cut in two
MARK = "duoactor: "  # begins the one sentence of an actor that cannot run


GATEWAY: Final = "gateway"  # no role of the protocol: to the verifier it is a client


@dataclass(frozen=True, slots=True)
class ActorPlan:
    """The start of one actor; ``name`` is unique and stands before its log lines. ``http``: where a gateway is asked
    whether it is ready; ``secrets``: environment variables, since everybody may read a command line."""

    role: Role | Literal["gateway"]
    name: str
    command: tuple[str, ...]
    threads: int = 1
    http: tuple[str, int] = ("", 0)
    finish_s: float = 0.0  # time that it may take to finish its work, before it has ``STOP_S`` to end
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)


class OutputLines:
    """Bytes in, lines out. What follows a carriage return is a progress bar: it replaces itself and is no line."""

    def __init__(self, line: Callable[[str], None], progress: Callable[[str], None]) -> None:
        self._line = line
        self._progress = progress
        self._rest = b""

    def feed(self, data: bytes) -> None:
        *whole, rest = (self._rest + data).split(b"\n")
        for line in whole:
            self._complete(line)
        if len(rest) > LONGEST_LINE:
            self._complete(rest)
            rest = b""
        before, bar, last = rest.rpartition(b"\r")
        if bar:
            self._progress(_text(last or before.rpartition(b"\r")[2]))
        self._rest = bar + last

    def end(self) -> None:
        if self._rest.strip(b"\r"):  # else a bar that was taken away
            self._complete(self._rest)
        self._rest = b""

    def _complete(self, line: bytes) -> None:
        line = line.removesuffix(b"\r")
        if b"\r" in line:
            self._progress(_text(line.rpartition(b"\r")[2]))
        else:
            self._line(_text(line))


def _text(data: bytes) -> str:
    return data.decode(errors="replace").strip("\r")


class Child(asyncio.Protocol):
    """One life of an actor, from its start to its exit."""

    def __init__(
        self, process: subprocess.Popen[bytes], line: Callable[[str], None], progress: Callable[[str], None]
    ) -> None:
        self.pid = process.pid
        self.tail: deque[str] = deque(maxlen=TAIL)
        self.sentence = ""  # why it cannot run, in its own words
        self._process = process
        self._tell = line
        self._output = OutputLines(self._take, progress)
        self._loop = asyncio.get_running_loop()
        self._closed = asyncio.Event()
        self._exited = asyncio.Event()
        threading.Thread(target=self._await_exit, name=f"exit-of-{self.pid}", daemon=True).start()

    @classmethod
    async def start(cls, plan: ActorPlan, line: Callable[[str], None], progress: Callable[[str], None]) -> Child:
        """Raises OSError if the command cannot be run."""
        process = _spawn(plan)
        child = cls(process, line, progress)
        await child._loop.connect_read_pipe(lambda: child, process.stdout)
        return child

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._output_pipe = transport

    def _take(self, line: str) -> None:
        self.tail.append(line)
        if line.startswith(MARK):
            self.sentence = line.removeprefix(MARK)  # shown once, with what follows from it
        else:
            self._tell(line)

    def data_received(self, data: bytes) -> None:
        self._output.feed(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._output.end()
        self._closed.set()

    def _await_exit(self) -> None:
        """Runs on a thread of its own. The dead process is not reaped here, so that its id cannot be given anew."""
        if hasattr(os, "waitid"):
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        else:  # macOS before Python 3.13
            self._process.wait()
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        """Reap it, and kill its children: that would hold on to memory, devices and our pipe."""
        self._signal(signal.SIGKILL)
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._exited.set()

    async def wait(self) -> int:
        """The exit code, once all of its output was shown."""
        await self._exited.wait()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._closed.wait(), END_OF_OUTPUT_S)
        self._output_pipe.close()
        return self._process.returncode

    def terminate(self) -> None:
        if not self._exited.is_set():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Kill it and its children."""
        if not self._exited.is_set():
            self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        """Signal it and its group, which has its id until it is reaped."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


def _spawn(plan: ActorPlan) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        plan.command,
        stdin=subprocess.PIPE,  # its end is the sign that we are gone: see die_with_parent
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,  # stdout belongs to our own documents
        bufsize=0,
        env=environment_of(plan),
        start_new_session=True,  # Ctrl-C reaches us alone, and we stop them in order
    )


def environment_of(plan: ActorPlan) -> Mapping[str, str]:
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(plan.threads))
    own = {
        name: value for name, value in os.environ.items() if name not in PEER_VARIABLES.values()
    }  # we say it by flags
    # TQDM_POSITION: Hugging Face's progress bars are drawn although the child writes to a pipe; we show them
    return {**own, **plan.secrets, **threads, "PYTHONUNBUFFERED": "1", "TQDM_POSITION": "-1"}


def die_with_parent() -> None:
    """In a child of the supervisor: end when the supervisor is gone, even after a ``kill -9`` of it.

    The supervisor holds the other end of our standard input; its end is the news, on every system and without
    polling. First SIGTERM, so that the actor closes its sockets; after ``STOP_S`` the hard way.
    """

    def watch() -> None:
        with contextlib.suppress(OSError):
            while os.read(0, 1024):
                pass
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(STOP_S)
        os._exit(1)

    threading.Thread(target=watch, name="die-with-parent", daemon=True).start()


def own_command(*arguments: str) -> tuple[str, ...]:
    """The command line that runs duoactor itself in a child."""
    return (sys.executable, "-m", "duoactor", *arguments)
