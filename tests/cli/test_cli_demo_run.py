"""``duoactor demo`` from end to end, with small programs in place of the actors and made-up streams."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from fake_status import status_of

from duoactor.cli import main
from duoactor.cli.environment import Environment
from duoactor.launch.deployment import Deployment
from duoactor.launch.supervisor import Event, Probe
from protocols.messages import FinishReason, RequestStats, Role, StatusReport

LIVES = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); signal.pause()"


@dataclass
class Piece:
    text: str
    token_ids: tuple[int, ...]
    accepted: tuple[bool, ...]
    stats: RequestStats | None = None
    finish_reason: FinishReason | None = None

    @property
    def pieces(self) -> tuple[str, ...]:
        return (self.text,)


@dataclass
class FakeClient:
    vanilla_ending: str = " world"
    pids: dict[Role, int] = field(default_factory=dict)

    async def stream(self, prompt: str = "", *, method: str, **options: Any) -> AsyncIterator[Piece]:
        ending = self.vanilla_ending if method == "vanilla" else " world"
        yield Piece("Hello", (1,), (False,))
        stats = RequestStats(method=method or "sps", rounds=1, accepted_tokens=1)
        yield Piece(ending, (len(ending),), (True,), stats, FinishReason.LENGTH)

    async def status(self) -> StatusReport:
        return status_of(self.pids)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> tuple[FakeClient, Environment]:
    client = FakeClient()

    def command(*arguments: str) -> tuple[str, ...]:
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
    return client, Environment(command=command, probe=probe, connect_async=connect)  # type: ignore[arg-type]


def test_the_demo_in_json_is_one_document(world: tuple[FakeClient, Environment], capsys: pytest.CaptureFixture[str]):
    client, environment = world
    assert main(["demo", "--json", "--no-reference", "--repeats", "1"], environment) == 0
    document = json.loads(capsys.readouterr().out)
    assert set(document) >= {
        "speedup", "tokens_per_second", "vanilla_tokens_per_second", "transformers_tokens_per_second",
        "mean_acceptance_length", "ttft_ms", "gamma", "sequences", "identical", "overhead_ms_per_round", "actors",
        "machine",
    }  # fmt: skip
    assert document["identical"] is True
    assert document["transformers_tokens_per_second"] is None
    assert [actor["role"] for actor in document["actors"]] == ["verifier", "drafter", "controller"]
    assert [actor["pid"] for actor in document["actors"]] == list(client.pids.values())
    assert all(actor["endpoint"].startswith("ipc://") for actor in document["actors"])


def test_the_demo_shows_text_and_a_table(world: tuple[FakeClient, Environment], capsys: pytest.CaptureFixture[str]):
    _, environment = world
    assert main(["demo", "--no-reference", "--repeats", "1", "--prompt", "Say hello"], environment) == 0
    out, err = capsys.readouterr()
    assert "\n\n> Say hello\nHello world …\n\n" in out
    assert out.startswith("bundled target and bundled draft: small ones")
    assert "the target alone (vanilla)" in out and "all 3 identical" in out
    assert "\x1b" not in out and err == ""


def test_a_text_that_differs_is_exit_code_1(world: tuple[FakeClient, Environment], capsys: pytest.CaptureFixture[str]):
    client, environment = world
    client.vanilla_ending = " moon"
    assert main(["demo", "--json", "--no-reference", "--repeats", "1"], environment) == 1
    assert json.loads(capsys.readouterr().out)["identical"] is False
