"""One deployment of real processes for all tests that ask for ``up``: tests/conftest.py gives them to one worker.

They kill its actors, so whoever means a process asks the verifier which one serves now. The last of them kills it all
(test_processes.py).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import httpx2
import pytest

from duoactor import Client
from protocols.messages import DrafterStatus, StatusReport
from tests.world.processes import WAIT_S, Up, free_port, until
from tests.world.wall_clocks import COMPILER, WallClocks

KEY = "secret"


class SharedUp(Up):
    """``duoactor up`` with two drafters and a gateway that wants a key."""

    @property
    def http(self) -> str:
        base: str = next(actor["endpoint"] for actor in self.document["actors"] if actor["role"] == "gateway")
        return base.removesuffix("/v1")

    def status(self) -> StatusReport:
        """Once all actors serve."""
        with Client(self.address, reconnect_timeout=WAIT_S) as client:

            def all_here() -> StatusReport | None:
                now = client.status()
                return now if len(now.drafters) == 2 and now.controller else None

            return until(all_here, "all actors")

    def gateway(self) -> int:
        """Its process."""
        pid: int = until(self._healthy, "the gateway")["pid"]
        return pid

    def _healthy(self) -> dict:
        try:
            return httpx2.get(f"{self.http}/health").json()
        except httpx2.TransportError:
            return {}


def working(status: StatusReport) -> DrafterStatus | None:
    """The drafter that drafts for a stream now."""
    return next((one for one in status.drafters if one.leases), None)


@pytest.fixture(scope="session")
def clocks(tmp_path_factory: pytest.TempPathFactory) -> WallClocks | None:
    """Clocks of the deployment's processes; None: no compiler is here, and they cannot be moved."""
    return WallClocks(tmp_path_factory.mktemp("clocks")) if COMPILER else None


@pytest.fixture(scope="session")
def up(tmp_path_factory: pytest.TempPathFactory, clocks: WallClocks | None) -> Iterator[SharedUp]:
    slowly = ("--dtype", "float32", "--threads", "1")  # a stream must last until a browser has clicked
    flags = ("--drafters", "2", "--http", f"127.0.0.1:{free_port()}", "--api-key", KEY, *slowly)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (clocks.environment if clocks else {}).items():
            patch.setenv(name, value)
        shared = SharedUp(tmp_path_factory.mktemp("up"), *flags)
    yield shared
    if shared.process.poll() is None:
        assert shared.stop(signal.SIGTERM) == 0


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
