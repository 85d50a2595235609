"""What the verifier knows: every request, drafter, client and counter, in one place; and the plans, limits and prices
that follow from them."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from actors.cost import CostModel, PromptRow
from actors.models import ModelInfo
from actors.settings import VerifierSettings
from actors.tree.methods import Kind, Strategy
from actors.verifier.bookkeeping import Bookkeeping
from actors.verifier.budgets import Budgets
from actors.verifier.decoding.rate import UsualRates
from actors.verifier.decoding.retrieval import Sources
from actors.verifier.decoding.rounds import Load
from actors.verifier.decoding.waiting import NO_LIMITS, RoundLimits
from actors.verifier.drafters.inline import InlineDraft
from actors.verifier.drafters.own_drafts import OwnDrafts
from actors.verifier.drafters.plain import PlainRounds
from actors.verifier.drafters.registry import DrafterPeer, Drafters
from actors.verifier.drafters.standing import PAYS
from actors.verifier.requests.request import Request, Requests
from actors.verifier.requests.request_log import RequestLog
from actors.verifier.totals import Totals
from protocols.enumerations import KeyRole
from protocols.messages import Budget, Generate, Hello, Method, Plan, Promote
from protocols.security import ANYBODY, Holder

# Peers say something every HEARTBEAT_MS; one that is silent for TTL_MS, five heartbeats, is taken for dead.
HEARTBEAT_MS = 500
TTL_MS = 2500


@dataclass(slots=True)
class ClientPeer:
    peer: bytes  # routing id
    actor_id: str
    last_seen: float  # seconds
    holder: Holder = ANYBODY  # of the key that it connected with

    @property
    def operates(self) -> bool:
        """Whether it may swap and drain drafters, and see everybody's requests."""
        return self.holder.may_be(KeyRole.OPERATOR)

    def same_as(self, other: ClientPeer) -> bool:
        """Whether both are one client, by two connections."""
        return (self.actor_id, self.holder.key) == (other.actor_id, other.holder.key)


@dataclass(slots=True)
class SinglePeer:
    """The controller or the learner: at most one of each is connected."""

    peer: bytes  # routing id
    hello: Hello
    last_seen: float  # seconds

    @property
    def actor_id(self) -> str:
        return self.hello.actor_id


