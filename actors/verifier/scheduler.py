"""Which forward is next: a piece of a prompt, a round of the requests that are ready, or both in one forward."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import cache, partial

from actors.tree.window import Cost
from actors.verifier.admission import Admission
from actors.verifier.commit import Committer
from actors.verifier.faults import Faults
from actors.verifier.forward import Job
from actors.verifier.judging import Judge
from actors.verifier.plans import round_limits
from actors.verifier.room import Room
from actors.verifier.rounds import NO_OTHERS, Chosen, Others
from actors.verifier.state import State
from actors.verifier.streams import Request

# Streams that decode wait for pieces of others' prompts for as long as this many rounds without drafts take, then they
# have a round themselves. Rounds of all requests that are there, also of those that wait for their first token: with 32
# streams that ask at once often two decode, and pieces of two of their own rounds let the others wait for 290 ms where
# they wait 50 now (medians, bundled pair, one prompt in 32 of 1,536 tokens; tokens/s 1.07 and 0.89 of what they were).
MAX_STALL = 2.0
# Of that time, in rounds of those that decode, what drafts may take of a forward that is shared with a piece of a
# prompt or with other streams. With 1.0 a single stream beside a long prompt left it 2 rows of each round, and each
# round reads the prompt's keys and values for its rows. See :meth:`Schedule._drafts_beside`.
MAX_DRAFTS = 0.5
MAX_PIECE = 64  # rows of a piece that others wait for, in a forward of its own: the calibration's largest
# Rows of a forward that a piece shares with a round. Time is what should limit the piece: with 64 rows, of which 25
# streams had theirs, those that asked waited 785 ms for their first token where they wait 290 now (64 streams that ask
# at once, bundled pair, two cores; tokens/s 1.02 of what they were).
MAX_SHARED = 256
LEAST_PIECE = 16  # rows of those that are kept for the prompt
MAX_ROWS = 512  # of one forward: their logits alone take 300 MB with a vocabulary of 152,000
# Between two questions to proposers that are of no use to a stream without other drafts. A question takes some 0.35 ms
# of a round of the bundled target, 1% of so long.
ASK_CHUNKS = 2


class Turns:
    """Which of several kinds of work is next: the one that was served longest ago, so that none is starved."""

    def __init__(self) -> None:
        self._last: list[str] = []  # kinds, the one that was served longest ago first

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
        asks_behind: bool,
    ) -> None:
        """``asks_behind``: whether proposers may be asked between two forwards of a row: in the event loop's thread."""
        self._asks_behind = asks_behind
        self.state, self.judge, self.room, self.admission = state, judge, room, admission
        self.committer, self.faults = committer, faults
        self.clock = clock
        self._turns = Turns()
        self._prefilling_since: float | None = None  # seconds; None: the latest forward had a round in it

    def next(self) -> Job | None:
        """Expire requests, give back the room of those that ended, admit others, and choose the next forward.

        None: there is nothing to compute at present; some requests may be waiting for drafts."""
        self.admission.expire()
        self.room.free()
        self.room.let_in()
        now_us = self.clock() * 1e6
        decoding = self.state.requests.of("decode")
        ready = [r for r in decoding if self.faults.guard(r, partial(r.spec.ready, now_us))]
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
            return self._piece(prompts[0])  # the last forward was a piece, and streams can wait for a whole one more
        kind = self._turns.next(some)
        if kind == "prefill":
            self._prefilling_since = self.clock()
            return self._piece(prompts[0])
        self._prefilling_since = None
        held = self.room.hold(kinds[kind][:1] if kind == "alone" else kinds[kind])
        if not held:  # all were preempted
            return self.next()
        beside = beside and kind == "decode"
        job = self._round(held, beside)
        if beside and job is not None and prompts[0].state == "prefill":
            self._add_piece(job, prompts[0])
        return job

    def goes_on(self, job: Job) -> bool:
        """Whether that round's stream may have another at once: it is the only request, and nothing but its own text
        says how it goes on."""
        if job.piece is not None or len(job.requests) != 1 or len(self.state.requests) != 1:
            return False
        (request,) = job.requests
        return request.state == "decode" and not (request.has_drafter or request.suspect or request.trace is not None)

    def again(self, job: Job, took_us: float) -> Job | None:
        """Another round right behind that one of ``took_us``, if the time between two chunks has room for it. What
        :meth:`next` looks after comes between two rows of them."""
        request, plain_us = job.requests[0], self.state.cost.round(1)
        left_us = job.left_us - max(job.forwards * plain_us, took_us)
        if left_us < plain_us / 2 or not self.faults.guard(request, partial(request.spec.ready, self.clock() * 1e6)):
            return None
        held = self.room.hold([request])
        return self._round(held, False, left_us) if held else None

    def _goes_beside(self, prompts: Sequence[Request], ready: Sequence[Request]) -> bool:
        """Whether the next piece of a prompt shares the round's forward."""
        if not (prompts and ready and self.room.model.mixes_prompts):
            return False
        return not prompts[0].suspect and len(ready) <= MAX_SHARED - LEAST_PIECE

    def _time_for_prompt(self) -> int:
        """Rows of a prompt that there is time for before the streams must have a round, at most ``MAX_PIECE``."""
        spent_us = (self.clock() - (self._prefilling_since or 0.0)) * 1e6
        left_us = self._stall_us(self.state.streams) - spent_us
        return bisect_right(range(1, MAX_PIECE + 1), left_us, key=self.state.pieces)

    def _stall_us(self, decoding: int) -> float:
        """Microseconds that so many streams wait at most for a piece of somebody's prompt."""
        return MAX_STALL * self.state.cost.round(decoding + len(self.state.requests.of("prefill")))

    def _piece(self, request: Request) -> Job:
        """A forward of a prompt's next piece alone: as many tokens as there is time for, or as suit the model where
        nobody waits."""
        rows = min(max(1, self._time_for_prompt()), len(request.spec.committed)) if self.state.streams else 0
        return Job([], [], piece=request, piece_rows=rows)

    def _add_piece(self, job: Job, prompt: Request) -> None:
        """Add a prompt's next piece to a round: as many tokens as lengthen the round, its drafts included, by no more
        than :meth:`_stall_us`."""
        cost, own = self.state.cost, len(job.requests)
        row_us, drafts = cost.row(own), job.rows - own
        left_us = self._stall_us(own) - job.drafting_us - drafts * row_us
        rows = int(left_us / (row_us * self.state.prompt_row.factor))
        job.piece, job.piece_rows = prompt, max(1, min(rows, MAX_SHARED - job.rows))

    def _round(self, requests: list[Request], beside: bool, left_us: float = math.inf) -> Job | None:
        """A round of these requests with their drafts. ``beside``: it shares its time and rows with a piece of a
        prompt. ``left_us``: of the time between two chunks. None: no request is left, since those that failed on the
        way have ended."""
        job, most = Job([], [], load := self.state.load()), MAX_ROWS
        if len(requests) > MAX_ROWS:  # the others have the next round
            requests = sorted(requests, key=lambda r: r.last_at)[:MAX_ROWS]
        cost, own, drafts_us = self.state.cost, len(requests), 0.0
        if not beside or self._drafts_beside(own):  # elsewhere a round is the same with guesses as without
            job.guesses = self.judge.guesses_pay(load, requests)
            drafts_us = MAX_DRAFTS * cost.round(own)
        self._draft_inline(job, requests, drafts_us if beside or load.streams > 1 else math.inf, beside)
        if beside:
            rows_us = max(0.0, drafts_us - job.drafting_us)
            most = min(own + int(rows_us / cost.row(own)), MAX_SHARED - LEAST_PIECE)
        requests = [request for request in requests if request.state == "decode"]
        now = self.clock()
        if not self.state.requests.of("prefill"):
            plain_us = cost.round(own)
            job.most_steps = self.state.chunks.forwards(load.streams, plain_us)
            job.left_us = min(left_us, job.most_steps * plain_us)
            job.steps = max(1, round(job.left_us / plain_us))
        for place, request in enumerate(requests, 1):
            others = load.beside(request.spec.rate.value, job.rows + len(requests) - place)
            retrieves = self._retrieves(job, request)
            rests = not retrieves and job.guesses is False and load.streams > 1 and self.judge.may_rest(request)
            if rests or (retrieves and request.spec.windows.next_ask() > 0):
                chosen: Chosen | None = Chosen([], [], [])
            else:
                if retrieves:
                    self._ask(job, request)
                    others = self._alone(request)
                chosen = self.faults.guard(request, partial(self._window, request, others, now, most))
            job.steps = min(job.steps, self._steps(request, retrieves, rests, job.ends is not None))
            if chosen is not None:
                job.requests.append(request)
                job.windows.append(chosen)
                job.rows += 1 + len(chosen.nodes)
        if job.rows > len(job.requests):
            job.steps = 1
        return job if job.requests else None

    def _ask(self, job: Job, request: Request) -> None:
        """Ask the proposers of a stream that is alone, and decide when to ask again: behind each token, also of several
        forwards in a row, if that saves more than it takes."""
        windows, forward_us = request.spec.windows, self.state.cost.round(1)
        if self._asks_behind and windows.hits.pay(forward_us, self.state.bookkeeping.question.mean):
            job.ends = partial(self._ends, job, request)
            windows.asked(1)
        else:
            windows.asked(ASK_CHUNKS * windows.hits.rarer * self.state.chunks.forwards(1, forward_us))

    def _alone(self, request: Request) -> Others:
        """What the rows of a stream cost that is alone and could go on without drafts: any window ends a row of
        forwards."""
        books = self.state.bookkeeping
        return NO_OTHERS._replace(row_us=books.row_us(1, request.method), start_us=books.plain_us(request.method))

    def _price_alone(self, request: Request) -> tuple[Cost, float]:
        """Microseconds of its rounds by their rows, and its tokens for each."""
        cost = self.state.cost
        return self._alone(request).price(cost), request.spec.rate.value or 1.0 / cost(1)

    def _ends(self, job: Job, request: Request, token: int) -> bool:
        """Whether a window behind that token of a row of forwards is worth more than it costs to end the row."""
        spec, begun = request.spec, self.clock()
        price, rate = self._price_alone(request)
        gain = self.faults.guard(request, partial(spec.windows.ask_behind, token, len(spec.committed), price, rate))
        spent_us = (self.clock() - begun) * 1e6
        self.state.bookkeeping.question.add(spent_us)
        job.ends_us += spent_us
        if gain is None or gain > 0.0:
            return True
        spec.windows.in_vain()
        return False

    def _steps(self, request: Request, retrieves: bool, rests: bool, asks: bool) -> int:
        """How many tokens of a request without drafts need no decision between them. ``retrieves``: see
        :meth:`_retrieves`; ``rests``: nobody guesses for it, since guesses do not pay for so many streams; ``asks``:
        the proposers are asked behind each token."""
        if retrieves:
            return request.left if asks else min(request.left, request.spec.windows.next_ask())
        decided = not request.undecided or (request.spec.windows.fallbacks and not rests)
        return 1 if decided else request.left

    def _retrieves(self, job: Job, request: Request) -> bool:
        """Whether no draft model guesses for a stream that is alone, so that at most something is retrieved, and its
        forwards could follow one another."""
        if job.load.streams > 1 or not request.spec.windows.fallbacks or not request.undecided:
            return False
        return self.state.inline is None or (job.guesses is False and self.judge.may_rest(request))

    def _drafts_beside(self, streams: int) -> bool:
        """Whether a forward that is shared with a piece of a prompt may hold drafts of ``streams`` requests.

        A single stream's drafts are worth it (inflated target: 1.70 times vanilla with them, 1.44 without). Drafts of
        several streams take rows from the prompt and so delay the stream that is to join them, whose share would make
        each round cheaper for all: 8 and 4 streams made 0.97 times vanilla's tokens with drafts, and 1.00 without
        (bundled pair, two cores). They are let in only where rows cost so little that ``MAX_SHARED`` limits the piece,
        and not its time."""
        return streams == 1 or streams + self._stall_us(streams) / self.state.cost.row(streams) >= MAX_SHARED

    def _draft_inline(self, job: Job, requests: Sequence[Request], room_us: float, beside: bool) -> None:
        """Before windows are chosen, let the verifier's own draft model grow the trees of requests without a drafter,
        for ``room_us`` at most. ``beside``: see :meth:`_round`; the draft model then catches up on no text, because the
        prompt has that time."""
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
                self.faults.guard(request, partial(request.spec.guess, load.least))
            own = [request for request in own if request.state == "decode"]
            if load.streams == 1 and own:
                price, own_rate = self._price_alone(own[0])
                _, nodes = own[0].spec.windows.retrieval_alone(price, own_rate)
                job.retrieval_alone = nodes, price(1 + nodes) - price(1)
            since = lambda: (self.clock() - state.started) * 1e6  # noqa: E731
            promised = cache(partial(inline.promise, state.cost, load.streams))  # the same for all
            saves = partial(self.judge.saves, load.streams, promised)
            row = rate * state.row_us(load.streams, requests[0].method)
            inline.grow(own, state.cost, rate, since, row, saves, room_us, reads=not beside)
            job.idle, job.reading_us = inline.idle, inline.reading_us
        if not beside:
            inline.measure(self.clock() - state.started)
        job.drafting_us = (self.clock() - begun) * 1e6

    def _window(self, request: Request, others: Others, now: float, most: int) -> Chosen:
        """Choose a request's window. ``most``: rows of the whole forward, of which ``others`` have taken theirs."""
        if request.spec.owes_verdict:
            self.committer.tell_drafter(request)  # in lock-step both sides begin their next step together
        room = most - 1 - others.rows
        if room <= 0:
            return Chosen([], [], [])
        cap = round_limits(self.state, request, now).window
        return request.spec.choose(self.state.cost, others, room if cap is None else min(cap, room))
