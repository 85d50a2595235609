"""Starts the actors as child processes, watches over them and takes them down again; used by ``up`` and ``demo``."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal

from duoactor.launch.restart import GiveUp, Leave, Lifecycle, Start, describe_exit
from protocols.address import IpcClaim, parse
from protocols.errors import DuoactorError
from protocols.messages import Role, StatusReport

STOP_S = 5.0  # from SIGTERM to SIGKILL
POLL_S = 0.1
TAIL = 20  # lines of a child's output that are kept for the error message
MARK = "duoactor: "  # begins the one sentence of an actor that cannot run


class LaunchError(DuoactorError):
    """An actor cannot be started, or does not stay up."""


@dataclass(frozen=True, slots=True)
class ActorPlan:
    """How to start one actor; ``name`` is unique and stands before its log lines."""

    role: Role
    name: str
    command: tuple[str, ...]
    threads: int = 1


Kind = Literal["started", "ready", "line", "restart", "left", "lost"]


@dataclass(frozen=True, slots=True)
class Event:
    """What the supervisor tells its user."""

    kind: Kind
    actor: ActorPlan
    text: str = ""
    pid: int = 0


Probe = Callable[[], Awaitable[StatusReport | None]]  # None: the verifier does not answer yet


@dataclass(slots=True)
class _Child:
    plan: ActorPlan
    life: Lifecycle = field(default_factory=Lifecycle)
    process: asyncio.subprocess.Process | None = None
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL))
    is_ready: bool = False
    left: bool = False

    @property
    def pid(self) -> int:
        return self.process.pid if self.process is not None else 0


class Supervisor:
    """Keeps a set of actors alive while it is entered.

    Entering returns once every actor is ready and raises :class:`LaunchError` if one cannot be; leaving it, however
    that happens, ends every child. ``probe`` asks the verifier for its status.
    """

    def __init__(
        self,
        plans: Sequence[ActorPlan],
        probe: Probe,
        *,
        report: Callable[[Event], None] = lambda event: None,
        address: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._children = [_Child(plan) for plan in plans]
        self._probe = probe
        self._report = report
        self._address = address
        self._clock = clock
        self._tasks: list[asyncio.Task[None]] = []
        self._all_ready = asyncio.Event()
        self._over = asyncio.Event()
        self._failure: LaunchError | None = None
        self._stopping = False

    async def __aenter__(self) -> Supervisor:
        self._tasks = [asyncio.create_task(self._keep(child)) for child in self._children]
        self._tasks.append(asyncio.create_task(self._watch()))
        ready = asyncio.create_task(self._all_ready.wait())
        over = asyncio.create_task(self.wait())
        try:
            await asyncio.wait({ready, over}, return_when=asyncio.FIRST_COMPLETED)
            if not ready.done():
                await over
                raise LaunchError("the verifier was stopped before it was ready")
        except BaseException:
            await self._stop()
            raise
        finally:
            ready.cancel()
            over.cancel()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self._stop()

    async def wait(self) -> None:
        """Until the verifier has left in good order; raises :class:`LaunchError` when an actor is given up."""
        await self._over.wait()
        if self._failure is not None:
            raise self._failure

    @property
    def actors(self) -> tuple[tuple[ActorPlan, int], ...]:
        """Every actor that has not left, with its process id (0 between two lives)."""
        return tuple((child.plan, child.pid) for child in self._children if not child.left)

    # --- one actor's life

    async def _keep(self, child: _Child) -> None:
        while True:
            try:
                code = await self._live(child)
            except OSError as error:
                self._end(LaunchError(f"{child.plan.name} cannot be started: {error}"))
                return
            if self._stopping:
                return
            match child.life.exited(self._clock(), code):
                case Leave():
                    self._tell("left", child)
                    self._part_with(child, None)
                    return
                case GiveUp(reason=reason, deaths=deaths):
                    self._part_with(child, _explain(child, reason, deaths))
                    return
                case Start(at=at):
                    delay = at - self._clock()
                    self._tell("restart", child, f"{describe_exit(code)}; starting it again in {delay:.1f} s")
                    await asyncio.sleep(delay)

    async def _live(self, child: _Child) -> int:
        child.tail.clear()
        child.life.started(self._clock())
        child.process = process = await asyncio.create_subprocess_exec(
            *child.plan.command,
            stdin=asyncio.subprocess.PIPE,  # its end is the sign that we are gone: see die_with_parent
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,  # stdout belongs to our own documents
            env=_environment(child.plan),
            start_new_session=True,  # Ctrl-C reaches us alone, and we stop them in order
        )
        self._tell("started", child)
        try:
            async for line in _lines(process):
                child.tail.append(line)
                self._tell("line", child, line)
            return await process.wait()
        finally:
            child.is_ready = False
            if process.returncode is not None:
                child.process = None

    async def _watch(self) -> None:
        while True:
            if not all(child.is_ready or child.left for child in self._children):
                try:
                    status = await self._probe()
                except DuoactorError as error:
                    self._end(LaunchError(str(error)))
                    return
                if status is not None:
                    for child in self._children:
                        if not child.is_ready and child.pid and _is_ready(child, status):
                            child.is_ready = True
                            child.life.ready(self._clock())
                            self._tell("ready", child)
                    self._note_readiness()
            await asyncio.sleep(POLL_S if not self._all_ready.is_set() else 10 * POLL_S)

    def _part_with(self, child: _Child, failure: LaunchError | None) -> None:
        """Only the verifier cannot be done without; but at the start everything asked for must come up."""
        child.left = True
        if child.plan.role is Role.VERIFIER or (failure is not None and not self._all_ready.is_set()):
            self._end(failure)
            return
        if failure is not None:
            self._tell("lost", child, str(failure))
        self._note_readiness()

    def _note_readiness(self) -> None:
        if all(child.is_ready or child.left for child in self._children):
            self._all_ready.set()

    def _end(self, failure: LaunchError | None) -> None:
        if not self._over.is_set():
            self._failure = failure
            self._over.set()

    def _tell(self, kind: Kind, child: _Child, text: str = "") -> None:
        self._report(Event(kind, child.plan, text, child.pid))

    # --- the end

    async def _stop(self) -> None:
        self._stopping = True
        for task in self._tasks[len(self._children) :]:
            task.cancel()
        # an actor between two lives must not be born now
        for child, task in zip(self._children, self._tasks, strict=False):
            if child.process is None:
                task.cancel()
        running = [child for child in self._children if child.process is not None]
        for child in running:
            _send(child.process, signal.SIGTERM)
        waits = [asyncio.create_task(child.process.wait()) for child in running if child.process is not None]
        processes = [child.process for child in running]
        if waits:
            await asyncio.wait(waits, timeout=STOP_S)
        for process in processes:
            _send(process, signal.SIGKILL)
        await asyncio.gather(*waits)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._address.startswith("ipc://"):
            # a verifier that had to be killed leaves its socket file
            with contextlib.suppress(DuoactorError, OSError):
                IpcClaim(parse(self._address)).release()


def _explain(child: _Child, reason: str, deaths: int) -> LaunchError:
    sentences = [line.removeprefix(MARK) for line in child.tail if line.startswith(MARK)]
    if sentences:
        return LaunchError(f"{child.plan.name}: {sentences[-1]}")
    times = f" {deaths} times before it was ready" if deaths > 1 else ""
    last = "\n".join(f"  {line}" for line in child.tail) or "  (it wrote nothing)"
    return LaunchError(f"{child.plan.name} {reason}{times}; its last lines:\n{last}")


def _is_ready(child: _Child, status: StatusReport) -> bool:
    match child.plan.role:
        case Role.VERIFIER:
            return status.pid == child.pid
        case Role.DRAFTER:
            return any(drafter.pid == child.pid for drafter in status.drafters)
    return bool(status.controller)


def _send(process: asyncio.subprocess.Process | None, number: signal.Signals) -> None:
    if process is not None and process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)


async def _lines(process: asyncio.subprocess.Process) -> AsyncIterator[str]:
    assert process.stdout is not None
    rest = b""
    while piece := await process.stdout.read(65536):
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            yield line.decode(errors="replace").rstrip("\r")
    if rest:
        yield rest.decode(errors="replace")


def _environment(plan: ActorPlan) -> Mapping[str, str]:
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(plan.threads))
    return {**os.environ, **threads, "PYTHONUNBUFFERED": "1"}


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