@dataclass(slots=True)
class State:
    settings: VerifierSettings
    info: ModelInfo  # of the target
    cost: CostModel  # of the target's forwards
    max_window: int  # nodes of one request in one round, as far as the target allows
    branch: float | None  # see :class:`actors.verifier.decoding.windows.Windows`
    incarnation: str
    started: float  # seconds
    sources: Sources = field(default_factory=Sources)  # that drafts are retrieved from
    inline: InlineDraft | None = None  # the verifier's own draft model
    request_log: RequestLog | None = None
    usual_rates: UsualRates = field(default_factory=UsualRates)
    requests: Requests = field(default_factory=Requests)
    drafters: Drafters = field(default_factory=Drafters)
    clients: dict[bytes, ClientPeer] = field(default_factory=dict)
    controller: SinglePeer | None = None
    learner: SinglePeer | None = None
    promoted: Promote | None = None  # the weights that the learner last had the drafters serve with
    pieces: CostModel = field(init=False)  # of forwards with a piece of a prompt, where its rows were limited
    prompt_row: PromptRow = field(default_factory=PromptRow)
    own_drafts: OwnDrafts = field(init=False)
    budgets: Budgets = field(init=False)
    bookkeeping: Bookkeeping = field(default_factory=Bookkeeping)
    plain: defaultdict[str, PlainRounds] = field(default_factory=lambda: defaultdict(PlainRounds))  # by method
    counters: Counter[str] = field(default_factory=Counter)  # as ``StatusReport.counters`` tells them
    totals: Totals = field(init=False)
    epoch: int = 0  # of the newest lease; every lease has an epoch of its own
    draining: bool = False  # the verifier is shutting down

    def __post_init__(self) -> None:
        self.totals = Totals(self.counters)
        self.budgets = Budgets(self.cost)
        self.own_drafts = OwnDrafts(self.cost, self.inline.promise(self.cost) if self.inline is not None else 1.0)
        self.pieces = CostModel(dict(self.cost.calibration()))

    def next_epoch(self) -> int:
        self.epoch += 1
        return self.epoch

    def log_request(self, request: Request) -> None:
        """Log a request that has ended, for ``--log-requests``. Requests with a cache salt are left out, because they
        must not serve others, and requests with a grammar, because what it forces says nothing of the drafts."""
        if self.request_log is None or request.spec.output.finish is None or request.spec.windows.grammar is not None:
            return
        if request.message.cache_salt:
            self.counters["requests_with_salt_not_logged"] += 1
        else:
            self.request_log.add(request.logged(self.info.model_id))
        if self.request_log.lost:
            self.counters["requests_not_logged"] = self.request_log.lost

    def plan(self, request: Request, drafter: DrafterPeer, now: float) -> Plan:
        """How ``drafter`` is to draft for a request. While it is to rest the method is vanilla: nothing is drafted."""
        strategy, message = request.spec.strategy, request.message
        if request.resting and self.may_rest(request):
            return Plan(Method.VANILLA)
        return self.first_plan(strategy, message, drafter, now)

    def first_plan(self, strategy: Strategy, message: Generate, drafter: DrafterPeer | None, now: float) -> Plan:
        """The plan of a request that does not rest. Its gamma is the request's own, else that of the operator's
        settings, the controller's, or what the start-up calibration gives; its sequences are found in the same order,
        but that the last two only limit what the theta rule finds."""
        gamma = self._gamma(message) or None
        sequences = message.sequences or self.settings.sequences or None
        if not strategy.drafter:
            return Plan(strategy.method, gamma, sequences)
        budget = self._budget(strategy, message, drafter, now)
        return Plan(strategy.method, gamma or budget.gamma, sequences, budget.sequences)

    def limits(self, request: Request, now: float) -> RoundLimits:
        """How many draft tokens the controller allows one round of a request, and how long a wait."""
        drafter = self.drafters.of(request.drafter)
        if drafter is None:  # the price of rows limits its window, and there is nobody to wait for
            return NO_LIMITS
        budget = self._budget(request.spec.strategy, request.message, drafter, now)
        return RoundLimits(budget.window, budget.wait_us)

    def _budget(self, strategy: Strategy, message: Generate, drafter: DrafterPeer | None, now: float) -> Budget:
        return self.budgets.of(
            Kind(strategy.method, message.num_speculative_tokens, message.sequences), drafter, now, lambda: self.streams
        )

    def may_rest(self, request: Request) -> bool:
        """Whether the verifier may decide that the request does without drafts: not if it asks for a draft length."""
        return request.spec.strategy.may_rest and not self._gamma(request.message)

    def _gamma(self, message: Generate) -> int:
        return message.num_speculative_tokens or self.settings.num_speculative_tokens

    def worth_lending(self, request: Request, drafter: DrafterPeer) -> bool:
        """Whether a drafter should bring a request more than the verifier's own draft model does.

        Once the drafter's speed-up on such requests is measured it may always be lent: its standing then decides when
        it rests. Before that, predictions are compared. A drafter with the very model that the verifier drafts with is
        compared by predictions on both sides, because texts that disappoint the one would disappoint the other."""
        if self.inline is None or not request.spec.strategy.inline or not self.may_rest(request):
            return True
        if drafter.standing(request).speedup.known:
            return True
        if drafter.hello.model_id == self.inline.model_id:
            return self._promise(request, drafter) >= PAYS * self.own_drafts.promised
        return self._promised(request, drafter) >= PAYS

    def prior(self, request: Request, drafter: DrafterPeer) -> float:
        """The speed-up to expect of a drafter: as measured on other requests like this, and as predicted while little
        is measured. It is over the request without the drafter."""
        return drafter.standing(request).prior(self._promised(request, drafter))

    def promised_at(self, request: Request, drafter: DrafterPeer, agreement: float) -> float:
        """The speed-up that the model of a round promises where its first choice is right with that chance."""
        promised = self.budgets.promise_at(request.method, drafter, self.streams, agreement)
        return promised / self.without_drafter(request)

    def _promised(self, request: Request, drafter: DrafterPeer) -> float:
        """The predicted speed-up over the request without the drafter, which the verifier may draft for itself."""
        return self._promise(request, drafter) / self.without_drafter(request)

    def _promise(self, request: Request, drafter: DrafterPeer) -> float:
        """The predicted speed-up over plain decoding."""
        return self.budgets.promise(request.method, drafter, self.streams)

    def without_drafter(self, request: Request) -> float:
        """The speed-up over plain decoding that the verifier's own draft model brings to requests like this."""
        if self.inline is None or not request.spec.strategy.inline:
            return 1.0
        return self.own_drafts.brings(request.kind)

    @property
    def drafters_idle(self) -> bool:
        """Whether no drafter has work, so that what they have of this machine's CPUs is the target's."""
        return not any(request.has_drafter for request in self.requests)

    @property
    def streams(self) -> int:
        """How many requests decode."""
        return sum(request.state == "decode" for request in self.requests)

    def load(self) -> Load:
        """The load that the next forward's rows are priced by. It goes through all requests: call it once a forward.

        Requests in prefill count in its rate, because a forward that takes longer keeps them waiting as well."""
        decoding = self.requests.of("decode")
        rate = sum(request.spec.rate.value for request in (*decoding, *self.requests.of("prefill")))
        streams = len(decoding)
        return Load(streams, rate, self.row_us(streams) if streams > 1 else self.bookkeeping.row_us(streams))

    def row_us(self, streams: int) -> float:
        """Microseconds that a further row of drafts adds to a round that ``streams`` requests share."""
        return self.cost.row(streams) + self.bookkeeping.row_us(streams)
