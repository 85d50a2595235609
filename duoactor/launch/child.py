"""An actor as a child process: how it is started, what it writes, and that neither end outlives the other."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, cast

from actors.settings import PEER_VARIABLES
from protocols.messages import Role

STOP_S = 5.0  # from SIGTERM to SIGKILL
END_OF_OUTPUT_S = 1.0  # after its exit: for output that a process which left its group still holds open
TAIL = 20  # lines of a child's output that are kept for the error message
LONGEST_LINE = 1 << 20  # bytes; a longer one is cut in two
MARK = "duoactor: "  # begins the one sentence of an actor that cannot run


GATEWAY: Final = "gateway"  # no role of the protocol: to the verifier it is a client


@dataclass(frozen=True, slots=True)
class ActorPlan:
    """How to start one actor; ``name`` is unique and stands before its log lines. ``http``: where a gateway is asked
    whether it is ready."""

    role: Role | Literal["gateway"]
    name: str
    command: tuple[str, ...]
    threads: int = 1
    http: tuple[str, int] = ("", 0)
    finish_s: float = 0.0  # that it may take to finish its work, before it has ``STOP_S`` to end
    forked: bool = False  # it computes with a model on the CPU: see :mod:`duoactor.cli.fork_server`


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
        if self._rest:
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


class Child(asyncio.SubprocessProtocol):
    """One life of an actor, from its start to its exit."""

    def __init__(self, line: Callable[[str], None], progress: Callable[[str], None]) -> None:
        self.tail: deque[str] = deque(maxlen=TAIL)
        self.sentence = ""  # why it cannot run, in its own words
        self.pid = 0
        self._tell = line
        self._output = OutputLines(self._take, progress)
        self._closed = asyncio.Event()
        self._exited = asyncio.Event()

    @classmethod
    async def start(
        cls,
        plan: ActorPlan,
        line: Callable[[str], None],
        progress: Callable[[str], None],
        stdin: int = asyncio.subprocess.PIPE,  # its end is the sign that we are gone: see die_with_parent
    ) -> Child:
        """Raises OSError if the command cannot be run."""
        _, child = await asyncio.get_running_loop().subprocess_exec(
            lambda: cls(line, progress),
            *plan.command,
            stdin=stdin,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,  # stdout belongs to our own documents
            env=environment_of(plan),
            start_new_session=True,  # Ctrl-C reaches us alone, and we stop them in order
        )
        return child

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.SubprocessTransport, transport)
        self.pid = self._transport.get_pid() or 0

    def _take(self, line: str) -> None:
        self.tail.append(line)
        if line.startswith(MARK):
            self.sentence = line.removeprefix(MARK)  # told once, with what follows from it
        else:
            self._tell(line)

    def pipe_data_received(self, fd: int, data: bytes | str) -> None:
        self._output.feed(cast(bytes, data))

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 1:
            self._output.end()
            self._closed.set()

    def process_exited(self) -> None:
        self._exited.set()

    async def wait(self) -> int:
        """The exit code, once all of its output was told. What it had started in its turn is killed with it: it would
        hold on to memory, devices and our pipe."""
        await self._exited.wait()
        self._signal_group(signal.SIGKILL)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._closed.wait(), END_OF_OUTPUT_S)
        code = self._transport.get_returncode()
        self._transport.close()
        assert code is not None
        return code

    def terminate(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._transport.terminate()

    def kill(self) -> None:
        """It and whatever it started."""
        if not self._exited.is_set():
            self._signal_group(signal.SIGKILL)

    def _signal_group(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


def environment_of(plan: ActorPlan) -> Mapping[str, str]:
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(plan.threads))
    own = {
        name: value for name, value in os.environ.items() if name not in PEER_VARIABLES.values()
    }  # we say it by flags
    # TQDM_POSITION: Hugging Face's progress bars are drawn although the child writes to a pipe; we show them
    return {**own, **threads, "PYTHONUNBUFFERED": "1", "TQDM_POSITION": "-1"}


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
