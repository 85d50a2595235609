"""Takes what a forward brought: commits it, tells the drafters at once, and the clients while the next one runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from actors.models import Outcome
from actors.verifier.accounting import Forward, account
from actors.verifier.decoding.rounds import NO_OTHERS, Chosen, Committed, Others
from actors.verifier.drafters.judging import Judge
from actors.verifier.drafters.leases import Leases
from actors.verifier.drafters.registry import DrafterPeer
from actors.verifier.forward import Job
from actors.verifier.peers import Peers
from actors.verifier.requests.admission import Admission
from actors.verifier.requests.faults import Faults
from actors.verifier.requests.request import News, Request
from actors.verifier.state import State
from protocols.messages import Message, RoundStats, RoundTrace

TELEMETRY_BURST = 8  # rounds


class Committer:
    def __init__(
        self,
        state: State,
        leases: Leases,
        judge: Judge,
        admission: Admission,
        peers: Peers,
        faults: Faults,
        send: Callable[[bytes, Message], bool],
        publish: Callable[[Message], None],
        clock: Callable[[], float],
    ) -> None:
        self.state, self.leases, self.judge = state, leases, judge
        self.admission, self.peers, self.faults = admission, peers, faults
        self.send, self.publish, self.clock = send, publish, clock
        self._untold: list[Request] = []  # whose client has not been told everything
        self._looked_at = 0.0  # for clients that are due
        self._round_stats: list[RoundStats] = []
        self._prompts_us = 0.0  # that forwards have taken for prompts

    # --- commit ------------------------------------------------------------------------------------------------------

    def commit(self, job: Job, outcomes: list[Outcome | Exception | None], forward_us: float) -> None:
        """``forward_us``: what the forward took."""
        for request, outcome in zip(job.everybody, outcomes, strict=True):
            if isinstance(outcome, Exception):
                self.faults.of(request, outcome)
            else:
                self.faults.went_well()
        rows, state, decode_us = job.rows + job.piece_rows, self.state, forward_us
        own = len(job.requests)
        if job.piece is not None:
            decode_us = min(forward_us, state.cost.round(own, job.rows - own)) if job.rows else 0.0
            if rows:
                state.pieces.observe(rows, forward_us)
        job.prompt_us = forward_us - decode_us
        if own and (job.piece is None or outcomes[-1] is None):  # else the prompt has ended, with fewer rows
            self._learn(job, forward_us)
        self._prompts_us += job.prompt_us
        if job.requests:
            self._commit_round(job, outcomes[: len(job.requests)], rows, forward_us, decode_us)
        if job.piece is not None and isinstance(outcome := outcomes[-1], Outcome) and job.piece.state == "prefill":
            self.faults.spare(job.piece, partial(self._begin, job.piece, outcome))
            self.tell_clients()  # a first token waits for no draft of the second

    def _learn(self, job: Job, forward_us: float) -> None:
        """What rounds take, and what a prompt's row does beside them: one forward tells of one of them."""
        cost, prompt_row, own = self.state.cost, self.state.prompt_row, len(job.requests)
        if job.piece is None:
            cost.observe(job.rows, forward_us, own)
        elif cost.seen(own):
            prompt_row.observe(job.prompt_us / (job.piece_rows * cost.row(own)))
        else:
            cost.observe(job.rows + job.piece_rows * prompt_row.factor, forward_us, own, beside_prompt=True)

    def _commit_round(
        self, job: Job, outcomes: list[Outcome | Exception | None], rows: int, forward_us: float, decode_us: float
    ) -> None:
        """``rows`` and ``forward_us``: of the forward, those of a prompt included. ``decode_us``: without them."""
        state = self.state
        started_us = (job.started - state.started) * 1e6
        load = job.load
        drafted: dict[bytes | None, int] = {}
        for request, chosen in zip(job.requests, job.windows, strict=True):
            drafted[request.drafter] = drafted.get(request.drafter, 0) + chosen.drafted
        forward = Forward(
            started_us=started_us,
            started_at=job.started,
            took_us=forward_us,
            rows=rows,
            decode_us=decode_us,
            decode_rows=job.rows,
            requests=len(job.requests),
            drafted=drafted,
            prompts_us=self._prompts_us,
            streams=load.streams,
            slowdown=state.cost.slowdown(len(job.requests)),
        )
        undrafted: list[tuple[Request, float]] = []
        after = 0  # rows of the next forward, as far as its streams do not wait
        parts = zip(job.requests, job.windows, outcomes, strict=True)
        for place, (request, chosen, outcome) in enumerate(parts, 1):
            if request.state == "decode" and isinstance(outcome, Outcome):
                others = NO_OTHERS
                if request.drafter is not None:
                    others = load.beside(request.spec.rate.value, after + len(job.requests) - place)
                done = self.faults.spare(request, partial(self._round, request, chosen, outcome, forward, others))
                if done is not None:
                    more, undrafted_us = done
                    after += more
                    if undrafted_us is not None:
                        undrafted.append((request, undrafted_us))
        self.judge.without_drafter(undrafted, forward)
        if len(self._round_stats) >= TELEMETRY_BURST:
            self.publish_rounds()

    def _begin(self, request: Request, outcome: Outcome) -> None:
        """The prefill is over, and its token is the first."""
        committed = request.spec.again(outcome) if request.first_at else request.spec.first(outcome)
        request.began(self.clock(), outcome.reused, self._prompts_us)
        _note(request, committed, outcome)
        drafter = self.state.drafters.of(request.drafter)
        self._settle(request, drafter, committed, True, self.state.load().beside(request.spec.rate.value, 0))

    def _round(
        self,
        request: Request,
        chosen: Chosen,
        outcome: Outcome,
        forward: Forward,
        others: Others,
    ) -> tuple[int, float | None]:
        """Returns the rows that the request adds to the next forward, unless it waits; and, where a drafter might have
        worked and none did, the round's time but for its waits."""
        seen = None if request.trace is None else request.trace.seen(request.spec.tree, chosen, outcome.path)
        committed = request.spec.commit(chosen, outcome)
        _note(request, committed, outcome)
        covered = len(outcome.path) == len(chosen.nodes)
        drafter = self.state.drafters.of(request.drafter)
        stats, own_us = account(request, drafter, forward, chosen, committed, self.clock())
        self.state.totals.round(stats, self.state.cost.plain(forward.requests))
        self._round_stats.append(stats)
        undrafted_us: float | None = None
        if drafter is not None and not stats.resting:
            self.judge.of_drafter(request, drafter, committed, stats, forward, own_us)
        elif request.spec.strategy.drafter:
            undrafted_us = own_us - stats.wait_us
        trace = None if seen is None else seen(stats)
        return self._settle(request, drafter, committed, covered, others, trace), undrafted_us

    def _settle(
        self,
        request: Request,
        drafter: DrafterPeer | None,
        committed: Committed,
        covered: bool,
        others: Others,
        trace: RoundTrace | None = None,
    ) -> int:
        """The drafter hears first. Returns the rows that the request adds to the next forward, unless it waits."""
        now = self.clock()
        request.grew(now, over=committed.finish is not None)
        if not request.untold:
            self._untold.append(request)
        request.untold.append(News(committed, trace))
        if committed.finish is not None:
            self.leases.ended(request, now)
            return 0
        if drafter is None or self.leases.outgrown(request, drafter, now) or self.leases.judge(request, drafter, now):
            return 1
        state, spec = self.state, request.spec
        spec.replan(state.plan(request, drafter, now))
        limits = state.limits(request, now)
        rows = spec.decide_wait(now * 1e6, drafter.pace, state.cost, covered, limits, others)
        if spec.resting and spec.plan == spec.told_plan:
            return rows  # it would wake up for nothing; it catches up when it is wanted again
        if not spec.holds_verdict:
            self.tell_drafter(request, state.cost(others.rows + rows))
        return rows if spec.waiting.until is None else 0

    # --- tell --------------------------------------------------------------------------------------------------------

    def tell_drafter(self, request: Request, verify_us: float | None = None) -> None:
        drafter = self.state.drafters.of(request.drafter)
        if drafter is None:
            return
        if not self.send(drafter.peer, request.spec.verdict(self.clock() * 1e6, verify_us)):
            self.peers.gone(drafter.peer, "unreachable")

    def publish_rounds(self) -> None:
        """Round statistics leave in bursts: waking the socket's thread for each cost 0.1 ms a round."""
        for stats in self._round_stats:
            self.publish(stats)
        self._round_stats.clear()

    def tell_clients(self, wait: bool = True) -> None:
        """Turn committed tokens into text and stream it. Where rounds are short a chunk may ``wait`` for the next."""
        now = self.clock()
        next_at, self._looked_at = now + (now - self._looked_at), now  # the next round is taken to be like the last
        untold, self._untold = self._untold, []
        for request in untold:
            if request.state == "ended":
                continue
            if wait and not request.due(next_at):
                self._untold.append(request)
                continue
            chunk = self.faults.spare(request, partial(request.chunk, now))
            if chunk is None:
                continue
            self.state.totals.told(chunk)
            if chunk.finish_reason is not None:
                self.publish_rounds()
                self.admission.end(request)
            if not self.send(request.client, chunk):
                # It does not read. When it does again it is greeted as a stranger, and resumes what it has of streams.
                self.peers.gone(request.client, "unreachable")


def _note(request: Request, committed: Committed, outcome: Outcome) -> None:
    """What a learner is told of the tokens."""
    if request.alternatives is not None:
        request.alternatives.add(len(committed.tokens), outcome.likeliest)
