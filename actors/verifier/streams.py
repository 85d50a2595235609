"""One request at the verifier: its text, its tree of drafts, its output and its status. State only, no policy."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain

from actors.cost import Known
from actors.methods import Strategy
from actors.records import LoggedRequest
from actors.tree.tree import TokenTree
from actors.verifier.constraints.binding import Binding
from actors.verifier.loans import Loan
from actors.verifier.output import Output
from actors.verifier.owners import EVERYBODY, NOBODY, Owner
from actors.verifier.results import Committed, Group, RoundSums
from actors.verifier.sources.memory import LONGEST
from actors.verifier.trace import Trace
from actors.verifier.trial import Trial
from actors.verifier.waits import Wait
from protocols.messages import Chunk, Generate, Method, RequestStats, RequestStatus, RoundTrace, Sampling

SUSPECTED = 2  # crashes in a row with a request: one is mostly not its fault, and must not keep all others waiting
SETTLED_TOKENS = 16  # committed since the verifier crashed, after which a request is no longer suspected of the crash


class Stage(StrEnum):
    QUEUED = "queued"
    PREFILL = "prefill"
    DECODE = "decode"
    FINISHING = "finishing"  # the client has not been sent the last tokens
    ENDED = "ended"


# Every transition that there is. A stream that is preempted is queued again.
TRANSITIONS = {
    Stage.QUEUED: {Stage.PREFILL, Stage.ENDED},
    Stage.PREFILL: {Stage.DECODE, Stage.QUEUED, Stage.ENDED},
    Stage.DECODE: {Stage.FINISHING, Stage.QUEUED, Stage.ENDED},
    Stage.FINISHING: {Stage.ENDED},
    Stage.ENDED: set[Stage](),
}


class Transcript:
    """The committed tokens of a stream: the only thing of it that must be kept."""

    __slots__ = ("committed", "generated", "prompt_len", "sampling")

    def __init__(self, prompt: Sequence[int], generated: Sequence[int], sampling: Sampling) -> None:
        """``generated``: output tokens that are committed already, of a stream that is resumed."""
        self.committed = [*prompt, *generated]
        self.prompt_len, self.generated = len(prompt), len(generated)
        self.sampling = sampling

    def __len__(self) -> int:
        return len(self.committed)

    @property
    def sampled(self) -> bool:
        return self.sampling.temperature > 0

    @property
    def given(self) -> int:
        """Tokens that came with the request: its prompt, and the output that its client claims to have."""
        return self.prompt_len + self.generated

    @property
    def written(self) -> int:
        """Tokens of output."""
        return len(self.committed) - self.prompt_len

    @property
    def left(self) -> int:
        """Tokens that the output may still grow by."""
        return self.sampling.max_tokens + self.prompt_len - len(self.committed)


@dataclass(slots=True)
class Times:
    """Seconds of the verifier's clock, and microseconds of rounds."""

    arrived: float
    first_at: float = 0.0  # when its first token was committed; 0: it has none
    last_at: float = 0.0  # when its latest token was committed
    round_ended_at: float = 0.0
    overhead_us: float = 0.0  # rest of its rounds, without forwards and waits
    prompts_us: float = 0.0  # time that forwards had taken for prompts when its latest round ended
    spent_us: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))  # before a forward, by source
    turn: float = field(init=False)  # the arrival by which it is served

    def __post_init__(self) -> None:
        self.turn = self.arrived

    def began(self, now: float, prompts_us: float) -> None:
        """Its prompt is computed."""
        self.first_at = self.first_at or now
        self.last_at = self.round_ended_at = now
        self.prompts_us = prompts_us

    def take_spent(self) -> defaultdict[str, float]:
        """What sources spent before the round that is over."""
        spent, self.spent_us = self.spent_us, defaultdict(float)
        return spent

    def round_over(self, now: float, prompts_us: float) -> tuple[float, float]:
        """Microseconds of the round that ends now, and without the prompts that were computed meanwhile."""
        wall_us, between_us = (now - self.round_ended_at) * 1e6, prompts_us - self.prompts_us
        self.round_ended_at, self.prompts_us = now, prompts_us
        return wall_us, wall_us - between_us


@dataclass(slots=True)
class Rest:
    """Sources that rest: when the first of them is asked again, and whether all do."""

    until: float = math.inf  # rounds of the stream
    whole: bool = False


