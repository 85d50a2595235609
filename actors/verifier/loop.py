"""The verifier: owns the committed tokens, runs the target, streams to clients.

Its loop is receive, decide, compute, commit, tell. The dispatcher handles messages as they arrive, also while a forward
runs on the compute thread. When a forward ends, drafters are sent their verdicts first; clients are sent the tokens of
a round while the next forward runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from functools import partial

from actors.cost import CostModel
from actors.models import Codec, Outcome, TargetModel
from actors.settings import VerifierSettings
from actors.tasks import until_one_ends
from actors.verifier.admission import Admission
from actors.verifier.commit import Committer
from actors.verifier.compute import Compute, InlineCompute
from actors.verifier.dispatcher import Dispatcher
from actors.verifier.faults import Faults
from actors.verifier.floods import Floods
from actors.verifier.forward import Job, compute
from actors.verifier.inbox import Receiver
from actors.verifier.judging import Judge
from actors.verifier.learning import Learning
from actors.verifier.leases import Leases
from actors.verifier.operations import Operations
from actors.verifier.peers import Peers
from actors.verifier.request_log import RequestLog
from actors.verifier.room import Room
from actors.verifier.scheduler import Schedule
from actors.verifier.sources.grammar import Grammars
from actors.verifier.sources.inline import InlineDraft
from actors.verifier.sources.remote import Drafts
from actors.verifier.sources.retrieval import SLICE, Sources
from actors.verifier.state import HEARTBEAT_MS, State
from actors.verifier.tokenization import Tokenization
from protocols import wire
from protocols.messages import Drain, Message
from protocols.transport import Listener

log = logging.getLogger("duoactor.verifier")
# How long the verifier waits for clients to confirm that it leaves. Closing a connection discards what its reader has
# not read yet, and a reader on a busy machine is some 0.1 s late.
FAREWELL_S = 1.0


class Verifier:
    """Puts the parts of the verifier together and runs their loop."""

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
        """``clock`` gives the seconds that waits and time-outs count, ``timer`` those that forwards take. ``compute``
        runs the target and ``tokenizing`` the tokenizer (None: in the event loop). ``sources`` is what drafts are
        retrieved from beside a request's own text; ``inline`` is a draft model that drafts between forwards."""
        self.model, self.compute, self.timer = model, compute, timer
        self.clock = clock or asyncio.get_running_loop().time
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
        self.schedule = Schedule(
            state, self.judge, room, admission, self.committer, faults, clock, asks_behind=not compute.overlaps
        )
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
        self.receiver = Receiver(listener, self.dispatcher, self.floods, state.counters, self.wake.set, timer)
        self._begun = self.clock()  # when this round began; a wait for drafts is a part of it
        self._reading_s = 0.0  # of this round, that finished texts were read

    @property
    def address(self) -> str:
        return self.listener.address

    # --- lifecycle ---------------------------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until ``stop`` is set, then finish the running requests for at most ``shutdown_timeout`` seconds.

        An exception in our own code ends the verifier without a farewell: its clients wait for the successor that the
        supervisor starts."""
        try:
            await until_one_ends(self.receiver.run(), self._rounds(), self._watch_peers(), self._shut_down(stop))
            await self._farewell()
        finally:
            self.listener.close()

    async def _shut_down(self, stop: asyncio.Event) -> None:
        """Once ``stop`` is set, admit nothing more; return when ``shutdown_timeout`` is over or ``stop`` is set again.
        ``_rounds`` may return before that, when no request is left."""
        await stop.wait()
        stop.clear()
        self.admission.finish()
        self.wake.set()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), self.state.settings.shutdown_timeout)

    async def _farewell(self) -> None:
        """Fail what still runs, and give every client the time to hear of it."""
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

    async def _watch_peers(self) -> None:
        """Every heartbeat interval: a lost drafter's leases end, a lost client's requests too, and what is due at long
        intervals is done."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + HEARTBEAT_MS / 1000
            await asyncio.sleep(HEARTBEAT_MS / 1000)
            late_s = max(0.0, loop.time() - due)
            self.committer.publish_rounds()
            self.learning.tell()
            self.floods.forget(self.timer())
            self.peers.expire(late_s, read_all=self.receiver.read())
            self.leases.offer(self.clock())
            for drafter in self.state.drafters.by_peer.values():
                self.state.budgets.prepare(self.state.settings.method, drafter)
            self.wake.set()

    # --- decide, compute, commit, tell -------------------------------------------------------------------------------

    async def _rounds(self) -> None:
        while True:
            self._share_cpus()
            job = self.schedule.next()
            if job is None:
                self.committer.tell_clients(wait=False)
                if self.state.draining and not self.state.requests:
                    return
                await self._idle()
                if not self.state.streams:
                    self._begun = self.clock()
                    self._take_off_round_s()
                continue
            handled = self.receiver.handled
            outcomes, forward_us = await self._forward(job)
            took_us = self._commit(job, outcomes, forward_us)
            while handled == self.receiver.handled and (following := self._in_a_row(job, took_us)) is not None:
                job = following
                outcomes, forward_us = await self.compute.run(self._work(job))
                took_us = self._commit(job, outcomes, forward_us)
            self.receiver.read()  # before the next window is chosen

    def _in_a_row(self, job: Job, took_us: float) -> Job | None:
        """The next round, if it may begin at once, because nobody is to be told of the last one yet."""
        goes_on = not self.compute.overlaps and self.schedule.goes_on(job)
        return self.schedule.again(job, took_us) if goes_on else None

    def _commit(self, job: Job, outcomes: list[Outcome | Exception | None], forward_us: float) -> float:
        """Commit a round, and learn from it. Returns the microseconds that it took."""
        self.receiver.read()  # before the commit, which looks at what was drafted
        self.committer.commit(job, outcomes, forward_us)
        if job.piece is not None and job.piece.state == "decode" and job.piece.drafter is None:
            self.leases.lend(job.piece, self.clock())  # if it was not lent while its prompt was computed
        ended = self.clock()
        took_us = (ended - self._begun - self._take_off_round_s()) * 1e6
        self._begun = ended
        self.state.bookkeeping.observe(job, took_us, forward_us)
        if job.requests and job.rows == len(job.requests) and not any(r.has_drafter for r in job.requests):
            self.state.chunks.observe(len(job.requests), took_us - forward_us - job.drafting_us)
        self.judge.of_own(job, outcomes, took_us, forward_us)
        if not self.compute.overlaps:
            self._prepare(job)  # only now: its first token has been sent
        return took_us

    def _take_off_round_s(self) -> float:
        """Seconds since the last call that went into messages and into reading finished texts. They come with requests,
        not with rounds, and drafts save none of them: they would make the round look longer than it was."""
        spent_s, self.receiver.spent_s, self._reading_s = self.receiver.spent_s + self._reading_s, 0.0, 0.0
        return spent_s

    def _share_cpus(self) -> None:
        """While no drafter works, the target also computes on the CPUs that drafters have on this machine."""
        cost = self.state.cost
        if cost.lends:
            used = self.state.drafters_idle
            if used != cost.uses_lent:
                cost.uses_lent = used
                self.model.use_spare_cpus(used)

    async def _idle(self) -> None:
        """There is nothing to compute: read finished texts, or sleep."""
        if self.state.sources.read():
            await asyncio.sleep(0)
        else:
            await self._sleep()

    async def _sleep(self) -> None:
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

    async def _forward(self, job: Job) -> tuple[list[Outcome | Exception | None], float]:
        """Run a forward, and tell clients of the round before while it runs. Returns what :func:`compute` does, and the
        forward's microseconds."""
        computing = self.compute.start(self._work(job))
        if self.compute.overlaps:
            self._prepare(job)
        self.committer.tell_clients()
        self._read_finished_texts()
        outcomes, forward_us = await computing
        if self.compute.overlaps:
            self._take_off_round_s()  # it was done while the forward ran, and made the round no longer
        return outcomes, forward_us

    def _work(self, job: Job) -> Callable[[], tuple[list[Outcome | Exception | None], float]]:
        """What the compute thread has to do. It returns what :func:`compute` does, and the forward's microseconds."""
        job.started = self.clock()
        model, timer, handled = self.model, self.timer, self.receiver.handled
        messages_s = 0.0  # that messages took between the forwards

        def undisturbed() -> bool:
            nonlocal messages_s
            if not self.compute.overlaps:  # where the event loop waits for the forward, nobody else looks
                before = self.receiver.spent_s
                self.receiver.read()
                messages_s += self.receiver.spent_s - before
            return self.receiver.handled == handled

        def work() -> tuple[list[Outcome | Exception | None], float]:
            begin = timer()
            results = compute(model, job, undisturbed)
            return results, (timer() - begin - messages_s) * 1e6 - job.ends_us

        return work

    def _prepare(self, job: Job) -> None:
        """Let the verifier's own proposers read the piece of a prompt that this forward computes, if they will be asked
        at all. Whatever they have not read by then, they read when they are asked first."""
        piece = job.piece
        if piece is None or piece.state not in ("prefill", "decode"):
            return
        if self.judge.asks(piece):
            self.faults.guard(piece, partial(piece.spec.prepare, job.piece_rows or SLICE))

    def _read_finished_texts(self) -> None:
        """Index another slice of the texts of ended requests, from which drafts for later ones are retrieved."""
        begin = self.clock()
        self.state.sources.read()
        self._reading_s += self.clock() - begin

    # --- sending -----------------------------------------------------------------------------------------------------

    def _send(self, peer: bytes, message: Message) -> bool:
        return self.listener.send(peer, wire.encode(message))

    def _publish(self, message: Message) -> None:
        self.listener.publish(type(message).__name__.encode(), wire.encode(message))
