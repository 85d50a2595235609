"""Between the supervisor and a terminal: readiness, progress, the summary of ``up``, and ending in order."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import threading
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from duoactor import render
from duoactor.launch.deployment import Deployment
from duoactor.launch.supervisor import ActorPlan, Event, Probe
from protocols.errors import ConnectionLost
from protocols.messages import Role, StatusReport

T = TypeVar("T")
STATUS_TIMEOUT_S = 2.0
LOADING = {Role.VERIFIER: "loading target", Role.DRAFTER: "loading draft", Role.CONTROLLER: "starting controller"}


class Terminated(BaseException):
    """SIGTERM or SIGHUP came; everything was ended in order."""


def run_in_order(main: Coroutine[Any, Any, T]) -> T:
    """``asyncio.run``, but SIGTERM and SIGHUP cancel ``main`` as Ctrl-C does, so that its children are stopped.

    Raises KeyboardInterrupt or :class:`Terminated` then.
    """
    signals: list[int] = []

    async def body() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def end(number: int) -> None:
            signals.append(number)
            task.cancel()

        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGHUP):
                loop.add_signal_handler(number, end, number)
        return await main

    try:
        return asyncio.run(body())
    except asyncio.CancelledError:
        if signals:
            raise Terminated from None
        raise


def verifier_status(deployment: Deployment) -> Probe:
    """Asks the verifier of ``deployment`` for its status, once per call."""
    from duoactor.client.async_client import AsyncClient

    keys = deployment.controller

    async def probe() -> StatusReport | None:
        try:
            async with AsyncClient(deployment.address, key=keys.key, server_key=keys.server_key) as client:
                return await asyncio.wait_for(client.status(), STATUS_TIMEOUT_S)
        except (ConnectionLost, TimeoutError):
            return None

    return probe


class LaunchReport:
    """Turns events into lines on stderr: progress on a terminal, the children's own lines behind their names."""

    def __init__(self, *, lines: bool = True, quiet: bool = False) -> None:
        self._lines = lines
        self._quiet = quiet
        self._waiting: dict[str, str] = {}
        self._spinner = render.Spinner(sys.stderr)

    def __call__(self, event: Event) -> None:
        name = event.actor.name
        match event.kind:
            case "started":
                self._waiting[name] = LOADING[event.actor.role]
            case "ready" | "left" | "lost":
                self._waiting.pop(name, None)
        if event.kind == "line" and self._lines:
            self._say(f"{name} | {event.text}")
        elif event.kind in ("restart", "lost") or (event.kind == "left" and not self._quiet):
            self._say(f"{name} {event.text or 'has left'}")
        self._spinner.show(", ".join(dict.fromkeys(self._waiting.values())) + " …" if self._waiting else "")

    def _say(self, text: str) -> None:
        self._spinner.show("")
        with contextlib.suppress(OSError):
            print(text, file=sys.stderr, flush=True)

    def done(self) -> None:
        self._waiting.clear()
        self._spinner.show("")


def actor_list(deployment: Deployment, actors: Sequence[tuple[ActorPlan, int]]) -> list[dict[str, Any]]:
    """The actors as the ``--json`` documents of ``up`` and ``demo`` list them."""
    models = {"verifier": deployment.verifier.target} | {d.actor_id: d.draft for d in deployment.drafters}
    return [
        {
            "role": str(plan.role),
            "actor_id": plan.name,
            "pid": pid,
            "endpoint": deployment.address,
            "model": render.model_name(models.get(plan.name, "")),
        }
        for plan, pid in actors
    ]


def print_up(deployment: Deployment, actors: Sequence[tuple[ActorPlan, int]], as_json: bool) -> None:
    """The summary of ``duoactor up``, on stdout."""
    listed = actor_list(deployment, actors)
    if as_json:
        render.print_json({"address": deployment.address, "actors": listed})
        return
    from duoactor.launch.paths import default_address

    option = "" if deployment.address == default_address() else f" --connect {deployment.address}"
    print(f"duoactor is up at {deployment.address}\n")
    for actor in listed:
        print(f"  {actor['actor_id']:<12} pid {actor['pid']:<8} {actor['model']}".rstrip())
    print(f'\nTry:   duoactor generate{option} "Once upon a time"\nStop:  Ctrl-C', flush=True)
