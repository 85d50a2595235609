"""An actor of a cluster on its node, without Ray: small programs in place of actors, a list of places for Ray."""

from __future__ import annotations

import asyncio
import os
import sys

import pytest

from actors.settings import DrafterSettings
from duoactor.launch import host as hosts
from duoactor.launch.host import Host
from duoactor.launch.issue_keys import issue_keys
from duoactor.launch.members import Member
from protocols.messages import Role

LIVES = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print(next(a for a in sys.argv if a.startswith("--connect")), flush=True)
signal.pause()
"""
REFUSES = "print('duoactor: there is no model x: name another'); raise SystemExit(1)"
DIES = "raise SystemExit(3)"


class Drafter:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, program: str) -> None:
        self.lines: asyncio.Queue[str] = asyncio.Queue()
        self.places: asyncio.Queue[str] = asyncio.Queue()
        self.died = asyncio.Event()
        monkeypatch.setattr(hosts, "own_command", lambda *flags: (sys.executable, "-S", "-c", program, *flags))
        monkeypatch.setattr(hosts, "_say", self.lines.put_nowait)
        monkeypatch.setattr(os, "_exit", lambda code: self.died.set())
        self.host = Host(Member(Role.DRAFTER, "drafter", DrafterSettings(), (0,)), issue_keys()["drafter"], [self.find])

    async def find(self, but: str) -> str:
        return await self.places.get()


async def test_a_drafter_starts_anew_where_its_verifier_has_come_back(monkeypatch):
    drafter = Drafter(monkeypatch, LIVES)
    for place in ("tcp://here:1", "tcp://there:2"):
        drafter.places.put_nowait(place)
        assert await drafter.lines.get() == f"--connect={place}"
    await drafter.host.stop()
    assert not drafter.died.is_set()


async def test_its_sentence_is_told_to_whoever_started_it(monkeypatch):
    drafter = Drafter(monkeypatch, REFUSES)
    drafter.places.put_nowait("tcp://here:1")
    assert await drafter.host.failure() == "there is no model x: name another"
    await drafter.host.stop()


async def test_a_process_that_dies_takes_its_host_along_so_that_ray_starts_both_anew(monkeypatch):
    drafter = Drafter(monkeypatch, DIES)
    drafter.places.put_nowait("tcp://here:1")
    await drafter.died.wait()
