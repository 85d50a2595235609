"""Starts the actors as child processes, watches over them and takes them down again: ``up``, ``demo``, ``bench``."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import msgspec

from duoactor.launch.child import GATEWAY, STOP_S, ActorPlan, Child
from duoactor.launch.restart import ASKED, REFUSED, Lifecycle, describe_exit
from protocols.address import parse
from protocols.errors import DuoactorError
from protocols.ipc import IpcClaim
from protocols.messages import Role, StatusReport

POLL_S = 0.1  # while an actor is waited for at the start
POLL_AGAIN_S = 1.0  # seconds between polls while a process is restarted
HEALTH_TIMEOUT_S = 1.0
LONGEST_HEALTH = 1 << 16  # bytes of a gateway's answer


class LaunchError(DuoactorError):
    """An actor cannot be started, or does not stay up."""


Kind = Literal[
    "starting", "started", "waiting", "ready", "line", "progress", "restart", "left", "lost", "stopping", "ended"
]


@dataclass(frozen=True, slots=True)
class Event:
    """A piece of the supervisor's report."""

    kind: Kind
    actor: ActorPlan
    text: str = ""
    pid: int = 0


Probe = Callable[[], Awaitable[StatusReport | None]]  # None: the verifier does not answer yet


@dataclass(slots=True)
class _Actor:
    plan: ActorPlan
    life: Lifecycle = field(default_factory=Lifecycle)
    child: Child | None = None  # None while it is being restarted
    is_ready: bool = False
    left: bool = False

    @property
    def pid(self) -> int:
        return self.child.pid if self.child is not None else 0


