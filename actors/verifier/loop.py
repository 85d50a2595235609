"""The verifier: owns the committed tokens, runs the target, streams to clients.

Its loop is receive, decide, compute, commit, tell. Messages are filed by the dispatcher as they arrive, also while a
forward runs on the compute thread; drafters hear a verdict before anything else happens, and clients hear of a round
while the next one is being computed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from actors.cost import CostModel
from actors.models import Codec, Outcome, TargetModel
from actors.process import work_until
from actors.settings import VerifierSettings
from actors.verifier.accounting import Forward, account
from actors.verifier.admission import Admission
from actors.verifier.book import HEARTBEAT_MS, Book
from actors.verifier.compute import Compute, InlineCompute
from actors.verifier.dispatcher import Dispatcher
from actors.verifier.drafters import DrafterPeer
from actors.verifier.drafts import Drafts
from actors.verifier.forward import Faults, Job, Turns, compute
from actors.verifier.leases import Leases
from actors.verifier.operations import Operations
from actors.verifier.peers import Peers
from actors.verifier.request import Request
from actors.verifier.retrieval import Sources
from actors.verifier.rounds import Chosen, Committed
from actors.verifier.texts import Texts
from protocols import wire
from protocols.errors import PoolFull, RequestError
from protocols.messages import Drain, FailureCode, Message, RoundStats
from protocols.transport import Listener

T = TypeVar("T")
log = logging.getLogger("duoactor.verifier")
TELEMETRY_BURST = 8  # rounds
# Messages filed at once between two pieces of work: a round brings one Grow per stream, so this many are never reached
# by drafters that do as they are told, and a flood costs 10 ms and not the stream.
MAX_FILED = 256
MAX_ROWS = 512  # of one forward: their logits alone take 300 MB with a vocabulary of 152,000


@dataclass(slots=True)
class News:
    """What a client has not been told yet."""

    request: Request
    committed: Committed


class Verifier:
    def __init__(
        self,
        settings: VerifierSettings,
        model: TargetModel,
        codec: Codec,
        cost: CostModel,
        listener: Listener,
        compute: Compute,
        incarnation: str,
        clock: Callable[[], float] | None = None,
        timer: Callable[[], float] = time.perf_counter,
        sources: Sources | None = None,
        tokenizing: Compute | None = None,
    ) -> None:
        """``clock`` gives seconds for waits and time-outs, ``timer`` measures forwards; ``sources`` is what the
        verifier retrieves from beside a request's own text; ``tokenizing`` runs clients' questions about tokens."""
        self.model, self.compute, self.timer = model, compute, timer
        self.clock = clock or asyncio.get_running_loop().time
        self.listener = listener
        self.book = Book(settings, model.info, cost, model.max_window, incarnation, self.clock(), sources or Sources())
        self.wake = asyncio.Event()
        leases = self.leases = Leases(self.book, self.send)
        tokenizing = tokenizing or InlineCompute()
        admission = self.admission = Admission(
            self.book, codec, leases, self.send, self.clock, tokenizing, self.wake.set
        )
        self.peers = Peers(self.book, leases, admission, self.send, self.publish, self.clock, self.listener.telemetry)
        self.dispatcher = Dispatcher(
            self.book,
            self.peers,
            admission,
            Drafts(self.book, leases, self.send, self.publish, self.clock),
            Texts(codec, model.info.vocab_size, tokenizing, self.send),
            Operations(self.book, model, leases, admission, self.send, self.publish, self.clock),
            self.send,
        )
        self.faults = Faults()
        self.turns = Turns()
        self.news: list[News] = []
        self.round_stats: list[RoundStats] = []

    @property
    def address(self) -> str:
        return self.listener.address

    # --- lifecycle ---------------------------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until ``stop`` is set."""
        try:
            await work_until(stop, self._receive(), self._rounds(), self._watch())
        finally:
            self._farewell()
            self.listener.close()

    def _farewell(self) -> None:
        self.book.draining = True
        self._tell()
        self.admission.close()
        for peer in self.book.clients:
            self.send(peer, Drain())  # drafters stay: they serve the next verifier at this address

    async def _receive(self) -> None:
        while True:
            item = await self.listener.receive()
            self.dispatcher.receive(*item)
            read_all = self._file()
            self.wake.set()
            if not read_all:
                await asyncio.sleep(0)  # a flood does not keep the loop to itself

    def _file(self) -> bool:
        """What has arrived, up to a bound; whether that was all. Where the forward runs in the event loop nobody read
        the socket during it: drafts that came would be seen a round late, and it would look as if none ever came in
        time."""
        for _ in range(MAX_FILED):
            item = self.listener.receive_nowait()
            if item is None:
                return True
            self.dispatcher.receive(*item)
        return False

    async def _watch(self) -> None:
        """Lost heartbeats end leases; lost clients end their requests."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + HEARTBEAT_MS / 1000
            await asyncio.sleep(HEARTBEAT_MS / 1000)
            late_s = max(0.0, loop.time() - due)
            self._publish_rounds()
            self.peers.expire(late_s, read_all=self._file())
            self.leases.offer(self.clock())
            self.wake.set()

    # --- the loop ----------------------------------------------------------------------------------------------------

    async def _rounds(self) -> None:
        while True:
            job = self._decide()
            if job is None:
                self._tell()
                await self._rest()
                continue
            computing = self._start(job)
            if job.prefill:
                self._spared(job.requests[0], job.requests[0].spec.prepare)
            self._tell()
            outcomes, forward_us = await computing
            self._file()  # before the commit, which looks at what was drafted
            self._commit(job, outcomes, forward_us)
            self._file()  # and before the next window is chosen

    async def _rest(self) -> None:
        """Sleep until a message comes or the earliest wait for drafts is over."""
        waits = [r.spec.wait_until for r in self._live("decode") if r.spec.wait_until is not None]
        if waits:
            loop = asyncio.get_running_loop()
            timer = loop.call_at(loop.time() + max(0.0, min(waits) / 1e6 - self.clock()), self.wake.set)
            await self.wake.wait()
            timer.cancel()
        else:
            await self.wake.wait()
        self.wake.clear()

    def _live(self, state: str) -> list[Request]:
        return [r for r in self.book.requests if r.state == state]

    def _decide(self) -> Job | None:
        """Clean up, let requests in, and choose the next forward: prefill and decode take turns."""
        self._sweep()
        self._admit()
        now_us = self.clock() * 1e6
        ready = [r for r in self._live("decode") if self._spared(r, partial(r.spec.ready, now_us))]
        kinds = {
            "prefill": self._live("prefill"),
            "decode": [r for r in ready if not r.suspect],
            "alone": [r for r in ready if r.suspect],
        }
        some = [kind for kind, requests in kinds.items() if requests]
        if not some:
            return None
        kind = self.turns.next(some)
        if kind == "prefill":
            return Job(kinds[kind][:1], [], 0, prefill=True)
        return self._round(kinds[kind][:1] if kind == "alone" else kinds[kind])

    def _round(self, requests: list[Request]) -> Job | None:
        """A row for each request, the one that waited longest first, and what is left of the rows for their drafts."""
        job = Job([], [], 0, prefill=False)
        if len(requests) > MAX_ROWS:
            requests = sorted(requests, key=lambda r: r.last_at)[:MAX_ROWS]
        now = self.clock()
        for place, request in enumerate(requests, 1):
            room = MAX_ROWS - job.rows - 1 - (len(requests) - place)
            chosen = self._spared(request, partial(self._window, request, job.rows, room, now))
            if chosen is not None:
                job.requests.append(request)
                job.windows.append(chosen)
                job.rows += 1 + len(chosen.nodes)
        return job if job.requests else None

    def _window(self, request: Request, rows: int, room: int, now: float) -> Chosen:
        if request.spec.owes_verdict:
            self._tell_drafter(request)  # both sides begin their step now
        if room <= 0:
            return Chosen([], [], [])
        cap = self.book.limits(request, now).window
        return request.spec.choose(self.book.cost, rows, room if cap is None else min(cap, room))

    def _sweep(self) -> None:
        for request in self.book.requests.take_ended():
            if request.handle >= 0:
                self.model.close(request.handle)

    def _admit(self) -> None:
        """First come, first served: a request that does not fit waits, and so do those behind it."""
        suspects = any(r.suspect for r in self.book.requests if r.state != "queued")
        for request in self._live("queued"):
            if request.suspect and suspects:
                continue
            spec = request.spec
            prompt = spec.committed[: spec.prompt_len]
            try:
                request.handle = self.model.open(prompt, spec.sampling, request.message.generated, spec.max_window)
            except RequestError as error:
                self.admission.fail(request, FailureCode(error.code), str(error))
                continue
            except PoolFull as error:
                if not any(r.handle >= 0 for r in self.book.requests):
                    self.admission.fail(request, FailureCode.CONTEXT_LENGTH, str(error))
                    continue
                return
            except Exception as error:
                self._fault(request, error)
                continue
            request.state = "prefill"
            if request.suspect:
                suspects = True
                self.send(request.client, request.begun())
            self.leases.lend(request, self.clock())

    def _start(self, job: Job) -> asyncio.Future[tuple[list[Outcome | Exception | None], float]]:
        job.started = self.clock()
        model, timer = self.model, self.timer

        def run() -> tuple[list[Outcome | Exception | None], float]:
            begin = timer()
            results = compute(model, job)
            return results, (timer() - begin) * 1e6

        return self.compute.start(run)

    # --- faults ------------------------------------------------------------------------------------------------------

    def _spared(self, request: Request, step: Callable[[], T]) -> T | None:
        """One request's step. An exception in it ends that request, and no other."""
        try:
            return step()
        except Exception as error:
            self._fault(request, error)
            return None

    def _fault(self, request: Request, error: Exception) -> None:
        if request.state == "ended":
            return
        log.error("request %s failed", request.rid, exc_info=error)
        self.book.counters["failed_requests"] += 1
        detail = f"the verifier failed on this request ({type(error).__name__}: {error}); its log has the details"
        self.admission.fail(request, FailureCode.INTERNAL, detail)
        self.faults.count(error)

    # --- commit, tell ------------------------------------------------------------------------------------------------

    def _commit(self, job: Job, outcomes: list[Outcome | Exception | None], forward_us: float) -> None:
        for request, outcome in zip(job.requests, outcomes, strict=True):
            if isinstance(outcome, Exception):
                self._fault(request, outcome)
            else:
                self.faults.went_well()
        if job.prefill:
            request, outcome = job.requests[0], outcomes[0]
            if isinstance(outcome, Outcome) and request.state == "prefill":
                self._spared(request, partial(self._begin, request, outcome))
            return
        self.book.cost.observe(job.rows, forward_us)
        slowdown = self.book.cost.factor.mean
        forward = Forward(
            (job.started - self.book.started) * 1e6, job.started, forward_us, job.rows, self.book.streams, slowdown
        )
        rows = 0  # of the next forward, as far as its streams do not wait
        for request, chosen, outcome in zip(job.requests, job.windows, outcomes, strict=True):
            if request.state == "decode" and isinstance(outcome, Outcome):
                part = partial(self._commit_one, request, chosen, outcome, forward, len(job.requests), rows)
                rows += self._spared(request, part) or 0
        if len(self.round_stats) >= TELEMETRY_BURST:
            self._publish_rounds()

    def _begin(self, request: Request, outcome: Outcome) -> None:
        """The prefill is over, and its token is the first."""
        request.state = "decode"
        request.first_at = request.last_at = request.round_ended_at = self.clock()
        self._settle(request, self.book.drafters.of(request.drafter), request.spec.first(outcome), True)

    def _commit_one(
        self, request: Request, chosen: Chosen, outcome: Outcome, forward: Forward, streams: int, rows_before: int
    ) -> int:
        """The rows that the request adds to the next forward, unless it waits."""
        committed = request.spec.commit(chosen, outcome)
        covered = len(outcome.path) == len(chosen.nodes)
        drafter = self.book.drafters.of(request.drafter)
        stats = account(request, drafter, forward, chosen, committed, self.clock())
        self.book.totals.round(stats, self.book.cost(streams))
        self.round_stats.append(stats)
        return self._settle(request, drafter, committed, covered, rows_before)

    def _settle(
        self, request: Request, drafter: DrafterPeer | None, committed: Committed, covered: bool, rows_before: int = 0
    ) -> int:
        """The drafter hears first; the client is told while the next round is computed. Returns the rows that the
        request adds to the next forward, unless it waits."""
        now = self.clock()
        request.last_at = now
        self.news.append(News(request, committed))
        spec = request.spec
        if committed.finish is not None:
            request.state = "finishing"
            self.leases.ended(request, now)
            return 0
        if drafter is None or self.leases.outgrown(request, drafter, now):
            return 1
        spec.plan = self.book.plan(spec.strategy, request.message, drafter, now)
        limits = self.book.limits(request, now)
        alone = self.book.streams == 1
        rows = spec.decide_wait(now * 1e6, drafter.pace, self.book.cost, covered, limits, rows_before, alone)
        if spec.resting and spec.plan == spec.told_plan:
            return rows  # it would wake up for nothing; it catches up when it is wanted again
        if not spec.holds_verdict:
            self._tell_drafter(request, self.book.cost(rows_before + rows))
        return rows if spec.wait_until is None else 0

    def _tell_drafter(self, request: Request, verify_us: float | None = None) -> None:
        drafter = self.book.drafters.of(request.drafter)
        if drafter is None:
            return
        if not self.send(drafter.peer, request.spec.verdict(self.clock() * 1e6, verify_us)):
            self.peers.gone(drafter.peer, "unreachable")

    def _publish_rounds(self) -> None:
        """Round statistics leave in bursts: waking the socket's thread for each cost 0.1 ms a round."""
        for stats in self.round_stats:
            self.publish(stats)
        self.round_stats.clear()

    def _tell(self) -> None:
        """Turn committed tokens into text and stream it."""
        news, self.news = self.news, []
        for item in news:
            request = item.request
            if request.state == "ended":
                continue
            chunk = self._spared(request, partial(request.chunk, item.committed))
            if chunk is None:
                continue
            self.book.totals.told(chunk)
            if chunk.finish_reason is not None:
                self._publish_rounds()
                self.admission.end(request)
            if not self.send(request.client, chunk):
                # It does not read. When it does again it is greeted as a stranger, and resumes what it has of streams.
                self.peers.gone(request.client, "unreachable")

    # --- sending -----------------------------------------------------------------------------------------------------

    def send(self, peer: bytes, message: Message) -> bool:
        return self.listener.send(peer, wire.encode(message))

    def publish(self, message: Message) -> None:
        self.listener.publish(type(message).__name__.encode(), wire.encode(message))
