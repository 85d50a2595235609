"""duoactor: speculative decoding on two devices at once.

    from duoactor import Client

    with Client() as client:  # a running `duoactor up`
        print(client.generate("def factorial(n):").text)

Every name is loaded at its first use: importing this package takes a millisecond, and none of them loads torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a type checker finds the names here, and what is misspelt
    from actors.proposals import Proposal as Proposal
    from actors.proposals import Proposer as Proposer
    from actors.proposals import ProposerSession as ProposerSession
    from duoactor.client.async_client import AsyncClient as AsyncClient
    from duoactor.client.request import Completion as Completion
    from duoactor.client.stream import AsyncStream as AsyncStream
    from duoactor.client.sync_client import Client as Client
    from duoactor.client.sync_client import Stream as Stream
    from duoactor.propose import run_proposer as run_proposer
    from protocols.errors import ConfigError as ConfigError
    from protocols.errors import ConnectionLost as ConnectionLost
    from protocols.errors import DuoactorError as DuoactorError
    from protocols.errors import ModelError as ModelError
    from protocols.errors import PoolFull as PoolFull
    from protocols.errors import ProtocolError as ProtocolError
    from protocols.errors import RefusedError as RefusedError
    from protocols.errors import RequestError as RequestError
    from protocols.messages import ActorStatus as ActorStatus
    from protocols.messages import Budget as Budget
    from protocols.messages import ChatTurn as ChatTurn
    from protocols.messages import Chunk as Chunk
    from protocols.messages import Dictation as Dictation
    from protocols.messages import DrafterStatus as DrafterStatus
    from protocols.messages import FailureCode as FailureCode
    from protocols.messages import FinishReason as FinishReason
    from protocols.messages import InlineStatus as InlineStatus
    from protocols.messages import Kind as Kind
    from protocols.messages import Method as Method
    from protocols.messages import RefuseCode as RefuseCode
    from protocols.messages import Rendering as Rendering
    from protocols.messages import RequestStats as RequestStats
    from protocols.messages import RequestStatus as RequestStatus
    from protocols.messages import Role as Role
    from protocols.messages import Sampling as Sampling
    from protocols.messages import StatusReport as StatusReport
    from protocols.messages import StructuredOutputs as StructuredOutputs
    from protocols.messages import TargetStatus as TargetStatus
    from protocols.messages import Tokenized as Tokenized
    from protocols.messages import TokenLogprobs as TokenLogprobs

    __version__: str

_NAMES = {
    "actors.proposals": "Proposal Proposer ProposerSession",
    "duoactor.client.async_client": "AsyncClient",
    "duoactor.client.request": "Completion",
    "duoactor.client.stream": "AsyncStream",
    "duoactor.client.sync_client": "Client Stream",
    "duoactor.propose": "run_proposer",
    "protocols.errors": """
        ConfigError ConnectionLost DuoactorError ModelError PoolFull ProtocolError RefusedError RequestError
    """,
    "protocols.messages": """
        ActorStatus Budget ChatTurn Chunk Dictation DrafterStatus FailureCode FinishReason InlineStatus Kind
        Method RefuseCode Rendering RequestStats RequestStatus Role Sampling StatusReport StructuredOutputs
        TargetStatus Tokenized TokenLogprobs
    """,
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}
__all__ = sorted([*_HOMES, "__version__"])

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = _version() if name == "__version__" else getattr(import_module(_HOMES[name]), name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return __all__


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("duoactor")
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "0+unknown"
