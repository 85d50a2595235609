"""Where the real network is tried: on both event loops, over both transports."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import uvloop

Run = Callable[[Awaitable[None]], None]


@pytest.fixture
def directory() -> Iterator[Path]:
    # not tmp_path: a socket path may have about a hundred bytes
    with tempfile.TemporaryDirectory(prefix="duo") as name:
        yield Path(name)


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    return asyncio.run if request.param == "asyncio" else uvloop.run  # type: ignore[return-value]


@pytest.fixture(params=["ipc", "tcp"])
def address(request: pytest.FixtureRequest, directory: Path) -> str:
    return "tcp://127.0.0.1:0" if request.param == "tcp" else f"ipc://{directory}/verifier.sock"
