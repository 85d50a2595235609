"""The verifier: owns the committed tokens, runs the target, streams to clients.

Its loop is receive, decide, compute, commit, tell. Messages are filed by :class:`actors.verifier.inbox.Reception` as
they arrive, also while a forward runs on the compute thread; drafters hear a verdict before anything else happens, and
clients hear of a round while the next one is being computed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from actors.cost import CostModel
from actors.models import Codec, Outcome, TargetModel, Window
from actors.process import work_until
from actors.settings import VerifierSettings
from actors.verifier.accounting import Forward, account
from actors.verifier.book import HEARTBEAT_MS, TTL_MS, Book
from actors.verifier.compute import Compute, InlineCompute
from actors.verifier.drafters import DrafterPeer
from actors.verifier.inbox import Reception
from actors.verifier.leases import Leases
from actors.verifier.request import Request
from actors.verifier.retrieval import Sources
from actors.verifier.rounds import Chosen, Committed
from actors.verifier.texts import Texts
from protocols import wire
from protocols.errors import PoolFull, RequestError
from protocols.messages import Drain, FailureCode, Message, RoundStats
from protocols.transport import Listener

log = logging.getLogger("duoactor.verifier")
CLIENT_TTL_S = 4 * TTL_MS / 1000
TELEMETRY_BURST = 8  # rounds
# Messages filed at once between two pieces of work: a round brings one Grow per stream, so this many are never reached
# by drafters that do as they are told, and a flood costs 10 ms and not the stream.
MAX_FILED = 256


@dataclass(slots=True)
class Job:
    """One flat forward: the share of each request, or one chunk of one request's prefill."""

    requests: list[Request]
    windows: list[Chosen]
    rows: int
    prefill: bool
    started: float = 0.0


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
        self.leases = Leases(self.book, self.send)
        self.reception = Reception(
            self.book,
            codec,
            self.leases,
            Texts(codec, model.info.vocab_size, tokenizing or InlineCompute(), self.send),
            self.send,
            self.publish,
            self.clock,
            self.listener.telemetry,
            lambda: (model.kv_slots, model.kv_used),
        )
        self.reception.rows_agree = model.rows_agree
        self.wake = asyncio.Event()
        self.news: list[News] = []
        self.round_stats: list[RoundStats] = []
        self.prefilled_last = False

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
        for request in self.book.requests:
            self.reception.fail(request, FailureCode.DRAINING, "the verifier is shutting down; the stream can resume")
        for peer in self.book.clients:
            self.send(peer, Drain())  # drafters stay: they serve the next verifier at this address

    async def _receive(self) -> None:
        while True:
            item = await self.listener.receive()
            self.reception.receive(*item)
            self._file()
            self.wake.set()

    def _file(self) -> None:
        """What has arrived, up to a bound. Where the forward runs in the event loop nobody read the socket during it:
        drafts that came would be seen a round late, and it would look as if none ever came in time."""
        for _ in range(MAX_FILED):
            item = self.listener.receive_nowait()
            if item is None:
                return
            self.reception.receive(*item)

    async def _watch(self) -> None:
        """Lost heartbeats end leases; lost clients end their requests."""
        while True:
            await asyncio.sleep(HEARTBEAT_MS / 1000)
            now = self.clock()
            self._publish_rounds()
            self.leases.offer(now)
            for drafter in self.book.drafters.expired(now, TTL_MS / 1000):
                self.reception.gone(drafter.peer, "no heartbeat")
            for peer in [p for p, c in self.book.clients.items() if now - c.last_seen > CLIENT_TTL_S]:
                self.reception.gone(peer, "no heartbeat")
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
                job.requests[0].spec.prepare()
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
        prefill = self._live("prefill")
        now_us = self.clock() * 1e6
        ready = [r for r in self._live("decode") if r.spec.ready(now_us)]
        if prefill and not (ready and self.prefilled_last):
            self.prefilled_last = True
            return Job(prefill[:1], [], 0, prefill=True)
        self.prefilled_last = False
        if not ready:
            return None
        windows: list[Chosen] = []
        rows = 0
        now = self.clock()
        for request in ready:
            if request.spec.owes_verdict:
                self._tell_drafter(request)  # both sides begin their step now
            chosen = request.spec.choose(self.book.cost, rows, self.book.limits(request, now).window)
            windows.append(chosen)
            rows += 1 + len(chosen.nodes)
        return Job(ready, windows, rows, prefill=False)

    def _sweep(self) -> None:
        for request in self.book.requests.take_ended():
            if request.handle >= 0:
                self.model.close(request.handle)

    def _admit(self) -> None:
        """First come, first served: a request that does not fit waits, and so do those behind it."""
        for request in self._live("queued"):
            spec = request.spec
            prompt = spec.committed[: spec.prompt_len]
            try:
                request.handle = self.model.open(prompt, spec.sampling, request.message.generated, spec.max_window)
            except RequestError as error:
                self.reception.fail(request, FailureCode(error.code), str(error))
                continue
            except PoolFull as error:
                if not any(r.handle >= 0 for r in self.book.requests):
                    self.reception.fail(request, FailureCode.CONTEXT_LENGTH, str(error))
                    continue
                return
            request.state = "prefill"
            self.leases.lend(request, self.clock())

    def _start(self, job: Job) -> asyncio.Future[tuple[list[Outcome | None], float]]:
        job.started = self.clock()
        model, timer = self.model, self.timer

        def compute() -> tuple[list[Outcome | None], float]:
            begin = timer()
            outcomes: list[Outcome | None] = []
            if job.prefill:
                outcomes.append(model.prefill(job.requests[0].handle))
            else:
                windows = [
                    Window(r.handle, w.tokens, w.parents) for r, w in zip(job.requests, job.windows, strict=True)
                ]
                outcomes.extend(model.verify(windows))
            return outcomes, (timer() - begin) * 1e6

        return self.compute.start(compute)

    def _commit(self, job: Job, outcomes: list[Outcome | None], forward_us: float) -> None:
        if job.prefill:
            request, outcome = job.requests[0], outcomes[0]
            if outcome is not None and request.state == "prefill":
                request.state = "decode"
                request.first_at = request.last_at = request.round_ended_at = self.clock()
                drafter = self.book.drafters.of(request.drafter)
                self._settle(request, drafter, request.spec.first(outcome), True)
            return
        self.book.cost.observe(job.rows, forward_us)
        slowdown = self.book.cost.factor.mean
        forward = Forward(
            (job.started - self.book.started) * 1e6, job.started, forward_us, job.rows, self.book.streams, slowdown
        )
        rows = 0  # of the next forward, as far as its streams do not wait
        for request, chosen, outcome in zip(job.requests, job.windows, outcomes, strict=True):
            if request.state != "decode" or outcome is None:
                continue
            committed = request.spec.commit(chosen, outcome)
            covered = len(outcome.path) == len(chosen.nodes)
            drafter = self.book.drafters.of(request.drafter)
            stats = account(request, drafter, forward, chosen, committed, self.clock())
            self.book.totals.round(stats, self.book.cost(len(job.requests)))
            self.round_stats.append(stats)
            rows += self._settle(request, drafter, committed, covered, rows)
        if len(self.round_stats) >= TELEMETRY_BURST:
            self._publish_rounds()

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
            self.reception.gone(drafter.peer, "unreachable")

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
            chunk = request.chunk(item.committed)
            self.book.totals.told(chunk)
            if chunk.finish_reason is not None:
                self._publish_rounds()
                self.reception.end(request)
            if not self.send(request.client, chunk):
                # It does not read. When it does again it is greeted as a stranger, and resumes what it has of streams.
                self.reception.gone(request.client, "unreachable")

    # --- sending -----------------------------------------------------------------------------------------------------

    def send(self, peer: bytes, message: Message) -> bool:
        return self.listener.send(peer, wire.encode(message))

    def publish(self, message: Message) -> None:
        self.listener.publish(type(message).__name__.encode(), wire.encode(message))