class Supervisor:
    """Keeps a set of actors alive while it is entered.

    Entering returns once every actor is ready, drafters that cannot run left out, and raises :class:`LaunchError` if
    another actor cannot be; leaving it, however that happens, ends every child. ``probe`` asks the verifier for its
    status. ``needs_drafts``: a drafter that cannot be is such an error until all are ready.
    """

    def __init__(
        self,
        plans: Sequence[ActorPlan],
        probe: Probe,
        *,
        report: Callable[[Event], None] = lambda event: None,
        address: str = "",
        needs_drafts: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._actors = [_Actor(plan) for plan in plans]
        self.status: StatusReport | None = None  # the latest of the verifier's, as far as an actor was waited for
        self._probe = probe
        self._report = report
        self._address = address
        self._needs_drafts = needs_drafts
        self._clock = clock
        self._lives: dict[str, asyncio.Task[None]] = {}
        self._watching: asyncio.Task[None] | None = None
        self._all_ready = asyncio.Event()
        self._over = asyncio.Event()
        self._failure: BaseException | None = None
        self._stopping = False

    async def __aenter__(self) -> Supervisor:
        self._lives = {actor.plan.name: self._spawn(self._keep(actor)) for actor in self._actors}
        self._watching = self._spawn(self._watch())
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

    async def __aexit__(self, *exc: object) -> None:
        await self._stop()

    async def wait(self) -> None:
        """Wait until the verifier has left in good order; raises :class:`LaunchError` when an actor is given up."""
        await self._over.wait()
        if self._failure is not None:
            raise self._failure

    @property
    def actors(self) -> tuple[tuple[ActorPlan, int], ...]:
        """Every actor that has not left, with its process id (0 while it is being restarted)."""
        return tuple((actor.plan, actor.pid) for actor in self._actors if not actor.left)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """An unexpected error in a task ends everything and is raised; otherwise actors would run on unwatched."""
        task = asyncio.create_task(work)
        task.add_done_callback(lambda done: None if done.cancelled() or not done.exception() else self._fail(done))
        return task

    def _fail(self, task: asyncio.Task[None]) -> None:
        self._end(task.exception())

    # --- one actor's life

    async def _keep(self, actor: _Actor) -> None:
        while True:
            try:
                child, code = await self._live(actor)
            except OSError as error:
                self._end(LaunchError(f"{actor.plan.name} cannot be started: {error}"))
                return
            if self._stopping:
                self._tell("ended", actor)
                return
            if code in ASKED:
                self._tell("left", actor)
                self._part_with(actor, None)
                return
            at = actor.life.died(self._clock(), code)
            if at is None:
                self._part_with(actor, _explain(actor, child, code))
                return
            delay = at - self._clock()
            said = f" ({child.sentence})" if child.sentence else ""
            when = f" in {delay:.1f} s" if delay > 0 else ""
            self._tell("restart", actor, f"{describe_exit(code)}{said}; starting it again{when}")
            await asyncio.sleep(delay)

    async def _live(self, actor: _Actor) -> tuple[Child, int]:
        self._tell("starting", actor)
        line, progress = partial(self._tell, "line", actor), partial(self._tell, "progress", actor)
        actor.child = child = await Child.start(actor.plan, line, progress)
        self._tell("started", actor)
        try:
            return child, await child.wait()
        finally:
            actor.is_ready = False
            actor.child = None

    async def _watch(self) -> None:
        while True:
            if not all(actor.is_ready or actor.left for actor in self._actors):
                try:
                    status = await self._probe()
                except DuoactorError as error:
                    self._end(LaunchError(str(error)))
                    return
                if status is not None:
                    self.status = status
                    for actor in self._actors:
                        if not actor.is_ready and actor.pid and await _is_ready(actor, status):
                            actor.is_ready = True
                            actor.life.ready(self._clock())
                            self._tell("ready", actor)
                    self._note_readiness()
                for actor in self._actors:
                    if actor.pid and not actor.is_ready:
                        self._tell("waiting", actor)
            await asyncio.sleep(POLL_AGAIN_S if self._all_ready.is_set() else POLL_S)

    def _part_with(self, actor: _Actor, failure: LaunchError | None) -> None:
        """Nothing goes on without the verifier. At the start everything asked for must come up, but for drafters, which
        can only cost time."""
        actor.left = True
        needed = actor.plan.role is not Role.DRAFTER or self._needs_drafts
        refused = failure is not None and needed and not self._all_ready.is_set()
        if actor.plan.role is Role.VERIFIER or refused:
            self._end(failure)
            return
        if failure is not None:
            self._tell("lost", actor, str(failure))
        self._note_readiness()

    def _note_readiness(self) -> None:
        if all(actor.is_ready or actor.left for actor in self._actors):
            self._all_ready.set()

    def _end(self, failure: BaseException | None) -> None:
        if not self._over.is_set():
            self._failure = failure
            self._over.set()

    def _tell(self, kind: Kind, actor: _Actor, text: str = "") -> None:
        self._report(Event(kind, actor.plan, text, actor.pid))

    # --- the end

    async def _stop(self) -> None:
        """The gateway and the verifier first: the one takes no more requests, the other tells its peers that it ends.
        Then the others. What lives after its ``finish_s`` and ``STOP_S`` is killed; a second Ctrl-C kills all."""
        self._stopping = True
        if self._watching is not None:
            self._watching.cancel()
        for actor in self._actors:
            if actor.child is None and (life := self._lives.get(actor.plan.name)):
                life.cancel()  # an actor that waits to be restarted must not start now
        try:
            await self._stop_all(GATEWAY, Role.VERIFIER)
            await self._stop_all(Role.DRAFTER, Role.CONTROLLER, Role.LEARNER)
        finally:
            for actor in self._actors:
                if actor.child is not None:
                    actor.child.kill()
            await asyncio.gather(*self._lives.values(), return_exceptions=True)
            if self._address.startswith("ipc://"):
                # a verifier that had to be killed leaves its socket file
                with contextlib.suppress(DuoactorError, OSError):
                    IpcClaim(parse(self._address)).release()

    async def _stop_all(self, *roles: str) -> None:
        actors = sorted((a for a in self._actors if a.plan.role in roles), key=lambda a: roles.index(a.plan.role))
        for actor in actors:
            if actor.child is not None:
                actor.child.terminate()
                self._tell("stopping", actor)
        running = [self._lives[actor.plan.name] for actor in actors if actor.plan.name in self._lives]
        if running:
            await asyncio.wait(running, timeout=STOP_S + max(actor.plan.finish_s for actor in actors))


def _explain(actor: _Actor, child: Child, code: int) -> LaunchError:
    if child.sentence:
        return LaunchError(f"{actor.plan.name}: {child.sentence}")
    deaths = 1 if code in REFUSED else actor.life.deaths
    times = f" {deaths} times before it was ready" if deaths > 1 else ""
    last = "\n".join(f"  {line}" for line in child.tail) or "  (it wrote nothing)"
    return LaunchError(f"{actor.plan.name} {describe_exit(code)}{times}; its last lines:\n{last}")


async def _is_ready(actor: _Actor, status: StatusReport) -> bool:
    match actor.plan.role:
        case "gateway":
            return await healthy_pid(*actor.plan.http) == actor.pid
        case Role.VERIFIER:
            return status.verifier.pid == actor.pid
        case Role.DRAFTER:
            return any(drafter.pid == actor.pid for drafter in status.drafters)
        case Role.LEARNER:
            return status.learner is not None and status.learner.pid == actor.pid
    return status.controller is not None and status.controller.pid == actor.pid


class _Health(msgspec.Struct):
    pid: int


async def healthy_pid(host: str, port: int) -> int:
    """The process id that a healthy gateway answers with; 0 if none answers, or one without a verifier."""
    with contextlib.suppress(OSError, TimeoutError, msgspec.DecodeError):
        async with asyncio.timeout(HEALTH_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
                answer = b""
                while len(answer) < LONGEST_HEALTH and (part := await reader.read(LONGEST_HEALTH)):
                    answer += part
            finally:
                writer.close()
                await writer.wait_closed()
        head, _, body = answer.partition(b"\r\n\r\n")
        if head.split(b" ", 2)[1:2] == [b"200"]:
            return msgspec.json.decode(body, type=_Health).pid
    return 0
