"""What ``demo`` and ``bench`` are given in place of actors: programs that only live, a client of made-up streams."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from duoactor import embedded
from duoactor.cli.environment import Environment
from duoactor.launch.deployment import Deployment
from duoactor.launch.supervisor import Event, Probe
from protocols.messages import ChatTurn, Chunk, FinishReason, RequestStats, Role, StatusReport, Tokenized, Welcome
from tests.cli.fake_status import status_of

LIVES = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); signal.pause()"


@dataclass
class FakeClient:
    """Every answer is "Hello world"; that of method ``wrong`` has another token."""

    wrong: str = ""
    stop_after: int = 0  # answers, before somebody presses Ctrl-C; 0: nobody does
    rounds: int = 0  # rounds that an answer's stats tell of
    pids: dict[Role, int] = field(default_factory=dict)
    asked: list[tuple[str, int, int]] = field(default_factory=list)

    welcome = Welcome("v", 500, 2500, "", forward_us=((1, 9000.0), (8, 10_000.0)))

    async def stream(
        self, prompt: str = "", *, messages: tuple[ChatTurn, ...] = (), method: str, **options: Any
    ) -> AsyncIterator[Chunk]:
        self.asked.append((method, options["sequences"], options["num_speculative_tokens"]))
        if self.stop_after and len(self.asked) > self.stop_after:
            raise KeyboardInterrupt
        yield Chunk("r", 0, (1,), ("Hello",), (False,))
        stats = RequestStats(method, rounds=self.rounds, accepted_tokens=self.rounds, decode_ms=1.0, gamma=5.0)
        second = 3 if method == self.wrong else 2
        yield Chunk("r", 1, (second,), (" world",), (True,), FinishReason.LENGTH, stats=stats)

    async def tokenize(self, text: str) -> Tokenized:
        return Tokenized("r", tuple(range(len(text))), (), text)

    async def status(self) -> StatusReport:
        return status_of(self.pids)


def fake_world(monkeypatch: pytest.MonkeyPatch) -> tuple[FakeClient, Environment]:
    client = FakeClient()

    def command(*arguments: str) -> tuple[str, ...]:
        if arguments[:2] == ("datastore", "build"):
            return (sys.executable, "-S", "-c", "import os, sys; os.makedirs(sys.argv[1])", arguments[2])
        return (sys.executable, "-S", "-c", LIVES)

    def probe(deployment: Deployment) -> Probe:
        return client.status

    @asynccontextmanager
    async def connect(address: str) -> AsyncIterator[FakeClient]:
        yield client

    def note(report: Any, event: Event) -> None:
        if event.kind == "started":
            client.pids[event.actor.role] = event.pid

    monkeypatch.setattr("duoactor.launch.progress.LaunchReport.__call__", note)
    monkeypatch.setattr(embedded, "first", lambda progress: embedded.bundled("target"))
    return client, Environment(command=command, probe=probe, connect_async=connect)  # type: ignore[arg-type]
