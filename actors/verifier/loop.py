"""The verifier: owns the committed tokens, runs the target, streams to clients.

Its loop is receive, decide, compute, tell, commit, learn; each verb is a file. Messages are handled as they arrive,
also while a forward runs on the compute thread. Clients are sent the tokens of a round while the next forward runs.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from functools import partial

from actors.models import Outcome
from actors.settings import VerifierSettings
from actors.tasks import until_one_ends
from actors.verifier.admission import Admission
from actors.verifier.commit import Committer
from actors.verifier.context import Context, Equipment
from actors.verifier.faults import Faults
from actors.verifier.forward import Computed, compute
from actors.verifier.inbox import Inbox, Routes
from actors.verifier.learning import Learning
from actors.verifier.leases import Leases
from actors.verifier.operations import Operations
from actors.verifier.outbox import Outbox
from actors.verifier.peers import Peers
from actors.verifier.price import Price
from actors.verifier.room import Room
from actors.verifier.rounds import Batch, Round
from actors.verifier.scheduler import Scheduler
from actors.verifier.sources.boundary import Sources
from actors.verifier.sources.grammar import Grammars
from actors.verifier.sources.remote import Remote
from actors.verifier.sources.source import Source
from actors.verifier.state import HEARTBEAT_MS, State
from actors.verifier.tokenization import Tokenization
from actors.verifier.trials import Trials
from protocols import messages, wire
from protocols.messages import Message, Role
from protocols.transport import Listener

# How long the verifier waits for clients to confirm that it leaves. Closing a connection discards what its reader has
# not read yet, and a reader on a busy machine is some 0.1 s late.
FAREWELL_S = 1.0


class Verifier:
    """Puts the parts of the verifier together and runs their loop."""

    def __init__(self, settings: VerifierSettings, equipment: Equipment, listener: Listener) -> None:
        clock = equipment.clock or asyncio.get_running_loop().time
        self.compute = equipment.compute
        publish: Callable[[Message], None] = lambda message: self.publish(message)  # noqa: E731
        self.listener, self.wake = listener, asyncio.Event()
        self.state = State(equipment.incarnation, clock())
        price = Price(equipment.cost, equipment.measure_again)
        self.context = context = Context(
            settings, equipment, price, Trials(), self.state, clock, self._send, publish, self.wake.set
        )
        self.leases, self.learning = Leases(context), Learning(context)
        grammars = Grammars(equipment.codec, equipment.model.info, equipment.cpu_timer)
        self.admission = Admission(context, self.leases, grammars)
        self.peers = Peers(context, self.leases, self.admission, listener)
        faults = Faults(context, self.admission)
        remote = Remote(context, self.leases, self.learning, self.peers.gone)
        inline = [equipment.inline] if equipment.inline is not None else []
        every: list[Source] = [*equipment.library.sources, *inline, remote, grammars]
        self.sources = Sources(every, self.state.counters)
        self.outbox = Outbox(context, self.admission, faults, self.peers.gone)
        self.committer = Committer(context, self.sources, self.leases, self.outbox, faults)
        room = Room(context, self.sources, self.leases, self.learning, faults)
        self.scheduler = Scheduler(context, self.sources, remote, room, self.admission, faults)
        self.inbox = Inbox(context, listener, self.peers, self._routes(remote))
        self._begun = clock()  # when this round began; a wait for drafts is a part of it

    def _routes(self, remote: Remote) -> Routes:
        """Which role sends a message, and what takes it."""
        operations = Operations(self.context, self.leases, self.admission, self.learning)
        tokenization = Tokenization(self.context)
        return {
            messages.Grow: (Role.DRAFTER, remote.arrived),
            messages.Resync: (Role.DRAFTER, remote.resync),
            messages.Decline: (Role.DRAFTER, remote.decline),
            messages.DraftStats: (Role.DRAFTER, remote.stats),
            messages.Budget: (Role.CONTROLLER, operations.budget),
            messages.Promote: (Role.LEARNER, self.learning.promote),
            messages.Generate: (Role.CLIENT, self.admission.ask),
            messages.Cancel: (Role.CLIENT, self.admission.cancel),
            messages.Tokenize: (Role.CLIENT, tokenization.ask),
            messages.Detokenize: (Role.CLIENT, tokenization.ask),
            messages.Status: (Role.CLIENT, operations.status),
            messages.Swap: (Role.CLIENT, operations.order),
            messages.DrainActor: (Role.CLIENT, operations.order),
            messages.Undo: (Role.CLIENT, operations.order),
        }

    # --- the loop ----------------------------------------------------------------------------------------------------

    async def _rounds(self) -> None:
        while True:
            self.inbox.read()
            batch = self.scheduler.plan()
            if batch is None:
                self.outbox.flush(wait=False)
                if self.state.draining and not self.state.requests:
                    return
                if not self.scheduler.room.free():  # else there is room for others
                    await self._idle()
                continue
            self._share_cpus()
            started = self.context.clock()
            computed = await self._compute(batch)
            self.inbox.read()  # what arrived meanwhile is filed before the commit
            done = self.committer.commit(batch, computed, self._begun, started)
            self._begun = self.context.clock()
            self._learn(done)
            if not self.compute.overlaps:
                self.scheduler.prepare(batch)  # only now: its first token has been sent

    def _compute(self, batch: Batch) -> Awaitable[Computed]:
        """Run the batch, and meanwhile, or before it where nothing overlaps, send the last tokens and read texts."""
        goes_on = partial(self._goes_on, batch, self.inbox.handled)
        work = partial(compute, self.context.target, batch, goes_on, self.context.equipment.timer)
        result = None
        if self.compute.overlaps:
            result = self.compute.start(work)
            self.scheduler.prepare(batch)
        self.outbox.flush()
        self.context.library.read()
        return result or self.compute.start(work)

    def _goes_on(self, batch: Batch, handled: int, outcomes: list[Outcome]) -> bool:
        """Whether another forward may follow: ``handled`` is still the number of messages, and no source has drafts."""
        if not self.compute.overlaps:  # the event loop, which waits for the forward, does not read
            self.inbox.read()
        return self.inbox.handled == handled and not self.scheduler.finds(batch, outcomes)

    def _learn(self, done: Round) -> None:
        """All observers learn from one record."""
        price, trials, streams = self.context.price, self.context.trials, done.streams or 1
        price.observe(done)
        drafts = done.drafts or 1
        row_us = price.rows(streams)[drafts] * price.target.factor.mean / drafts
        for source, part in trials.learn(done, price.plain(streams), row_us):
            drafter = part.stream.loan.drafter
            if drafter is not None and drafter.source == source:
                self.leases.replace(part.stream, drafter)
        for part in done.parts if self.state.drafters.by_peer else ():
            if part.stream.loan.drafter is None:
                self.leases.lend(part.stream)

    def _share_cpus(self) -> None:
        """While no drafter works, the target also computes on the CPUs that drafters have on this machine."""
        cost = self.context.price.target
        if cost.lends and (used := self.state.drafters_idle) != cost.uses_lent:
            cost.uses_lent = used
            self.context.target.use_spare_cpus(used)

    async def _idle(self) -> None:
        """There is nothing to compute: read finished texts, or sleep until a message comes or a wait is over."""
        if self.context.library.read():
            await asyncio.sleep(0)
        else:
            due = self.scheduler.due
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if due is None else max(0.0, due - self.context.clock())):
                    await self.wake.wait()
            self.wake.clear()
        if not self.state.requests.decoding:
            self._begun = self.context.clock()

    # --- lifecycle ---------------------------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until ``stop`` is set, then finish the running requests for at most ``shutdown_timeout`` seconds.

        An exception in our own code ends the verifier without a farewell: its clients wait for the successor that the
        supervisor starts."""
        try:
            await until_one_ends(self.inbox.run(), self._rounds(), self._watch_peers(), self._shut_down(stop))
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
            await asyncio.wait_for(stop.wait(), self.context.settings.shutdown_timeout)

    async def _farewell(self) -> None:
        """Fail the requests that still run, and wait until the clients know."""
        self.state.draining = True
        self.outbox.flush(wait=False)
        self.admission.close()
        for peer in [*self.state.clients]:
            if not self._send(peer, messages.Drain()):  # drafters stay: they serve the next verifier at this address
                self.peers.gone(peer, "unreachable")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL_S):
                while self.state.clients:  # each answers Goodbye
                    self.inbox.receive(*await self.listener.receive())

    async def _watch_peers(self) -> None:
        """Every heartbeat interval: end the leases and requests of lost peers, and do what is due at long intervals."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + HEARTBEAT_MS / 1000
            await asyncio.sleep(HEARTBEAT_MS / 1000)
            late_s = max(0.0, loop.time() - due)
            self.learning.tell()
            self.peers.expire(late_s, read_all=self.inbox.look_after())
            self.leases.offer()
            self.wake.set()

    # --- sending -----------------------------------------------------------------------------------------------------

    def _send(self, peer: bytes, message: Message) -> bool:
        return self.listener.send(peer, wire.encode(message))

    def publish(self, message: Message) -> None:
        """Publish a message as telemetry, if anybody may hear it."""
        if self.listener.watched:
            self.listener.publish(type(message).__name__.encode(), wire.encode(message))
