"""The files by which a process reaches a set of actors on a cluster; Ray itself is a stand-in."""

from __future__ import annotations

import asyncio
import gc
import importlib
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import pytest

import duoactor
from duoactor.launch.issue_keys import issue_keys
from protocols.security import KeyRole


class VerifierHost:
    """A verifier's host that stays where it is."""

    def __init__(self) -> None:
        self.address, self.keys = self, MagicMock()

    def remote(self, but: str) -> Any:
        async def found() -> str:
            if but:
                await asyncio.Event().wait()
            return "tcp://node:7601"

        return found()


@pytest.fixture
def cluster_module(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    ray = MagicMock()
    ray.get.return_value = issue_keys()[KeyRole.OPERATOR]
    for name in ("ray", "ray.util", "ray.util.placement_group", "ray.util.scheduling_strategies"):
        monkeypatch.setitem(sys.modules, name, ray)
    for name in ("duoactor.ray", "duoactor.ray.cluster"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.delattr(duoactor, "ray", raising=False)
    yield importlib.import_module("duoactor.ray.cluster")
    for name in ("duoactor.ray", "duoactor.ray.cluster"):
        del sys.modules[name]
    del duoactor.ray


def test_a_clusters_files_are_there_until_it_is_closed_also_where_only_a_client_is_kept(cluster_module: ModuleType):
    cluster = cluster_module.Cluster({"verifier-1": VerifierHost()})
    key, place, kept = Path(cluster.key), Path(cluster.address.removeprefix("file://")), weakref.ref(cluster)
    del cluster
    gc.collect()
    for _ in range(1000):
        if place.exists():
            break
        threading.Event().wait(0.005)
    assert key.exists() and place.read_text() == "tcp://node:7601"
    cluster = kept()
    for _ in range(2):
        cluster.close()
    del cluster
    gc.collect()
    assert kept() is None and not key.exists()
