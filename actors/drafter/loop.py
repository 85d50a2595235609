"""The drafter: mirrors requests, grows their trees with the draft model, tells the verifier before it looks.

Its loop is receive, decide, compute, commit, tell. The draft step runs in the event loop's own thread: it is short,
and a second thread would only add hand-overs. What is not short, a long text, is computed in chunks.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from actors.cost import CostModel
from actors.draft_timing import WIDTHS, Probe
from actors.drafter.held import Held
from actors.drafter.lease import Lease
from actors.drafter.prefill import Prefill
from actors.generations import Generations, Loader
from actors.models import DraftModel
from actors.peer import Line
from actors.tree.tree import Node
from protocols import wire
from protocols.handshake import Lost
from protocols.messages import (
    Close,
    DraftStats,
    Drain,
    Hello,
    Load,
    Message,
    Open,
    Resync,
    ToDrafter,
    Verdict,
    Welcome,
)
from protocols.transport import Network

WIDTH = max(WIDTHS)  # leaves of one request in one forward: more have not been measured
REPORT_S = 1.0
MAX_SILENCE_S = 0.25  # a forward that takes longer is announced: half of the interval between two heartbeats
BUSY_SLACK = 2.0  # times as long as such a forward is expected to take
# Reports without a word of the verifier about a lease, after which it is asked whether the lease still stands, and
# after which it does not: a Close can be lost. A verifier that rests its drafter is silent for longer, but answers.
ASK_AFTER, GIVE_UP_AFTER = 10, 20
EARLY_S, NEWS = 0.1, 1.25  # a step time that changed by this factor is told so much sooner


class Drafter:
    def __init__(
        self,
        model: DraftModel,
        network: Network,
        address: str,
        hello: Hello,
        step_us: dict[int, float],
        clock: Callable[[], float] | None = None,
        timer: Callable[[], float] = time.perf_counter,
        load: Loader | None = None,
    ) -> None:
        """``step_us``: the calibrated time of a draft step by its number of leaves. ``load`` gives the model with the
        weights in a directory, and this one again for an empty name; None: it has no others, and ``hello`` says so."""
        self.timer = timer
        self.clock = clock or asyncio.get_running_loop().time
        self.line = Line(network, address, hello, wire.Decoder(ToDrafter), self.clock)
        self.generations = Generations(model, load)
        self.held = Held(self.generations, self.line)
        self.leases = self.held.leases
        self.steps = CostModel(step_us)
        self.prefill = Prefill(self.steps(1) / 1e6)
        self.probe = Probe(self.steps, timer)
        self.leaving = False
        self.worked_s = 0.0
        self.began = self.clock()

    def now_us(self) -> float:
        """Since this drafter's start: what a message says of it tells nothing about the machine."""
        return (self.clock() - self.began) * 1e6

    # --- lifecycle ---------------------------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event) -> None:
        """Draft until ``stop`` is set or the verifier asks us to leave."""
        await self.line.serve(stop, lambda _: (self._work(), self._report()))

    async def _work(self) -> None:
        while True:
            self._receive()
            if self.leaving and not self.leases:
                return
            computed = self._compute()
            self._tell()
            if computed:
                await asyncio.sleep(0)
            else:
                self._take(await self.line.next())

    # --- receive -----------------------------------------------------------------------------------------------------

    def _receive(self) -> None:
        while (message := self.line.next_nowait()) is not None:
            self._take(message)

    def _take(self, message: Message | Lost) -> None:
        match message:
            case Lost() | Welcome():
                self.held.void()
            case Verdict():
                self._verdict(message)
            case Open():
                self._open(message)
            case Close():
                self.held.close(message)
            case Load():
                self.generations.load(message)
            case Drain():
                self.leaving = True

    def _open(self, message: Open) -> None:
        if (lease := self.held.open(message, self.leaving)) is not None:
            self._see(lease)

    def _see(self, lease: Lease) -> None:
        """What the model has yet to compute of its text."""
        lease.mirrored(self.held.model(lease).missing(lease.handle), self.prefill.chunk)

    def _verdict(self, message: Verdict) -> None:
        lease = self.leases.get(message.rid)
        if lease is None or lease.epoch < message.epoch:  # its Open was lost
            if message.epoch not in self.held.declined:
                self.line.send(Resync(message.rid, message.epoch, 0))
            return
        if lease.epoch != message.epoch:
            return
        lease.heard()
        now_us = self.now_us()
        change = lease.verdict(message, now_us, self.line.round_trip_s * 1e6 + self.steps(1))
        if isinstance(change, Resync):
            self.line.send(change)
        elif change is not None:
            if lease.must_flush(now_us, after_verdict=True):
                self.line.send(lease.flush(now_us))  # first of all: the verifier may be waiting for it
            model = self.held.model(lease)
            try:
                model.commit(lease.handle, change.tokens, change.slots)
                model.release(lease.handle, change.dead)
                self._see(lease)
            except Exception as error:
                self.held.fail(lease, error)

    # --- decide, compute, commit, tell -------------------------------------------------------------------------------

    def _compute(self) -> bool:
        """One forward, if there is anything to compute: a chunk of a long text, or a step of all trees."""
        batch = self._decide()
        lease = next((lease for lease in self.leases.values() if lease.prefilling), None)
        if lease is not None and self.prefill.due(growing=bool(batch)):
            self._prefill(lease)
        elif batch:
            self._grow(batch)
        else:
            return False
        return True

    def _decide(self) -> list[tuple[Lease, Node]]:
        """The next leaves of every lease of one model: one batched forward grows all their trees.

        Tokens that roots have to catch up on are no more than a chunk in all; who finds no room is the next.
        """
        batch: list[tuple[Lease, Node]] = []
        catching_up = 0
        for lease in self.leases.values():
            nodes = lease.wanted(WIDTH) if not batch or lease.generation == batch[0][0].generation else []
            if nodes and nodes[0] is lease.tree.root:
                if catching_up and catching_up + lease.missing > self.prefill.chunk:
                    continue
                catching_up += lease.missing
            batch.extend((lease, node) for node in nodes)
        return batch

    def _announce(self, expected_s: float) -> None:
        """A forward that outlasts heartbeats is announced, or the verifier would take this drafter for dead."""
        if expected_s > MAX_SILENCE_S:
            self.line.busy(BUSY_SLACK * expected_s)

    def _prefill(self, lease: Lease) -> None:
        tokens = min(self.prefill.chunk, lease.missing)
        self._announce(self.prefill.expected_s)
        begin = self.timer()
        try:
            self.held.model(lease).prefill(lease.handle, tokens)
        except Exception as error:
            self.held.fail(lease, error)
            return
        spent = self.timer() - begin
        self._worked(spent, [lease])
        self.prefill.computed(tokens, spent)
        self._see(lease)

    def _grow(self, batch: list[tuple[Lease, Node]]) -> None:
        leases = list({lease.rid: lease for lease, _ in batch}.values())
        model = self.held.model(leases[0])
        reading = sum(lease.missing for lease, node in batch if node is lease.tree.root)
        self._announce(self.steps(len(batch)) / 1e6 + self.prefill.time_s(reading))
        began_us, begin = self.now_us(), self.timer()
        try:
            expansions = model.expand([lease.leaf(node) for lease, node in batch])
        except Exception as error:
            if len(leases) == 1:
                self.held.fail(leases[0], error)
            for lease in leases if len(leases) > 1 else ():  # whose fault it is shows when each is alone
                self._grow([(other, node) for other, node in batch if other is lease])
            return
        spent = self.timer() - begin
        self._worked(spent, leases)
        self.prefill.grew(spent)
        if not any(node is lease.tree.root for lease, node in batch):  # a root computes missing tokens as well
            self.steps.observe(len(batch), spent * 1e6)
        for lease in leases:
            lease.spent(began_us, spent * 1e6)
        for (lease, node), expansion in zip(batch, expansions, strict=True):
            lease.expanded(node, expansion)

    def _worked(self, spent_s: float, leases: list[Lease]) -> None:
        self.worked_s += spent_s
        self.held.served(leases)

    def _tell(self) -> None:
        now_us = self.now_us()
        for lease in self.leases.values():
            if lease.must_flush(now_us):
                self.line.send(lease.flush(now_us))

    async def _report(self) -> None:
        """What it takes to draft here, once in a while; and a question for leases of which nothing is heard."""
        reported_at, reported_us = self.clock(), 0.0
        while True:
            await asyncio.sleep(EARLY_S)
            now, step_us = self.clock(), self.steps(1)
            due = now - reported_at >= REPORT_S
            if not due and reported_us / NEWS < step_us < reported_us * NEWS:
                continue
            if due and not self.leases:
                self.probe.run(self.generations.current.model, now)
            busy = min(1.0, self.worked_s / (now - reported_at)) if now > reported_at else 1.0
            version, trouble = self.generations.current.source.version, self.generations.trouble
            self.line.send(DraftStats(self.line.hello.actor_id, self.steps.points(), busy, version, trouble))
            self.generations.retire(lease.generation for lease in self.leases.values())
            self.worked_s, reported_at, reported_us = 0.0, now, self.steps(1)
            for lease in list(self.leases.values()) if due else ():
                silence = lease.tick()
                if silence >= GIVE_UP_AFTER:
                    self.held.end(lease)
                elif silence >= ASK_AFTER:
                    self.line.send(Resync(lease.rid, lease.epoch, len(lease.committed)))
