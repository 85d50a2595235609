"""What the verifier knows: every request, drafter, client and counter, in one place."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from actors.cost import CostModel
from actors.models import ModelInfo
from actors.settings import VerifierSettings
from actors.tree.methods import Kind, Strategy
from actors.verifier.budgets import Budgets
from actors.verifier.drafters import DrafterPeer, Drafters
from actors.verifier.rate import UsualRates
from actors.verifier.request import Request
from actors.verifier.requests import Requests
from actors.verifier.retrieval import Sources
from actors.verifier.totals import Totals
from actors.verifier.waiting import NO_LIMITS, RoundLimits
from protocols.messages import Budget, Generate, Hello, Method, Plan

HEARTBEAT_MS = 500
TTL_MS = 2500


@dataclass(slots=True)
class ClientPeer:
    peer: bytes  # routing id
    actor_id: str
    last_seen: float


@dataclass(slots=True)
class ControllerPeer:
    peer: bytes
    hello: Hello
    last_seen: float

    @property
    def actor_id(self) -> str:
        return self.hello.actor_id


@dataclass(slots=True)
class State:
    settings: VerifierSettings
    info: ModelInfo
    cost: CostModel
    max_window: int
    incarnation: str
    started: float  # seconds
    sources: Sources = field(default_factory=Sources)
    usual_rates: UsualRates = field(default_factory=UsualRates)
    requests: Requests = field(default_factory=Requests)
    drafters: Drafters = field(default_factory=Drafters)
    clients: dict[bytes, ClientPeer] = field(default_factory=dict)
    controller: ControllerPeer | None = None
    budgets: Budgets = field(init=False)
    counters: Counter[str] = field(default_factory=Counter)
    totals: Totals = field(init=False)
    epoch: int = 0
    draining: bool = False

    def __post_init__(self) -> None:
        self.totals = Totals(self.counters)
        self.budgets = Budgets(self.cost)

    def next_epoch(self) -> int:
        self.epoch += 1
        return self.epoch

    def plan(self, strategy: Strategy, message: Generate, drafter: DrafterPeer | None, now: float) -> Plan:
        """A request's own numbers come first, then the operator's, the controller's, the calibration's.

        Where the drafter is to rest, the plan is that of a method without drafts.
        """
        gamma = message.num_speculative_tokens or self.settings.num_speculative_tokens or None
        sequences = message.sequences or self.settings.sequences or None
        if not strategy.drafter:
            return Plan(strategy.method, gamma, sequences)
        budget = self._budget(strategy, message, drafter, now)
        if strategy.may_rest and not budget.draft and gamma is None:
            return Plan(Method.VANILLA)
        return Plan(strategy.method, gamma or budget.gamma, sequences, budget.sequences)

    def limits(self, request: Request, now: float) -> RoundLimits:
        """What one round of a request may do."""
        if not request.spec.strategy.drafter:
            return NO_LIMITS
        budget = self._budget(request.spec.strategy, request.message, self.drafters.of(request.drafter), now)
        return RoundLimits(budget.window, budget.wait_us)

    def _budget(self, strategy: Strategy, message: Generate, drafter: DrafterPeer | None, now: float) -> Budget:
        return self.budgets.of(
            Kind(strategy.method, message.num_speculative_tokens, message.sequences), drafter, self.streams, now
        )

    @property
    def streams(self) -> int:
        return sum(request.state == "decode" for request in self.requests)
