"""What the verifier knows: every request, drafter, client and counter, in one place, and the load that follows."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from actors.cost import CostModel, PromptRow
from actors.models import ModelInfo
from actors.settings import VerifierSettings
from actors.verifier.bookkeeping import Bookkeeping
from actors.verifier.budgets import Budgets
from actors.verifier.chunks import Chunks
from actors.verifier.drafters import Drafters
from actors.verifier.own_drafts import OwnDrafts
from actors.verifier.plain import PlainRounds
from actors.verifier.rate import UsualRates
from actors.verifier.request_log import RequestLog
from actors.verifier.rounds import Load
from actors.verifier.sources.inline import InlineDraft
from actors.verifier.sources.retrieval import Sources
from actors.verifier.streams import Requests
from actors.verifier.totals import Totals
from protocols.messages import Hello, Promote
from protocols.security import ANYBODY, Holder, KeyRole

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
    branch: float | None  # see :class:`actors.verifier.windows.Windows`
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
    chunks: Chunks = field(default_factory=Chunks)
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
        beside_us = self.bookkeeping.row_us(streams, decoding[0].method) if decoding else 0.0
        return Load(streams, rate, beside_us + (self.cost.row(streams) if streams > 1 else 0.0))

    def row_us(self, streams: int, method: str) -> float:
        """Microseconds that a further row of drafts adds to a round that ``streams`` requests share, or one of that
        method."""
        return self.cost.row(streams) + self.bookkeeping.row_us(streams, method)