@dataclass(slots=True)
class Delivery:
    """The part of the output that the client has, and the rest."""

    offset: int = 0  # output tokens that the client has
    trace: Trace | None = None  # makes the trace of its rounds, if its client asked for one
    cached_tokens: int = 0  # prompt tokens that were not computed again, because an earlier one began with them
    unsent: list[tuple[Committed, RoundTrace | None]] = field(default_factory=list)
    sent_at: float = -math.inf  # seconds: when its latest chunk was made
    begun: bool = False  # whether the client of a request that saw a crash knows that its prompt is being computed


@dataclass(eq=False, slots=True, weakref_slot=True)
class Stream:
    client: bytes  # routing id
    message: Generate
    strategy: Strategy
    text: Transcript
    output: Output
    tree: TokenTree
    loan: Loan
    wait: Wait
    times: Times
    delivery: Delivery
    grammar: Binding | None = None
    prediction: Sequence[int] = ()  # the output as the request itself foresees it
    owner: Owner = NOBODY
    scope: str = EVERYBODY  # label of the requests that may use what it leaves, see Owner
    status: Stage = Stage.QUEUED
    handle: int = -1  # the target's; -1: it has no room in the KV pool
    tally: RoundSums = field(default_factory=RoundSums)
    trials: dict[str, Trial] = field(default_factory=dict)  # trials of its sources, by name
    rest: Rest = field(default_factory=Rest)  # rest of those sources
    groups: Known[Group] = field(init=False)  # kinds of streams that it is judged with, by streams in a round

    def __post_init__(self) -> None:
        method, sampled = self.method, self.text.sampled
        self.groups = Known(lambda streams: Group(method, sampled, max(1, streams).bit_length()))

    @property
    def rid(self) -> str:
        return self.message.rid

    @property
    def method(self) -> Method:
        return self.strategy.method

    @property
    def sources(self) -> tuple[str, ...]:
        """The names of what may propose tokens for it, in the order in which they are asked."""
        own = self.strategy.sources
        return own if self.grammar is None else (*own, "grammar")

    def become(self, status: Stage) -> None:
        """The only way in which a status changes."""
        if status not in TRANSITIONS[self.status]:
            raise AssertionError(f"a stream that is {self.status} cannot become {status}")
        self.status = status

    def opened(self, handle: int) -> None:
        """Note its room in the KV pool."""
        self.handle = handle
        self.become(Stage.PREFILL)

    def preempted(self) -> None:
        """Queue it again without its room; its text so far is computed again."""
        self.handle = -1
        self.become(Stage.QUEUED)

    def synced(self) -> None:
        """Its drafter has been sent the whole text: a phase of drafting begins after what is new of it."""
        if self.loan.sent_len != len(self.text):
            self.wait.begin_phase()
        self.loan.synced(len(self.text))

    @property
    def suspect(self) -> bool:
        """Whether it may have crashed the verifier. Such streams are computed alone, one at a time."""
        return self.message.attempt >= SUSPECTED and len(self.text) - self.text.given < SETTLED_TOKENS

    @property
    def unattended(self) -> bool:
        """Whether several forwards may follow one another without a decision, or a word to others, between them."""
        followed = self.suspect or self.delivery.trace is not None
        return not (followed or self.loan.works or self.grammar is not None)

    # --- reports to others --------------------------------------------------------------------------------------------

    def report(self) -> RequestStatus:
        state = Stage.DECODE if self.status is Stage.FINISHING else self.status
        return RequestStatus(self.rid, self.method, state, self.text.written, self.loan.name)

    def begun(self) -> Chunk | None:
        """An empty chunk, once, which says that a forward has part of a request that saw a crash: from now on it may be
        the cause of another. None: the client need not know."""
        if self.delivery.begun or not self.message.attempt:
            return None
        self.delivery.begun = True
        return Chunk(self.rid, self.delivery.offset, (), (), ())

    def chunk(self, now: float) -> Chunk:
        """The next one: all committed tokens that the client does not have, with their text."""
        delivery, output, offset = self.delivery, self.output, self.delivery.offset
        unsent, delivery.unsent, delivery.sent_at = delivery.unsent, [], now
        rounds = [committed for committed, _ in unsent]
        tokens = tuple(chain.from_iterable(one.tokens for one in rounds))
        first = offset == len(self.message.generated)
        pieces, last = output.spell(len(tokens))
        delivery.offset += len(pieces)
        return Chunk(
            rid=self.rid,
            offset=offset,
            token_ids=tokens,
            pieces=tuple(pieces),
            accepted=tuple(chain.from_iterable(one.accepted for one in rounds)),
            finish_reason=output.finish if last else None,
            logprobs=tuple(chain.from_iterable(one.logprobs for one in rounds)),
            stats=self.stats() if last else None,
            stop_reason=output.stop_reason if last else None,
            trace=unsent[-1][1],
            prompt_tokens=self.text.prompt_len if first else 0,
            cached_tokens=delivery.cached_tokens if first else 0,
        )

    def stats(self) -> RequestStats:
        text, times, delivery, sums = self.text, self.times, self.delivery, self.tally
        return RequestStats(
            method=self.method,
            prompt_tokens=text.prompt_len,
            completion_tokens=delivery.offset,
            time_to_first_token_ms=(times.first_at - times.arrived) * 1000,
            decode_ms=(times.last_at - times.first_at) * 1000,
            rounds=sums.rounds,
            draft_tokens=sums.drafted,
            accepted_tokens=sums.accepted,
            acceptance_histogram=_listed(sums.histogram),
            sequences_histogram=_listed(sums.sequences),
            gamma=sums.gamma_sum / sums.rounds if sums.rounds else 0.0,
            forward_ms=sums.forward_us / 1000,
            wait_ms=sums.wait_us / 1000,
            resyncs=sums.resyncs,
            forced_tokens=sums.forced,
            foreseen_rounds=sums.foreseen,
            overhead_ms=times.overhead_us / 1000,
            drafters=tuple(self.loan.names),
            prediction_tokens=len(self.prediction),
            predicted_tokens=(Counter(self.prediction) & Counter(text.committed[text.prompt_len :])).total(),
            cached_tokens=delivery.cached_tokens,
        )

    @property
    def news(self) -> list[int]:
        """The part of its text that is new to the memory: without most of what an earlier prompt had begun with."""
        start = max(0, self.delivery.cached_tokens - LONGEST)
        return self.text.committed[start:] if self.times.first_at else []

    def logged(self, model_id: str, tokenizer_digest: str) -> LoggedRequest:
        """The request as ``--log-requests`` writes it for replay."""
        text = self.text
        return LoggedRequest(
            prompt=tuple(text.committed[: text.prompt_len]),
            text=tuple(text.committed[text.prompt_len :]),
            sampling=text.sampling,
            finish_reason=self.output.finish,
            model_id=model_id,
            tokenizer=tokenizer_digest,
        )


