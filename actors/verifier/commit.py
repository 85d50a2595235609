"""Commits what a forward brought; tells the drafters at once, and the clients while the next forward runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from actors.models import Outcome
from actors.verifier.accounting import Forward, account
from actors.verifier.admission import Admission
from actors.verifier.drafters import DrafterPeer
from actors.verifier.faults import Faults
from actors.verifier.forward import Job
from actors.verifier.judging import Judge
from actors.verifier.leases import Leases
from actors.verifier.peers import Peers
from actors.verifier.plans import plan_for, round_limits
from actors.verifier.rounds import NO_OTHERS, Chosen, Committed, Others
from actors.verifier.state import State
from actors.verifier.streams import News, Request
from protocols.messages import Message, RoundStats, RoundTrace

TELEMETRY_BURST = 8  # rounds whose statistics are published together


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
        self._untold: list[Request] = []  # with tokens that their clients have not been told yet
        self._told_at = 0.0  # seconds: when ``tell_clients`` was called last
        self._round_stats: list[RoundStats] = []  # not published yet
        self._prompts_us = 0.0  # that forwards have taken for prompts since the start

    # --- commit ------------------------------------------------------------------------------------------------------

    def commit(self, job: Job, outcomes: list[Outcome | Exception | None], forward_us: float) -> None:
        """Commit a forward that took ``forward_us`` microseconds. ``outcomes`` are those of ``job.everybody``, as
        :func:`actors.verifier.forward.compute` returns them.

        A request whose outcome is an exception fails alone. Raises it when too many in a row did, see ``Faults``."""
        for request, outcome in zip(job.everybody, outcomes, strict=True):
            if isinstance(outcome, Exception):
                self.faults.blame(request, outcome)
            else:
                self.faults.went_well()
        own, rows, piece = len(job.requests), job.rows + job.piece_rows, job.piece
        decode_us = self._decode_us(job, forward_us)
        job.prompt_us = forward_us - decode_us
        self._prompts_us += job.prompt_us
        if piece is not None and rows:
            self.state.pieces.observe(rows, forward_us)
        if own and (piece is None or outcomes[-1] is None):  # the last piece of a prompt may have fewer rows than asked
            self._learn_costs(job, forward_us)
        if own:
            self._commit_round(job, outcomes[:own], forward_us, decode_us)
        if piece is not None and isinstance(outcome := outcomes[-1], Outcome) and piece.state == "prefill":
            self.faults.guard(piece, partial(self._commit_prefill, piece, outcome))
            self.tell_clients()  # the first token is not held back for the next round

    def _decode_us(self, job: Job, forward_us: float) -> float:
        """The part of a forward's time that its round took; the rest is that of the prompt's piece beside it."""
        if job.piece is None:
            return forward_us
        own = len(job.requests)
        return min(forward_us, self.state.cost.round(own, job.rows - own)) if job.rows else 0.0

    def _learn_costs(self, job: Job, forward_us: float) -> None:
        """Update the cost of rounds, or that of a prompt's rows beside one: a forward tells of one of the two."""
        cost, prompt_row, own = self.state.cost, self.state.prompt_row, len(job.requests)
        if job.piece is None:
            cost.observe(job.rows, forward_us / job.forwards, own)
        elif cost.seen(own):
            prompt_row.observe(job.prompt_us / (job.piece_rows * cost.row(own)))
        else:
            cost.observe(job.rows + job.piece_rows * prompt_row.factor, forward_us, own, beside_prompt=True)

    def _commit_round(
        self, job: Job, outcomes: list[Outcome | Exception | None], forward_us: float, decode_us: float
    ) -> None:
        """Commit each request's window. ``decode_us``: see :meth:`_decode_us`."""
        forward = self._forward(job, forward_us, decode_us)
        undrafted: list[tuple[Request, float]] = []  # with the microseconds of their rounds, waits not counted
        next_rows = 0  # of the next forward, by those requests of this one that do not wait
        parts = zip(job.requests, job.windows, outcomes, strict=True)
        for place, (request, chosen, outcome) in enumerate(parts, 1):
            if request.state == "decode" and isinstance(outcome, Outcome):
                others = NO_OTHERS
                if request.drafter is not None:
                    others = job.load.beside(request.spec.rate.value, next_rows + len(job.requests) - place)
                step = partial(self._commit_window, request, chosen, outcome, forward, others)
                done = self.faults.guard(request, step)
                if done is not None:
                    rows, undrafted_us = done
                    next_rows += rows
                    if undrafted_us is not None:
                        undrafted.append((request, undrafted_us))
        self.judge.without_drafter(undrafted, forward)
        if len(self._round_stats) >= TELEMETRY_BURST:
            self.publish_rounds()

    def _forward(self, job: Job, forward_us: float, decode_us: float) -> Forward:
        """What the statistics of its requests say of a forward."""
        state = self.state
        drafted: dict[bytes | None, int] = {}
        for request, chosen in zip(job.requests, job.windows, strict=True):
            drafted[request.drafter] = drafted.get(request.drafter, 0) + chosen.drafted
        return Forward(
            started_us=(job.started - state.started) * 1e6,
            started_at=job.started,
            took_us=forward_us,
            rows=job.rows + job.piece_rows,
            decode_us=decode_us,
            decode_rows=job.rows,
            requests=len(job.requests),
            drafted=drafted,
            prompts_us=self._prompts_us,
            streams=job.load.streams,
            slowdown=state.cost.slowdown(len(job.requests)),
            forwards=job.forwards,
        )

    def _commit_prefill(self, request: Request, outcome: Outcome) -> None:
        """The prompt is computed: commit the token that follows it. A request that was preempted has its text computed
        anew, so that this is not its first token."""
        committed = request.spec.again(outcome) if request.first_at else request.spec.first(outcome)
        request.began(self.clock(), outcome.reused, self._prompts_us)
        _keep_alternatives(request, committed, outcome)
        drafter = self.state.drafters.of(request.drafter)
        self._go_on(request, drafter, committed, True, self.state.load().beside(request.spec.rate.value, 0))

    def _commit_window(
        self,
        request: Request,
        chosen: Chosen,
        outcome: Outcome,
        forward: Forward,
        others: Others,
    ) -> tuple[int, float | None]:
        """Returns the rows that the request adds to the next forward (0: it waits, or has ended); and, where its method
        uses drafters and none worked for it, the microseconds of the round without its waits."""
        traced = None if request.trace is None else request.trace.seen(request.spec.tree, chosen, outcome.path)
        committed = request.spec.commit(chosen, outcome)
        _keep_alternatives(request, committed, outcome)
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
        trace = None if traced is None else traced(stats)
        return self._go_on(request, drafter, committed, covered, others, trace), undrafted_us

    def _go_on(
        self,
        request: Request,
        drafter: DrafterPeer | None,
        committed: Committed,
        covered: bool,
        others: Others,
        trace: RoundTrace | None = None,
    ) -> int:
        """After a commit: decide whether the next round waits for drafts, and tell the drafter. ``covered``: the whole
        window was accepted. Returns the rows that the request adds to the next forward; 0 if it waits or has ended."""
        now = self.clock()
        request.grew(now, over=committed.finish is not None)
        if not request.untold:
            self._untold.append(request)
        request.untold.append(News(committed, trace))
        if committed.finish is not None:
            self.leases.ended(request, now)
            return 0
        if drafter is None or self.leases.outgrown(request, drafter, now) or self.leases.judge(request, drafter, now):
            return 1  # no drafter has it, or not any more
        state, spec = self.state, request.spec
        spec.replan(plan_for(state, request, drafter, now))
        limits = round_limits(state, request, now)
        rows = spec.decide_wait(now * 1e6, drafter.pace, state.cost, covered, limits, others)
        if spec.resting and spec.plan == spec.told_plan:
            return rows  # the drafter rests and knows it; the verdict that ends its rest has all tokens since
        if not spec.holds_verdict:
            self.tell_drafter(request, state.cost(others.rows + rows))
        return rows if spec.waiting.until is None else 0

    # --- tell --------------------------------------------------------------------------------------------------------

    def tell_drafter(self, request: Request, verify_us: float | None = None) -> None:
        """Send the drafter what it has not been told yet. ``verify_us``: expected length of the next round."""
        drafter = self.state.drafters.of(request.drafter)
        if drafter is None:
            return
        if not self.send(drafter.peer, request.spec.verdict(self.clock() * 1e6, verify_us)):
            self.peers.gone(drafter.peer, "unreachable")

    def publish_rounds(self) -> None:
        """Publish the statistics of the latest rounds. They leave in bursts: waking libzmq's thread for each of them
        took 0.1 ms a round."""
        for stats in self._round_stats:
            self.publish(stats)
        self._round_stats.clear()

    def tell_clients(self, wait: bool = True) -> None:
        """Turn committed tokens into text and send it. With ``wait``, tokens may be held back for a later chunk where
        rounds are short, see :meth:`Request.due`."""
        now = self.clock()
        next_at, self._told_at = now + (now - self._told_at), now  # assuming that the next round is as long as the last
        untold, self._untold = self._untold, []
        interval_s = self.state.chunks.interval_s(self.state.streams)
        for request in untold:
            if request.state == "ended":
                continue
            if wait and not request.due(next_at, interval_s):
                self._untold.append(request)
                continue
            chunk = self.faults.guard(request, partial(request.chunk, now))
            if chunk is None:
                continue
            self.state.totals.told(chunk)
            if chunk.finish_reason is not None:
                self.publish_rounds()
                self.admission.end(request)
            if not self.send(request.client, chunk):
                # Its queue is full: it does not read. When it does again, it is told to say Hello, and resumes.
                self.peers.gone(request.client, "unreachable")


def _keep_alternatives(request: Request, committed: Committed, outcome: Outcome) -> None:
    """Keep the target's likeliest tokens for a learner that wants them."""
    if request.alternatives is not None:
        request.alternatives.add(len(committed.tokens), outcome.likeliest)
