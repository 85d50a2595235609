"""duoactor: speculative decoding on two devices at once. Importing this package imports no torch."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from duoactor.client.async_client import AsyncClient
from duoactor.client.request import Completion
from duoactor.client.stream import AsyncStream
from duoactor.client.sync_client import Client, Stream
from protocols.errors import (
    ConfigError,
    ConnectionLost,
    DuoactorError,
    ModelError,
    PoolFull,
    ProtocolError,
    RefusedError,
    RequestError,
)
from protocols.messages import ChatTurn, Chunk, FinishReason, Method, RequestStats, Sampling, StatusReport

try:
    __version__ = version("duoactor")
except PackageNotFoundError:  # run from a source tree that is not installed
    __version__ = "0+unknown"

__all__ = [
    "AsyncClient",
    "AsyncStream",
    "ChatTurn",
    "Chunk",
    "Client",
    "Completion",
    "ConfigError",
    "ConnectionLost",
    "DuoactorError",
    "FinishReason",
    "Method",
    "ModelError",
    "PoolFull",
    "ProtocolError",
    "RefusedError",
    "RequestError",
    "RequestStats",
    "Sampling",
    "StatusReport",
    "Stream",
    "__version__",
]