def _listed(counts: Counter[int]) -> tuple[int, ...]:
    """The counts of 0, 1, 2 and so on, as far as there are any."""
    return tuple([counts.get(at, 0) for at in range(max(counts, default=-1) + 1)])


class Streams:
    """All open streams, in the order in which they came.

    An ended one is removed at once, so that its id is free. Its room in the KV pool is given back later, between two
    forwards, by whoever calls :meth:`take_ended`."""

    def __init__(self) -> None:
        self._open: dict[str, Stream] = {}  # open streams by id
        self._ended: list[Stream] = []
        self.added = 0  # since the verifier's start

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Stream]:
        """Over a copy: streams may end meanwhile."""
        return iter(list(self._open.values()))

    def get(self, rid: str) -> Stream | None:
        return self._open.get(rid)

    def of(self, status: Stage) -> list[Stream]:
        return [stream for stream in self._open.values() if stream.status is status]

    def overdue(self, now: float) -> list[Stream]:
        """Those with a deadline that has passed before their last token was committed."""
        timed = [stream for stream in self._open.values() if stream.message.deadline_ms]
        late = [stream for stream in timed if stream.times.arrived + stream.message.deadline_ms / 1000 < now]
        return [stream for stream in late if stream.status is not Stage.FINISHING]

    @property
    def decoding(self) -> int:
        return len(self.of(Stage.DECODE))

    def add(self, stream: Stream) -> None:
        """Raises ValueError if its id is in use."""
        if stream.rid in self._open:
            raise ValueError(f"request {stream.rid} is open already")
        self._open[stream.rid] = stream
        self.added += 1

    def end(self, stream: Stream) -> None:
        if self._open.get(stream.rid) is stream:
            del self._open[stream.rid]
            self._ended.append(stream)
        stream.become(Stage.ENDED)

    def take_ended(self) -> list[Stream]:
        """Streams that have ended since the last call."""
        ended, self._ended = self._ended, []
        return ended
