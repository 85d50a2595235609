"""One client's request at the verifier: its life and its stream of chunks, around its :class:`Speculation`; and the
collection of all open requests."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain

import msgspec

from actors.records import LoggedRequest
from actors.verifier.alternatives import Alternatives
from actors.verifier.course import DrafterCourse
from actors.verifier.own_drafts import OwnCourse
from actors.verifier.rounds import Committed
from actors.verifier.speculation import Speculation
from actors.verifier.standing import RequestKind
from actors.verifier.trace import Trace
from protocols.messages import Chunk, Generate, Method, RequestStats, RequestStatus, RoundTrace

SETTLED_TOKENS = 16  # committed since the verifier crashed, after which a request is no longer suspected of that
KEPT_CONTEXT = 32  # tokens of context that the memory compares
MAX_DRAFTERS = 64  # named in a request's statistics: the latest that had it


@dataclass(frozen=True, slots=True)
class News:
    """A round's result that the client has not been told yet."""

    committed: Committed
    trace: RoundTrace | None


@dataclass(slots=True)
class Request:
    """``state`` is, in this order: "queued", "prefill", "decode", "finishing" (the client has not been told the last
    tokens), "ended". A request that is preempted is queued again. Times are seconds of the verifier's clock."""

    client: bytes  # routing id
    message: Generate
    spec: Speculation
    method: Method
    arrived: float
    state: str = "queued"
    handle: int = -1  # the target's; -1: it has no room in the KV pool
    drafter: bytes | None = None  # routing id of the drafter that has its lease
    drafters: list[str] = field(default_factory=list)  # actor ids of those that had it, the latest last
    courses: dict[str, DrafterCourse] = field(default_factory=dict)  # by drafter: what it has brought to this text
    own_course: OwnCourse = field(default_factory=OwnCourse)  # what drafts of the verifier's own have brought to it
    rounds_with_drafter: int = 0  # with the present one
    offset: int = 0  # output tokens that the client has
    cached_tokens: int = 0  # of the prompt: not computed again, because an earlier one began with them
    first_at: float = 0.0  # when its first token was committed; 0: it has none
    last_at: float = 0.0  # when its latest token was committed
    round_ended_at: float = 0.0
    overhead_us: float = 0.0  # of its rounds, beside forwards and waits
    waited_us: float = 0.0  # of the waits already accounted for
    prompts_us: float = 0.0  # that forwards had taken for prompts when its latest round ended
    trace: Trace | None = None  # makes the trace of its rounds, if its client asked for one
    alternatives: Alternatives | None = None  # what a learner is told of its tokens, if it asked
    untold: list[News] = field(default_factory=list)
    told_at: float = -math.inf  # when its latest chunk was made
    kind: RequestKind = field(init=False)

    def __post_init__(self) -> None:
        self.kind = RequestKind(self.method, self.spec.sampling.temperature > 0)

    @property
    def rid(self) -> str:
        return self.message.rid

    def status(self) -> RequestStatus:
        done = len(self.spec.committed) - self.spec.prompt_len
        holder = self.drafters[-1] if self.drafter is not None else ""
        state = "decode" if self.state == "finishing" else self.state
        return RequestStatus(self.rid, self.method, state, done, holder)

    @property
    def deadline(self) -> float:
        """When its answer must be complete; infinite if it has no deadline."""
        return self.arrived + self.message.deadline_ms / 1000 if self.message.deadline_ms else math.inf

    @property
    def has_drafter(self) -> bool:
        """Whether a drafter works for it: one has its lease and does not rest."""
        return self.drafter is not None and not self.spec.resting

    @property
    def suspect(self) -> bool:
        """Whether it may have crashed the verifier. Such requests are computed alone, one at a time."""
        since = len(self.spec.committed) - self.spec.prompt_len - len(self.message.generated)
        return self.message.attempt > 0 and since < SETTLED_TOKENS

    @property
    def undecided(self) -> bool:
        """Whether its next tokens need no decision and no word to others before the client is told: nobody drafts for
        it, and neither a grammar nor a proposer that makes whole windows follows each token."""
        if self.has_drafter or self.suspect or self.trace is not None or self.alternatives is not None:
            return False
        return self.spec.windows.grammar is None and self.spec.windows.sole is None

    @property
    def left(self) -> int:
        """Tokens that its output may still grow by."""
        return self.spec.prompt_len + self.spec.sampling.max_tokens - len(self.spec.committed)

    def begun(self) -> Chunk:
        """An empty chunk, which tells the client that work on its request has begun."""
        return Chunk(self.rid, self.offset, (), (), ())

    @property
    def news(self) -> list[int]:
        """The part of its text that is new to the memory: without most of what an earlier prompt had begun with."""
        return self.spec.committed[max(0, self.cached_tokens - KEPT_CONTEXT) :] if self.first_at else []

    def logged(self, model_id: str) -> LoggedRequest:
        """The request as ``--log-requests`` writes it for replay."""
        spec = self.spec
        return LoggedRequest(
            prompt=tuple(spec.committed[: spec.prompt_len]),
            text=tuple(spec.committed[spec.prompt_len :]),
            sampling=spec.sampling,
            finish_reason=spec.output.finish,
            model_id=model_id,
        )

    # --- its life ----------------------------------------------------------------------------------------------------

    def opened(self, handle: int) -> None:
        """It has got room in the KV pool."""
        self.handle = handle
        self.state = "prefill"

    def began(self, now: float, cached_tokens: int, prompts_us: float) -> None:
        """Its prompt is computed, of which ``cached_tokens`` were there before. ``prompts_us``: see
        :class:`actors.verifier.accounting.Forward`."""
        self.state = "decode"
        self.last_at = self.round_ended_at = now
        self.prompts_us = prompts_us
        if not self.first_at:
            self.first_at, self.cached_tokens = now, cached_tokens

    def preempted(self) -> None:
        """It has lost its room: it waits for another, where its text so far is computed again."""
        self.handle = -1
        self.state = "queued"

    def grew(self, now: float, over: bool) -> None:
        """Tokens were committed. ``over``: they are the last."""
        self.last_at = now
        if over:
            self.state = "finishing"

    def ended(self) -> None:
        self.state = "ended"

    def round_over(self, now: float, forward_us: float, prompts_us: float) -> tuple[float, float, float]:
        """Account for a round that ends now. Returns three times in microseconds: all of it, the wait for drafts in it,
        and all of it without the prompts that were computed meanwhile."""
        wall_us = (now - self.round_ended_at) * 1e6
        wait_us = self.spec.counters.wait_us - self.waited_us
        self.waited_us = self.spec.counters.wait_us
        self.round_ended_at = now
        self.overhead_us += max(0.0, wall_us - forward_us - wait_us)
        own_us = wall_us - (prompts_us - self.prompts_us)
        self.prompts_us = prompts_us
        return wall_us, wait_us, own_us

    # --- its drafter -------------------------------------------------------------------------------------------------

    @property
    def drafting(self) -> bool:
        """Whether a drafter could draft for it at present."""
        return self.state in ("prefill", "decode")

    def lent(self, drafter: bytes | None, actor_id: str = "") -> None:
        """A drafter has its lease now; None: none has."""
        self.drafter = drafter
        self.rounds_with_drafter = 0
        if drafter is None:
            return
        if actor_id in self.drafters:
            self.drafters.remove(actor_id)
        self.drafters = [*self.drafters, actor_id][-MAX_DRAFTERS:]

    def drafted(self) -> None:
        """A round in which its drafter drafted is over."""
        self.rounds_with_drafter += 1

    @property
    def resting(self) -> bool:
        """Whether its drafter should rest, by what its drafts have brought to this text."""
        known = self.courses.get(self.drafters[-1]) if self.drafter is not None else None
        return known is not None and known.resting

    def course(self, actor_id: str) -> DrafterCourse:
        """What a drafter has brought to this text. Of more than ``MAX_DRAFTERS`` nothing is kept."""
        known = self.courses.get(actor_id) or DrafterCourse()
        if len(self.courses) < MAX_DRAFTERS:
            self.courses[actor_id] = known
        return known

    # --- its stream --------------------------------------------------------------------------------------------------

    def due(self, next_at: float, interval_s: float) -> bool:
        """Whether its client is told now what was committed, because ``next_at``, the next chance, is later than
        ``interval_s`` after the last chunk. The first token, the last tokens, and rounds with a trace are always told
        at once."""
        late = next_at - self.told_at > interval_s
        return late or self.state == "finishing" or self.trace is not None

    def chunk(self, now: float) -> Chunk:
        """The next chunk: all committed tokens that its client has not been told, with their text."""
        output = self.spec.output
        news, self.untold, self.told_at = self.untold, [], now
        untold = [one.committed for one in news]
        tokens = tuple(chain.from_iterable(one.tokens for one in untold))
        first = self.offset == len(self.message.generated)
        pieces, last = output.spell(len(tokens))
        chunk = Chunk(
            self.rid,
            self.offset,
            tokens,
            tuple(pieces),
            tuple(chain.from_iterable(one.accepted for one in untold)),
            logprobs=tuple(chain.from_iterable(one.logprobs for one in untold)),
            trace=news[-1].trace,
            prompt_tokens=self.spec.prompt_len if first else 0,
            cached_tokens=self.cached_tokens if first else 0,
        )
        self.offset += len(pieces)
        if last:
            end = {"finish_reason": output.finish, "stop_reason": output.stop_reason, "stats": self._stats()}
            chunk = msgspec.structs.replace(chunk, **end)
        return chunk

    def _stats(self) -> RequestStats:
        spec = self.spec
        decode_us = (self.last_at - self.first_at) * 1e6
        return msgspec.structs.replace(
            spec.stats(self.method),
            completion_tokens=self.offset,
            time_to_first_token_ms=(self.first_at - self.arrived) * 1000,
            decode_ms=decode_us / 1000,
            overhead_ms=self.overhead_us / 1000,
            drafters=tuple(self.drafters),
            cached_tokens=self.cached_tokens,
        )


class Requests:
    """All open requests, in the order in which they came.

    One that ends is removed at once, so that its id is free. Its room in the KV pool is given back later, between two
    forwards, by whoever calls :meth:`take_ended`."""

    def __init__(self) -> None:
        self._open: dict[str, Request] = {}  # by id
        self._ended: list[Request] = []

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Request]:
        """Over a copy: requests may end meanwhile."""
        return iter(list(self._open.values()))

    def get(self, rid: str) -> Request | None:
        return self._open.get(rid)

    def of(self, state: str) -> list[Request]:
        """Those in that state."""
        return [request for request in self._open.values() if request.state == state]

    def add(self, request: Request) -> None:
        """Raises ValueError if its id is in use."""
        if request.rid in self._open:
            raise ValueError(f"request {request.rid} is open already")
        self._open[request.rid] = request

    def end(self, request: Request) -> None:
        if self._open.get(request.rid) is request:
            del self._open[request.rid]
            self._ended.append(request)
        request.ended()

    def take_ended(self) -> list[Request]:
        """Those that have ended since the last call."""
        ended, self._ended = self._ended, []
        return ended
