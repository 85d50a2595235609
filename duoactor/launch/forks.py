"""The supervisor's end of a :mod:`duoactor.cli.fork_server`, and the children that come from it. On Linux only."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence

import msgspec

from duoactor.launch.child import ActorPlan, Child, environment_of, own_command
from duoactor.launch.forking import LONGEST, ROOM, Fork
from protocols.messages import Role

PR_SET_CHILD_SUBREAPER = 36
ACCELERATORS = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")  # NVIDIA's, the same in WSL, AMD's
SERVER = ActorPlan(Role.VERIFIER, "fork server", (sys.executable, "-m", "duoactor.cli.fork_server", " " * ROOM))


def computes_here(device: str) -> bool:
    """Whether a model on that device is one on the CPU: a process that has touched a GPU cannot be forked."""
    return device == "cpu" or (device == "auto" and not any(map(os.path.exists, ACCELERATORS)))


def is_forked(plan: ActorPlan) -> bool:
    """Whether an orphan comes to us on this system, and that actor can be one."""
    ours = own_command()
    return plan.forked and plan.command[: len(ours)] == ours and hasattr(os, "pidfd_open")


class ForkServer:
    """Started for the first actor that is asked for, and again after it has died."""

    def __init__(self, line: Callable[[str], None], progress: Callable[[str], None]) -> None:
        """``line`` and ``progress`` are told what the server itself writes; ``progress`` gets "" once it is ready."""
        self._line = line
        self._progress = progress
        self._child: Child | None = None
        self._link: socket.socket | None = None
        self._asking = asyncio.Lock()

    async def start(self, plan: ActorPlan, line: Callable[[str], None], progress: Callable[[str], None]) -> Child:
        """As :meth:`Child.start`. Raises OSError if the server cannot be started, or has died."""
        stdin, ours = os.pipe()
        output, theirs = os.pipe()
        reader = os.fdopen(output, "rb", 0)
        try:
            pid = await self._fork(plan, (stdin, theirs, theirs))
            child = Child(line, progress)
            child.connection_made(Adopted(pid, ours, child))
            await asyncio.get_running_loop().connect_read_pipe(lambda: Output(child), reader)
            return child
        except BaseException:
            os.close(ours)
            reader.close()
            raise
        finally:
            os.close(stdin)
            os.close(theirs)

    async def _fork(self, plan: ActorPlan, descriptors: Sequence[int]) -> int:
        fork = Fork(plan.command[len(own_command()) :], dict(environment_of(plan)))
        async with self._asking:
            try:
                link = self._link or await self._open()
                socket.send_fds(link, [msgspec.json.encode(fork)], descriptors)
                return int(await _answer(link))
            except BaseException:
                await self.close()
                raise

    async def _open(self) -> socket.socket:
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._link.setblocking(False)
        with theirs:
            self._child = await Child.start(SERVER, self._line, self._progress, stdin=theirs.fileno())
        await _answer(self._link)
        self._progress("")
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
        return self._link

    async def close(self) -> None:
        """End it; its actors go on."""
        if self._link is not None:
            self._link.close()
        if self._child is not None:
            self._child.kill()
            await self._child.wait()
        self._link = self._child = None


async def _answer(link: socket.socket) -> bytes:
    if not (answer := await asyncio.get_running_loop().sock_recv(link, LONGEST)):
        raise ConnectionError("the fork server has ended")
    return answer


class Adopted(asyncio.SubprocessTransport):
    """A child that we did not start ourselves, as asyncio has those that we did."""

    def __init__(self, pid: int, stdin: int, child: Child) -> None:
        super().__init__()
        self._pid, self._stdin, self._child = pid, stdin, child
        self._code: int | None = None
        self._end = os.pidfd_open(pid)
        asyncio.get_running_loop().add_reader(self._end, self._ended)

    def _ended(self) -> None:
        asyncio.get_running_loop().remove_reader(self._end)
        os.close(self._end)
        _, status = os.waitpid(self._pid, 0)
        self._code = os.waitstatus_to_exitcode(status)
        self._child.process_exited()

    def get_pid(self) -> int:
        return self._pid

    def get_returncode(self) -> int | None:
        return self._code

    def terminate(self) -> None:
        if self._code is None:
            os.kill(self._pid, signal.SIGTERM)

    def close(self) -> None:
        os.close(self._stdin)


class Output(asyncio.Protocol):
    """What a child writes, which Child knows by the number that the descriptor has there."""

    def __init__(self, child: Child) -> None:
        self._child = child

    def data_received(self, data: bytes) -> None:
        self._child.pipe_data_received(1, data)

    def connection_lost(self, error: Exception | None) -> None:
        self._child.pipe_connection_lost(1, error)
