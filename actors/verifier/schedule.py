"""Which forward is next: a prompt's chunk, or a round of those that are ready."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import cache, partial

from actors.verifier.committer import Committer
from actors.verifier.decoding.rounds import Chosen, Others
from actors.verifier.drafters.judging import Judge
from actors.verifier.forward import Job
from actors.verifier.requests.admission import Admission
from actors.verifier.requests.faults import Faults
from actors.verifier.requests.request import Request
from actors.verifier.requests.room import Room
from actors.verifier.state import State

MAX_STALL = 2.0  # rounds without drafts: what streams wait for pieces of prompts before they have one again
# Of those, what drafts may take of the time of a piece that shares a round, and of one where others decode. With 1.0 a
# stream beside a long prompt left that 2 rows of each round, which reads its keys and values for them. See
# :meth:`Schedule._drafts_beside`.
MAX_DRAFTS = 0.5
MAX_PIECE = 64  # rows of such a piece, and of a round beside it: forward times are measured so far
LEAST_PIECE = 16  # of those, what is left to a prompt
MAX_ROWS = 512  # of one forward: their logits alone take 300 MB with a vocabulary of 152,000


class Turns:
    """Whose forward is next, where several kinds of work are ready: each in turn, so that none keeps another out."""

    def __init__(self) -> None:
        self._last: list[str] = []  # the kind that was served longest ago first

    def next(self, ready: Sequence[str]) -> str:
        kind = min(ready, key=lambda kind: self._last.index(kind) if kind in self._last else -1)
        self._last = [*(other for other in self._last if other != kind), kind]
        return kind


class Schedule:
    def __init__(
        self,
        state: State,
        judge: Judge,
        room: Room,
        admission: Admission,
        committer: Committer,
        faults: Faults,
        clock: Callable[[], float],
    ) -> None:
        self.state, self.judge, self.room, self.admission = state, judge, room, admission
        self.committer, self.faults = committer, faults
        self.clock = clock
        self._turns = Turns()
        self._prefilling_since: float | None = None  # seconds; None: the latest forward was a round

    def next(self) -> Job | None:
        """Clean up, let requests in, and choose the next forward; None: there is nothing to compute."""
        self.admission.expire()
        self.room.free()
        self.room.let_in()
        now_us = self.clock() * 1e6
        decoding = self.state.requests.of("decode")
        ready = [r for r in decoding if self.faults.spare(r, partial(r.spec.ready, now_us))]
        kinds = {
            "prefill": self.state.requests.of("prefill"),
            "decode": [r for r in ready if not r.suspect],
            "alone": [r for r in ready if r.suspect],
        }
        some = [kind for kind, requests in kinds.items() if requests]
        if not some:
            return None
        prompts = kinds["prefill"]
        if beside := self._goes_beside(prompts, kinds["decode"]):
            some.remove("prefill")
        elif prompts and self._prefilling_since is not None and self._time_for_prompt() == MAX_PIECE:
            return self._piece(prompts[0])
        kind = self._turns.next(some)
        if kind == "prefill":
            self._prefilling_since = self.clock()
            return self._piece(prompts[0])
        self._prefilling_since = None
        held = self.room.hold(kinds[kind][:1] if kind == "alone" else kinds[kind])
        if not held:
            return self.next()
        beside = beside and kind == "decode"
        job = self._round(held, beside)
        if beside and job is not None and prompts[0].state == "prefill":
            self._add_piece(job, prompts[0])
        return job

    def _goes_beside(self, prompts: Sequence[Request], ready: Sequence[Request]) -> bool:
        """Whether the next piece of a prompt shares the round's forward."""
        if not (prompts and ready and self.room.model.mixes_prompts):
            return False
        return not prompts[0].suspect and len(ready) <= MAX_PIECE - LEAST_PIECE

    def _time_for_prompt(self) -> int:
        """Rows of a prompt that there is time for until those that decode must have a round, at most ``MAX_PIECE``."""
        spent_us = (self.clock() - (self._prefilling_since or 0.0)) * 1e6
        left_us = MAX_STALL * self.state.cost.round(self.state.streams) - spent_us
        return bisect_right(range(1, MAX_PIECE + 1), left_us, key=self.state.pieces)

    def _piece(self, request: Request) -> Job:
        """As much of a prompt as there is time for; where nobody waits, as much as suits the model."""
        rows = min(max(1, self._time_for_prompt()), len(request.spec.committed)) if self.state.streams else 0
        return Job([], [], piece=request, piece_rows=rows)

    def _add_piece(self, job: Job, prompt: Request) -> None:
        """As much of a prompt as makes the round, drafts and all, longer than one without them by no more than
        ``MAX_STALL`` of those."""
        cost, own = self.state.cost, len(job.requests)
        row_us, drafts = cost.row(own), job.rows - own
        left_us = MAX_STALL * cost.round(own) - job.drafting_us - drafts * row_us
        rows = int(left_us / (row_us * self.state.prompt_row.factor))
        job.piece, job.piece_rows = prompt, max(1, min(rows, MAX_PIECE - job.rows))

    def _round(self, requests: list[Request], beside: bool) -> Job | None:
        """A row for each request, the one that waited longest first, and drafts. ``beside``: they share what time and
        rows there are with a piece of a prompt."""
        job, most = Job([], [], load := self.state.load()), MAX_ROWS
        if len(requests) > MAX_ROWS:
            requests = sorted(requests, key=lambda r: r.last_at)[:MAX_ROWS]
        job.guesses = self.judge.guesses_pay(load.streams, requests)
        cost, own = self.state.cost, len(requests)
        drafts_us = MAX_DRAFTS * cost.round(own) if not beside or self._drafts_beside(own) else 0.0
        self._draft_inline(job, requests, drafts_us if beside or load.streams > 1 else math.inf, beside)
        if beside:
            left_us = max(0.0, drafts_us - job.drafting_us)
            most = min(own + int(left_us / cost.row(own)), MAX_PIECE - LEAST_PIECE)
        requests = [request for request in requests if request.state == "decode"]
        now = self.clock()
        for place, request in enumerate(requests, 1):
            others = load.beside(request.spec.rate.value, job.rows + len(requests) - place)
            if job.guesses is False and load.streams > 1 and self.judge.may_rest(request):
                chosen: Chosen | None = Chosen([], [], [])
            else:
                chosen = self.faults.spare(request, partial(self._window, request, others, now, most))
            if chosen is not None:
                job.requests.append(request)
                job.windows.append(chosen)
                job.rows += 1 + len(chosen.nodes)
        return job if job.requests else None

    def _drafts_beside(self, streams: int) -> bool:
        """Whether the drafts of so many streams share a forward with a piece of a prompt. Where its rows are limited by
        their time, several streams' drafts only put off the stream that is to come and would make each round cheaper
        for all: without them 8 streams made 1.00 of vanilla's tokens instead of 0.97, 4 streams 1.00 instead of 0.97
        (bundled pair, two cores). One stream's are worth it (inflated target: 1.70 with them, 1.44 without)."""
        cost = self.state.cost
        return streams == 1 or streams + MAX_STALL * cost.round(streams) / cost.row(streams) >= MAX_PIECE

    def _draft_inline(self, job: Job, requests: Sequence[Request], room_us: float, beside: bool) -> None:
        """Grow the trees of those without a drafter by the verifier's own draft model, before windows are chosen, for
        so long at most. ``beside``: see :meth:`_round`; no text is read for drafts while the target reads another."""
        state, load = self.state, job.load
        inline = state.inline
        able = [r for r in requests if r.spec.strategy.inline and not r.suspect]
        asked = able if job.guesses is not False else [r for r in able if not self.judge.may_rest(r)]
        if inline is None or room_us <= 0 or not (asked or (able and inline.idle)):
            return
        own = [r for r in asked if not r.has_drafter]
        begun = self.clock()
        if own:
            rate = load.rate or len(requests) / state.cost.round(len(requests))
            for request in own:
                request.spec.waiting.begins(self.clock() * 1e6)
                self.faults.spare(request, partial(request.spec.guess, load.least))
            own = [request for request in own if request.state == "decode"]
            since = lambda: (self.clock() - state.started) * 1e6  # noqa: E731
            promised = cache(partial(inline.promise, state.cost, load.streams))  # the same for all
            saves, row = partial(self.judge.saves, load.streams, promised), rate * state.row_us(load.streams)
            inline.grow(own, state.cost, rate, since, row, saves, room_us, reads=not beside)
            job.idle, job.reading_us = inline.idle, inline.reading_us
        if not beside:
            inline.measure(self.clock() - state.started)
        job.drafting_us = (self.clock() - begun) * 1e6

    def _window(self, request: Request, others: Others, now: float, most: int) -> Chosen:
        """``most``: rows of the whole forward, of which ``others`` have taken theirs."""
        if request.spec.owes_verdict:
            self.committer.tell_drafter(request)  # both sides begin their step now
        room = most - 1 - others.rows
        if room <= 0:
            return Chosen([], [], [])
        cap = self.state.limits(request, now).window
        return request.spec.choose(self.state.cost, others, room if cap is None else min(cap, room))
