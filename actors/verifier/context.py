"""What every part of the verifier needs, handed over once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from actors.models import ModelInfo, TargetModel
from actors.settings import VerifierSettings
from actors.verifier.price import Price
from actors.verifier.sources.lookup import Library
from actors.verifier.state import State
from actors.verifier.trials import Trials
from protocols.messages import Message


@dataclass(frozen=True, slots=True)
class Context:
    settings: VerifierSettings
    target: TargetModel
    price: Price
    trials: Trials
    library: Library
    state: State
    clock: Callable[[], float]  # seconds
    send: Callable[[bytes, Message], bool]  # False: the peer is unreachable
    publish: Callable[[Message], None]  # as telemetry

    @property
    def info(self) -> ModelInfo:
        return self.target.info

    def now_us(self) -> float:
        """Microseconds since the verifier's start."""
        return (self.clock() - self.state.started) * 1e6
