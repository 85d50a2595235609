"""Whether drafts pay: what rounds take and bring with them, set against the same text in the same time without.

Comparing rates of different stretches misleads: a text that copies is fast with any setting. A drafter is judged by
each round of a request that it is lent (:class:`Standing`, :class:`Course`), what the verifier itself guesses by rounds
as a whole (:class:`OwnDrafts`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from actors.models import Outcome
from actors.verifier.accounting import Forward
from actors.verifier.drafters import DrafterPeer
from actors.verifier.forward import Job
from actors.verifier.own_drafts import NO_RETRIEVAL, RetrievalAlone, group_of
from actors.verifier.plans import may_rest
from actors.verifier.prospects import prior_speedup, speedup_without_drafter
from actors.verifier.rounds import Committed, Load
from actors.verifier.sources.inline import InlineDraft
from actors.verifier.standing import RequestKind
from actors.verifier.state import State
from actors.verifier.streams import Request
from protocols.messages import RoundStats


class Judge:
    def __init__(self, state: State) -> None:
        self.state = state
        self._rounds = Counter[RequestKind]()  # of this forward

    # --- drafters ----------------------------------------------------------------------------------------------------

    def of_drafter(
        self,
        request: Request,
        drafter: DrafterPeer,
        committed: Committed,
        stats: RoundStats,
        forward: Forward,
        own_us: float,
    ) -> None:
        """A round of one request that it drafted for. ``own_us``: see :func:`account`."""
        state = self.state
        plain = state.plain[request.method]
        usual_us = plain.time(state.cost, forward.rows_without(drafter.peer), forward.requests)
        # tokens of that stretch in the round's time, with what was retrieved and what the verifier would have drafted
        without = (1 + stats.retrieved) * own_us / usual_us * speedup_without_drafter(state, request)
        standing, course = drafter.standing(request), request.course(drafter.actor_id)
        standing.round(stats.committed, without, own_us)
        course.drafted(stats.committed, without, prior_speedup(state, request, drafter), plain.known)
        request.drafted()
        self._rounds[request.kind] += 1
        if committed.claim is not None:
            standing.claimed(*committed.claim)
        course.judged(committed.base_len, committed.claim[1] if committed.claim is not None else None)

    def without_drafter(self, undrafted: Sequence[tuple[Request, float]], forward: Forward) -> None:
        """Of a forward's requests those that no drafter worked for, each with its round's time but for its waits, after
        :meth:`of_drafter`. They are looked at together: one by one, those of eight streams took 2% of a round."""
        state, kinds = self.state, dict[RequestKind, list[Request]]()
        for request, _ in undrafted:
            kinds.setdefault(request.kind, []).append(request)
        for kind, requests in kinds.items():
            plain = state.plain[kind.method]
            if not plain.known:
                state.drafters.standings.forget(kind.method)
            each, overhead_us = forward.decode_us / forward.forwards, undrafted[-1][1] - forward.decode_us
            plain.observe(state.cost, forward.decode_rows, each, overhead_us / forward.forwards, forward.requests)
            for request in requests:
                if request.drafter is not None:
                    request.course(request.drafters[-1]).rested(forward.forwards)
            self._rounds[kind] += forward.forwards * len(requests)
        for kind, rounds in self._rounds.items():
            for drafter in state.drafters.by_peer.values():  # one that is paused had none of them
                drafter.standings.of(drafter.who, kind).rested(rounds)
        self._rounds.clear()

    # --- the verifier's own ------------------------------------------------------------------------------------------

    def guesses_pay(self, load: Load, requests: Sequence[Request]) -> bool | None:
        """Whether the verifier itself drafts or retrieves for this round, as :class:`OwnDrafts` found it to pay. None:
        it is not asked, because a drafter is at work or a request's method or draft length leaves no choice."""
        if any(request.has_drafter for request in requests) or not any(map(self.may_rest, requests)):
            return None
        first, own = requests[0], self.state.own_drafts
        if load.streams > 1:
            return own.pay(group_of(load.streams, first.kind))
        if self.state.inline is None or not first.spec.strategy.inline:
            return None
        pays = own.pay(group_of(1, first.kind), first.own_course)
        if pays and not self._reads(self.state.inline, first, load):
            first.own_course.rest()  # it will be so for a while
            return False
        return pays

    def _reads(self, inline: InlineDraft, request: Request, load: Load) -> bool:
        """Whether the verifier's own draft model knows the text of a stream that is alone, or it is worth reading."""
        cost = self.state.cost
        saves = partial(self.saves, 1, partial(inline.promise, cost))
        return inline.reads(request, load.rate or 1.0 / cost.round(1), saves)

    def asks(self, request: Request) -> bool:
        """Whether the request's proposers are going to be asked as things stand."""
        streams = self.state.streams
        if streams < 2 or not self.may_rest(request):
            return True
        return self.state.own_drafts.pay(group_of(streams, request.kind))

    def saves(self, streams: int, promised: Callable[[], float], request: Request) -> float:
        """The part of the request's time that drafts are expected to save, with so many streams, where their model lets
        a speed-up be ``promised``. For one that is alone see :meth:`OwnDrafts.saves`; several read their texts in
        slices, and rounds until then show no gain."""
        if streams == 1:
            return self.state.own_drafts.saves(request.kind, promised())
        return 1.0 - 1.0 / promised()

    def may_rest(self, request: Request) -> bool:
        """Whether :class:`OwnDrafts` may leave the request without drafts. Not one that a drafter has, whose standing
        says whether it pays, nor one with a grammar, whose forced tokens are no guesses."""
        return not request.has_drafter and request.spec.windows.grammar is None and may_rest(self.state, request)

    def of_own(
        self, job: Job, outcomes: Sequence[Outcome | Exception | None], took_us: float, forward_us: float
    ) -> None:
        """Tell those who set rounds with the verifier's own drafts against rounds without (:class:`OwnDrafts`) what
        this one took and brought. ``took_us``: from the end of the last to its own, but for what is the same without
        drafts; a piece of a prompt is left out here. ``forward_us``: the forward, prompt and all. Rounds of which
        drafters' standings tell are none of theirs."""
        if job.guesses is None:
            return
        took_us -= job.prompt_us
        state, own, streams, first = self.state, len(job.requests), job.load.streams, job.requests[0]
        group, course = group_of(streams, first.kind), first.own_course if streams == 1 else None
        if not job.guesses:
            if job.rows == own and not any(request.has_drafter for request in job.requests):
                beside_us = (took_us - forward_us) * job.forwards / max(job.forwards, job.most_steps)
                state.own_drafts.without(group, streams, forward_us + beside_us, course, job.forwards)
            return
        retrieved = self._retrieval_alone(job) if streams == 1 else NO_RETRIEVAL
        tokens = sum(len(outcome.tokens) for outcome in outcomes[:own] if isinstance(outcome, Outcome))
        slowdown = forward_us / state.cost.uncorrected(own, job.rows - own) if job.piece is None else None
        state.own_drafts.made(group, streams, tokens, took_us, slowdown, job.reading_us, course, retrieved)

    def _retrieval_alone(self, job: Job) -> RetrievalAlone:
        """What a stream that is alone would have had without the draft model, too."""
        nodes, nodes_us = job.retrieval_alone
        return RetrievalAlone(min(nodes, job.requests[0].spec.windows.matched), nodes_us)
