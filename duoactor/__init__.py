"""duoactor: speculative decoding on two devices at once.

    from duoactor import Client

    with Client() as client:  # of a running `duoactor up`
        print(client.generate("def factorial(n):").text)

Every name is loaded at its first use: importing this package takes a millisecond, and none of them loads torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from actors.proposals import Proposal, Proposer, ProposerSession
    from duoactor.client.async_client import AsyncClient
    from duoactor.client.request import Completion
    from duoactor.client.stream import AsyncStream
    from duoactor.client.sync_client import Client, Stream
    from duoactor.propose import run_proposer
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
    from protocols.messages import (
        ActorStatus,
        Budget,
        ChatTurn,
        Chunk,
        Dictation,
        DrafterStatus,
        FailureCode,
        FinishReason,
        InlineStatus,
        Kind,
        Method,
        RefuseCode,
        Rendering,
        RequestStats,
        RequestStatus,
        Role,
        Sampling,
        StatusReport,
        StructuredOutputs,
        TargetStatus,
        Tokenized,
        TokenLogprobs,
    )

    __version__: str

__all__ = [
    "ActorStatus",
    "AsyncClient",
    "AsyncStream",
    "Budget",
    "ChatTurn",
    "Chunk",
    "Client",
    "Completion",
    "ConfigError",
    "ConnectionLost",
    "Dictation",
    "DrafterStatus",
    "DuoactorError",
    "FailureCode",
    "FinishReason",
    "InlineStatus",
    "Kind",
    "Method",
    "ModelError",
    "PoolFull",
    "Proposal",
    "Proposer",
    "ProposerSession",
    "ProtocolError",
    "RefuseCode",
    "RefusedError",
    "Rendering",
    "RequestError",
    "RequestStats",
    "RequestStatus",
    "Role",
    "Sampling",
    "StatusReport",
    "Stream",
    "StructuredOutputs",
    "TargetStatus",
    "TokenLogprobs",
    "Tokenized",
    "__version__",
    "run_proposer",
]

_ERRORS = {name for name in __all__ if name.endswith(("Error", "Lost", "Full"))}
_HOMES = {
    "AsyncClient": "duoactor.client.async_client",
    "AsyncStream": "duoactor.client.stream",
    "Client": "duoactor.client.sync_client",
    "Completion": "duoactor.client.request",
    "Proposal": "actors.proposals",
    "Proposer": "actors.proposals",
    "ProposerSession": "actors.proposals",
    "Stream": "duoactor.client.sync_client",
    "run_proposer": "duoactor.propose",
    **dict.fromkeys(_ERRORS, "protocols.errors"),
}

if not TYPE_CHECKING:  # a type checker reads the imports above, and finds what is misspelt

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if name == "__version__":
            found = _version()
        else:
            found = getattr(import_module(_HOMES.get(name, "protocols.messages")), name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return sorted(__all__)


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("duoactor")
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "0+unknown"
