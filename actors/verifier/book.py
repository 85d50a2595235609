"""The verifier's book: every request, drafter, client and counter, in one place and without behaviour of its own."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from actors.controller.goodput import initial_gamma
from actors.models import ModelInfo
from actors.settings import VerifierSettings
from actors.tree.methods import Kind, Strategy
from actors.verifier.cost import CostModel
from actors.verifier.drafters import Drafters
from actors.verifier.requests import Requests
from actors.verifier.retrieval import Sources
from actors.verifier.totals import Totals
from actors.verifier.waiting import UsualRates
from protocols.messages import Budget, Generate, Method, Plan

EVERY = Kind("")  # a budget for requests that none of their own kind is there for
HEARTBEAT_MS = 500
TTL_MS = 2500


def kind_of(method: str, message: Generate) -> Kind:
    return Kind(method, message.num_speculative_tokens, message.sequences)


@dataclass(slots=True)
class ClientPeer:
    actor_id: str
    last_seen: float


@dataclass(slots=True)
class Book:
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
    controller: bytes | None = None
    controller_id: str = ""
    controller_pid: int = 0
    budgets: dict[Kind, tuple[Budget, float]] = field(default_factory=dict)  # with the time they end
    counters: Counter[str] = field(default_factory=Counter)
    totals: Totals = field(init=False)
    epoch: int = 0
    draining: bool = False

    def __post_init__(self) -> None:
        self.totals = Totals(self.counters)

    def next_epoch(self) -> int:
        self.epoch += 1
        return self.epoch

    def file_budget(self, budget: Budget, now: float) -> None:
        self.budgets = {kind: known for kind, known in self.budgets.items() if now < known[1]}
        kind = Kind(budget.method, budget.fixed_gamma, budget.fixed_sequences)
        self.budgets[kind] = (budget, now + budget.ttl_ms / 1000)

    def budget_for(self, kind: Kind, now: float) -> Budget | None:
        """The controller's last word on requests of a kind, until its time to live is over."""
        budget, until = self.budgets.get(kind) or self.budgets.get(EVERY) or (None, 0.0)
        return budget if now < until else None

    def budgets_now(self, now: float) -> tuple[Budget, ...]:
        return tuple(budget for budget, until in self.budgets.values() if now < until)

    def plan(self, strategy: Strategy, message: Generate, step_us: float, now: float) -> Plan:
        """A request's own numbers come first, then the operator's, the controller's, the calibration's.

        A priced tree whose drafter is to rest gets the plan of a method without drafts.
        """
        budget = self.budget_for(kind_of(strategy.method, message), now)
        gamma = message.num_speculative_tokens or self.settings.num_speculative_tokens
        if strategy.window in ("priced", "proposal"):
            if budget is not None and budget.gamma == 0 and not gamma and strategy.drafter:
                return Plan(Method.VANILLA, 0)
            gamma = gamma or 0  # bounded by prices, or by what there is to copy, not by a length
        elif not gamma:
            gamma = budget.gamma if budget is not None else initial_gamma(self.cost, step_us, strategy.method)
        cap = budget.sequences if budget is not None else 0
        return Plan(strategy.method, gamma, message.sequences or self.settings.sequences, cap)
