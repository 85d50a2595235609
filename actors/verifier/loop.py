"""The verifier: owns the committed tokens, runs the target, streams to clients.

Its loop is receive, decide, compute, commit, tell. Messages are filed by the dispatcher as they arrive, also while a
forward runs on the compute thread; drafters hear a verdict before anything else happens, and clients hear of a round
while the next one is being computed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial

from actors.cost import CostModel
from actors.models import Codec, Outcome, TargetModel
from actors.settings import VerifierSettings
from actors.tasks import until_one_ends
from actors.verifier.committer import Committer
from actors.verifier.compute import Compute, InlineCompute
from actors.verifier.decoding.grammar import Grammars
from actors.verifier.decoding.retrieval import SLICE, Sources
from actors.verifier.dispatcher import Dispatcher
from actors.verifier.drafters.drafts import Drafts
from actors.verifier.drafters.inline import InlineDraft
from actors.verifier.drafters.judging import Judge
from actors.verifier.drafters.learning import Learning
from actors.verifier.drafters.leases import Leases
from actors.verifier.floods import Floods
from actors.verifier.forward import Job, compute
from actors.verifier.operations import Operations
from actors.verifier.peers import Peers
from actors.verifier.requests.admission import Admission
from actors.verifier.requests.faults import Faults
from actors.verifier.requests.request_log import RequestLog
from actors.verifier.requests.room import Room
from actors.verifier.requests.tokenization import Tokenization
from actors.verifier.schedule import Schedule
from actors.verifier.state import HEARTBEAT_MS, State
from protocols import wire
from protocols.messages import Drain, Message
from protocols.transport import Listener

log = logging.getLogger("duoactor.verifier")
# Messages filed at once between two pieces of work: a round brings one Grow per stream, so this many are never reached
# by drafters that do as they are told.
MAX_FILED = 256
# Messages of a flood that are dropped between two pieces of work, some 4 µs each. Sockets are read in turns, so that
# everybody else has had as many.
MAX_DROPPED = 4
FLOOD_PAUSE_S = 0.001  # before more of it are dropped
# For clients to hear that the verifier leaves: a connection that is closed takes with it what its reader has not read
# yet, and a reader on a busy machine is some 0.1 s late.
FAREWELL_S = 1.0


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
        inline: InlineDraft | None = None,
        tokenizing: Compute | None = None,
        request_log: RequestLog | None = None,
    ) -> None:
        """``clock`` gives seconds for waits and time-outs, ``timer`` measures forwards; ``sources`` is what the
        verifier retrieves from beside a request's own text; ``inline`` drafts between forwards; ``tokenizing`` runs
        clients' questions about tokens."""
        self.model, self.compute, self.timer = model, compute, timer
        self.clock = clock or asyncio.get_running_loop().time
        # A process that is put aside in the middle of a message has not worked for its sender.
        self.processor_timer = time.thread_time if timer is time.perf_counter else timer
        self.listener = listener
        self.wake = asyncio.Event()
        tokenizing = tokenizing or InlineCompute()
        state = State(
            settings,
            model.info,
            cost,
            model.max_window,
            cost.branch if model.branches else None,
            incarnation,
            self.clock(),
            sources or Sources(),
            inline,
            request_log,
        )
        send, publish, clock = self._send, self._publish, self.clock
        leases, learning = Leases(state, send), Learning(state, send)
        self.grammars = Grammars(codec, model.info, timer)
        admission = Admission(state, codec, self.grammars, leases, send, clock, tokenizing, self.wake.set)
        faults = Faults(state, admission)
        self.peers = Peers(state, leases, admission, send, publish, clock, listener.telemetry, listener.holder)
        self.judge = Judge(state)
        self.committer = Committer(state, leases, self.judge, admission, self.peers, faults, send, publish, clock)
        room = Room(state, model, leases, learning, admission, faults, send, clock)
        self.schedule = Schedule(state, self.judge, room, admission, self.committer, faults, clock)
        self.dispatcher = Dispatcher(
            state,
            self.peers,
            admission,
            Drafts(state, leases, learning, send, publish, clock),
            Tokenization(codec, model.info.vocab_size, tokenizing, send),
            Operations(state, model, leases, admission, learning, send, publish, clock),
            learning,
            send,
        )
        self.state, self.leases, self.admission, self.faults = state, leases, admission, faults
        self.learning = learning
        self.floods = Floods(state, self.peers.role)
        # Seconds of this round that came with requests and not with the round: they fall to rounds in which one ends
        # and the next comes, and drafts make none of it less.
        self._aside_s = 0.0

    @property
    def address(self) -> str:
        return self.listener.address

    # --- lifecycle ---------------------------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until ``stop`` is set, and what runs then as long as ``shutdown_timeout`` allows. An exception in our
        own code is no farewell: clients wait for the successor that the supervisor starts."""
        try:
            await until_one_ends(self._receive(), self._rounds(), self._watch(), self._finish(stop))
            await self._farewell()
        finally:
            self.listener.close()

    async def _finish(self, stop: asyncio.Event) -> None:
        """Returns when it is time to end: what runs took too long, or ``stop`` was set again."""
        await stop.wait()
        stop.clear()
        self.admission.finish()
        self.wake.set()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), self.state.settings.shutdown_timeout)

    async def _farewell(self) -> None:
        self.state.draining = True
        self.committer.tell_clients(wait=False)
        self.admission.close()
        for peer in [*self.state.clients]:
            if not self._send(peer, Drain()):  # drafters stay: they serve the next verifier at this address
                self.peers.gone(peer, "unreachable")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL_S):
                while self.state.clients:  # each answers Goodbye
                    self.dispatcher.receive(*await self.listener.receive())

    async def _receive(self) -> None:
        while True:
            dropped = not self._hear(*await self.listener.receive())
            read_all = self._file()
            self.wake.set()
            if not read_all:  # a flood does not keep the loop to itself
                await asyncio.sleep(FLOOD_PAUSE_S if dropped else 0)

    def _file(self) -> bool:
        """What has arrived, up to a bound; whether that was all. Where the forward runs in the event loop nobody read
        the socket during it: drafts that came would be seen a round late, and it would look as if none ever came in
        time."""
        dropped = 0
        for _ in range(MAX_FILED):
            item = self.listener.receive_nowait()
            if item is None:
                return True
            dropped += not self._hear(*item)
            if dropped == MAX_DROPPED:
                break
        return False

    def _hear(self, peer: bytes, frames: Sequence[bytes]) -> bool:
        """False if the message was dropped unread."""
        if self.floods.drops(peer, self.timer()):
            self.state.counters["flood"] += 1
            return False
        begin = self.processor_timer()
        self.dispatcher.receive(peer, frames)
        spent_s = self.processor_timer() - begin
        self.floods.charge(peer, spent_s, self.timer())
        self._aside_s += spent_s
        return True

    async def _watch(self) -> None:
        """Lost heartbeats end leases; lost clients end their requests."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + HEARTBEAT_MS / 1000
            await asyncio.sleep(HEARTBEAT_MS / 1000)
            late_s = max(0.0, loop.time() - due)
            self.committer.publish_rounds()
            self.learning.tell()
            self.floods.forget(self.timer())
            self.peers.expire(late_s, read_all=self._file())
            self.leases.offer(self.clock())
            for drafter in self.state.drafters.by_peer.values():
                self.state.budgets.prepare(self.state.settings.method, drafter)
            self.wake.set()

    # --- the loop ----------------------------------------------------------------------------------------------------

    async def _rounds(self) -> None:
        begun = self.clock()
        while True:
            self._share_cpus()
            job = self.schedule.next()
            if job is None:
                self.committer.tell_clients(wait=False)
                if self.state.draining and not self.state.requests:
                    return
                if self.state.sources.read():
                    await asyncio.sleep(0)
                else:
                    await self._rest()
                if not self.state.streams:  # else it is a wait for drafts, and their time
                    begun, self._aside_s = self.clock(), 0.0
                continue
            computing = self._start(job)
            if self.compute.overlaps:
                self._prepare(job)
            self.committer.tell_clients()
            self._remember()
            outcomes, forward_us = await computing
            if self.compute.overlaps:
                self._aside_s = 0.0  # the forward hid it
            self._file()  # before the commit, which looks at what was drafted
            self.committer.commit(job, outcomes, forward_us)
            if job.piece is not None and job.piece.state == "decode" and job.piece.drafter is None:
                self.leases.lend(job.piece, self.clock())  # if it was not lent while its prompt was computed
            begun, since = self.clock(), begun
            took_us = (begun - since - self._aside_s) * 1e6
            self._aside_s = 0.0
            self.state.bookkeeping.observe(job, took_us, forward_us)
            self.judge.of_own(job, outcomes, took_us, forward_us)
            if not self.compute.overlaps:
                self._prepare(job)  # once its first token is on its way
            self._file()  # and before the next window is chosen

    def _remember(self) -> None:
        """Read on in texts that have ended."""
        begin = self.clock()
        self.state.sources.read()
        self._aside_s += self.clock() - begin

    def _prepare(self, job: Job) -> None:
        """Let the verifier's own proposers read the prompt that is being computed, if they are going to be asked: what
        is not read now is read when they are."""
        piece = job.piece
        if piece is None or piece.state not in ("prefill", "decode"):
            return
        if self.judge.asks(piece):
            self.faults.spare(piece, partial(piece.spec.prepare, job.piece_rows or SLICE))

    def _share_cpus(self) -> None:
        """What drafters have of this machine's CPUs is the target's while all of them rest."""
        cost = self.state.cost
        if cost.lends:
            used = self.state.drafters_idle
            if used != cost.uses_lent:
                cost.uses_lent = used
                self.model.use_spare_cpus(used)

    async def _rest(self) -> None:
        """Sleep until a message comes or the earliest wait for drafts is over."""
        decoding = self.state.requests.of("decode")
        waits = [r.spec.waiting.until for r in decoding if r.spec.waiting.until is not None]
        if waits:
            loop = asyncio.get_running_loop()
            timer = loop.call_at(loop.time() + max(0.0, min(waits) / 1e6 - self.clock()), self.wake.set)
            await self.wake.wait()
            timer.cancel()
        else:
            await self.wake.wait()
        self.wake.clear()

    def _start(self, job: Job) -> asyncio.Future[tuple[list[Outcome | Exception | None], float]]:
        job.started = self.clock()
        model, timer = self.model, self.timer

        def run() -> tuple[list[Outcome | Exception | None], float]:
            begin = timer()
            results = compute(model, job)
            return results, (timer() - begin) * 1e6

        return self.compute.start(run)

    # --- sending -----------------------------------------------------------------------------------------------------

    def _send(self, peer: bytes, message: Message) -> bool:
        return self.listener.send(peer, wire.encode(message))

    def _publish(self, message: Message) -> None:
        self.listener.publish(type(message).__name__.encode(), wire.encode(message))
