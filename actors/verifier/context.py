"""The common needs of the verifier's parts, handed over once."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from actors.cost import CostModel
from actors.models import Codec, ModelInfo, TargetModel
from actors.peer import incarnation
from actors.request_log import RequestLog
from actors.settings import VerifierSettings
from actors.verifier.compute import Compute, InlineCompute
from actors.verifier.price import Price
from actors.verifier.sources.inline import InlineDraft
from actors.verifier.sources.lookup import Library
from actors.verifier.state import State
from actors.verifier.trials import Trials
from protocols.messages import Message


@dataclass(frozen=True, slots=True)
class Equipment:
    """The models of a verifier, its sources of drafts, and its clocks."""

    model: TargetModel
    codec: Codec
    cost: CostModel  # cost of the model's forwards, as calibrated
    compute: Compute  # runs the target
    tokenizing: Compute = field(default_factory=InlineCompute)  # runs the tokenizer
    library: Library = field(default_factory=Library)
    inline: InlineDraft | None = None  # drafts between forwards
    request_log: RequestLog | None = None
    measure_again: Callable[[], None] = lambda: None  # has the next start measure ``cost`` anew
    clock: Callable[[], float] | None = None  # seconds that waits and time-outs count; None: the event loop's
    timer: Callable[[], float] = time.perf_counter  # seconds that forwards take
    incarnation: str = field(default_factory=incarnation)
    left_out: str = ""  # why the draft model or head that was given does not draft between forwards

    @property
    def cpu_timer(self) -> Callable[[], float]:
        """Seconds of CPU time of the calling thread, by which work for one peer or request is charged."""
        return time.thread_time if self.timer is time.perf_counter else self.timer


@dataclass(frozen=True, slots=True)
class Context:
    settings: VerifierSettings
    equipment: Equipment
    price: Price
    trials: Trials
    state: State
    clock: Callable[[], float]  # seconds
    send: Callable[[bytes, Message], bool]  # False: the peer is unreachable
    publish: Callable[[Message], None]  # publishes telemetry
    wake: Callable[[], None]  # wakes the loop, which may sleep

    @property
    def target(self) -> TargetModel:
        return self.equipment.model

    @property
    def info(self) -> ModelInfo:
        return self.equipment.model.info

    @property
    def library(self) -> Library:
        return self.equipment.library

    def now_us(self) -> float:
        """Microseconds since the verifier's start."""
        return (self.clock() - self.state.started) * 1e6
