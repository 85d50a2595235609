"""Which forward is next: a prompt's chunk, or a round of those that are ready."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial

from actors.verifier.committer import Committer
from actors.verifier.decoding.rounds import Chosen, Others
from actors.verifier.drafters.judging import Judge
from actors.verifier.forward import Job
from actors.verifier.requests.admission import Admission
from actors.verifier.requests.faults import Faults
from actors.verifier.requests.request import Request
from actors.verifier.requests.room import Room
from actors.verifier.state import State

MAX_STALL = 2.0  # rounds: what streams wait for pieces of prompts before they have one again
MAX_PIECE = 64  # rows of such a piece, and of a round beside it: forward times are measured so far
LEAST_PIECE = 16  # of those, what drafts leave to a prompt
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
        if kind == "alone" or not beside:
            return self._round(held, MAX_ROWS)
        job = self._round(held, MAX_PIECE - LEAST_PIECE)
        if job is not None and prompts[0].state == "prefill":
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
        left_us = MAX_STALL * self.state.cost(self.state.streams) - spent_us
        return bisect_right(range(1, MAX_PIECE + 1), left_us, key=self.state.pieces)

    def _piece(self, request: Request) -> Job:
        """As much of a prompt as there is time for; where nobody waits, as much as suits the model."""
        rows = min(max(1, self._time_for_prompt()), len(request.spec.committed)) if self.state.streams else 0
        return Job([], [], piece=request, piece_rows=rows)

    def _add_piece(self, job: Job, prompt: Request) -> None:
        """As much of a prompt as makes the round longer by no more than ``MAX_STALL`` such rounds, drafts included:
        drafts do not make the piece shorter, since a stream that begins to decode sooner brings more than they do."""
        longest_us = self.state.pieces(job.rows) + MAX_STALL * self.state.cost(job.rows)
        room = MAX_PIECE - job.rows
        rows = bisect_right(range(1, room + 1), longest_us, key=lambda n: self.state.pieces(job.rows + n))
        job.piece, job.piece_rows = prompt, max(1, rows)

    def _round(self, requests: list[Request], most: int) -> Job | None:
        """A row for each request, the one that waited longest first, and what is left of ``most`` rows for their
        drafts."""
        job = Job([], [], load := self.state.load())
        if len(requests) > MAX_ROWS:
            requests = sorted(requests, key=lambda r: r.last_at)[:MAX_ROWS]
        job.guesses = self.judge.guesses_pay(load.streams, requests)
        self._draft_inline(job, requests)
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

    def _draft_inline(self, job: Job, requests: Sequence[Request]) -> None:
        """Grow the trees of those without a drafter by the verifier's own draft model, before windows are chosen."""
        state, load = self.state, job.load
        inline = state.inline
        able = [r for r in requests if r.spec.strategy.inline and not r.suspect]
        if job.guesses is False:
            able = [r for r in able if not self.judge.may_rest(r)]
        if inline is None or not able:
            return
        own = [r for r in able if not r.has_drafter]
        begun = self.clock()
        if own:
            rate = load.rate or len(requests) / state.cost(len(requests))
            for request in own:
                request.spec.waiting.begins(self.clock() * 1e6)
                self.faults.spare(request, partial(request.spec.guess, load.least))
            own = [request for request in own if request.state == "decode"]
            inline.grow(own, state.cost, rate, lambda: (self.clock() - state.started) * 1e6, load.least)
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
