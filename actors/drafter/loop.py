"""The drafter: mirrors requests, grows their trees with the draft model, and sends drafts before the verifier looks.

Its loop is receive, decide, compute, commit, tell. A draft step runs in the event loop's own thread, because it is
short and a second thread would only add hand-overs. Long texts are computed in chunks.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import cast

from actors.cost import CostModel
from actors.draft_timing import WIDTHS
from actors.drafter.held import Held
from actors.drafter.lease import Lease
from actors.drafter.prefill import Prefill
from actors.generations import Generations, Loader
from actors.models import DraftModel, Leaf, StateReader
from actors.peer import Line
from actors.tree.tree import Node
from protocols.errors import ModelError
from protocols.handshake import Lost
from protocols.limits import MAX_INT
from protocols.messages import (
    Close,
    DraftStats,
    Drain,
    HiddenStates,
    Load,
    Message,
    Open,
    Resync,
    Verdict,
    Welcome,
)

log = logging.getLogger("duoactor.drafter")
WIDTH = max(WIDTHS)  # most leaves of one request in one forward: more have not been measured
REPORT_S = 0.25  # between two DraftStats, and before a longer forward, which is announced: half a heartbeat's interval
BUSY_SLACK = 2.0  # announced over expected length
# A Close can be lost. After ASK_AFTER reports without a message about a lease the verifier is asked for it, with a
# Resync; after GIVE_UP_AFTER the lease ends. A verifier that rests the drafter is silent as well, but it answers.
ASK_AFTER, GIVE_UP_AFTER = 40, 80


class Drafter:
    """Runs the draft model for the leases that a verifier grants, until it must stop or leave."""

    def __init__(
        self,
        model: DraftModel,
        line: Line,
        step_us: dict[int, float],
        timer: Callable[[], float] = time.perf_counter,
        load: Loader | None = None,
    ) -> None:
        """``step_us``: microseconds of a draft step by its number of leaves, as calibrated. ``timer`` gives the
        seconds of forwards. ``load`` loads the model with the weights in a directory, or with its first ones for an
        empty path; None: it takes no others, and ``hello`` says so."""
        self.timer, self.line, self.clock = timer, line, line.clock
        self.generations = Generations(model, load)
        self.held = Held(self.generations, self.line)
        self.leases = self.held.leases
        self.steps = CostModel(step_us)
        self.prefill = Prefill(self.steps(1) / 1e6)
        self.leaving = False  # the verifier has drained it: it takes no new leases
        self.unfit = 0  # states that were dropped
        self.worked_s = 0.0  # seconds in forwards since the last report
        self.began = self.clock()

    def now_us(self) -> float:
        """Microseconds since this drafter's start, as messages have it: no machine's clock goes on the wire."""
        return (self.clock() - self.began) * 1e6

    # --- lifecycle ---------------------------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event) -> None:
        """Draft until ``stop`` is set or the verifier asks us to leave."""
        await self.line.serve(stop, lambda _: (self._work(), self._report()))

    async def _work(self) -> None:
        """The loop. It ends when the drafter was drained and its last lease has ended."""
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
            self._update_missing(lease)

    def _update_missing(self, lease: Lease) -> None:
        """Tell a lease how much of its text the model has yet to compute."""
        lease.mirrored(self.held.model(lease).missing(lease.handle), self.prefill.chunk)

    def _verdict(self, message: Verdict) -> None:
        """Mirror what was committed. The first thing sent is what has survived: the verifier may be waiting for it."""
        lease = self.leases.get(message.rid)
        if lease is None or lease.epoch < message.epoch:  # its Open was lost
            if message.epoch not in self.held.declined:
                self.line.send(Resync(message.rid, message.epoch, 0))
            return
        if lease.epoch != message.epoch:
            return
        lease.heard()
        if message.states is not None:
            self._receive_states(lease, message.states)
        now_us = self.now_us()
        change = lease.verdict(message, now_us, self.line.round_trip_s * 1e6 + self.steps(1))
        if isinstance(change, Resync):
            self.line.send(change)
        elif change is not None:
            if lease.must_flush(now_us, after_verdict=True):
                self.line.send(lease.flush(now_us))
            model = self.held.model(lease)
            try:
                model.commit(lease.handle, change.tokens, change.slots)
                model.release(lease.handle, change.dead)
                self._update_missing(lease)
            except Exception as error:
                self.held.fail(lease, error)

    def _receive_states(self, lease: Lease, states: HiddenStates) -> None:
        """Those of no use are counted and dropped."""
        model = self.held.model(lease)
        if not (model.taps and cast(StateReader, model).receive(lease.handle, states)):
            self.unfit += 1
            log.log(logging.WARNING if self.unfit == 1 else logging.DEBUG, "states that the head cannot read: dropped")
        self._update_missing(lease)

    # --- decide, compute, commit, tell -------------------------------------------------------------------------------

    def _compute(self) -> bool:
        """Run one forward, a chunk of a long text or a step of all trees. Returns whether there was one to run."""
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
        """The leaves of the next batched forward: of every lease that has the same weights as the first.

        The committed tokens that are computed with roots are one lease's, or at most a chunk in all; a lease that does
        not fit comes first in the next forward, because served leases move to the end.
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
        """Announce a forward that is longer than heartbeats allow, or the verifier would take this drafter for dead."""
        if expected_s > REPORT_S:
            self.line.busy(BUSY_SLACK * expected_s)

    def _prefill(self, lease: Lease) -> None:
        """Compute the next chunk of a text."""
        tokens = min(self.prefill.chunk, lease.missing)
        self._announce(self.prefill.time_s(tokens))
        begin = self.timer()
        try:
            self.held.model(lease).prefill(lease.handle, tokens)
        except Exception as error:
            self.held.fail(lease, error)
            return
        spent = self.timer() - begin
        self._worked(spent, [lease])
        self.prefill.computed(tokens, spent)
        self._update_missing(lease)

    def _grow(self, batch: list[tuple[Lease, Node]]) -> None:
        """Expand a batch of leaves in one forward. If it fails, each lease is tried alone, to find the faulty
        one."""
        leases = list({lease.rid: lease for lease, _ in batch}.values())
        model = self.held.model(leases[0])
        reading = sum(lease.missing for lease, node in batch if node is lease.tree.root)
        self._announce(self.steps(len(batch)) / 1e6 + self.prefill.time_s(reading))
        began_us, begin = self.now_us(), self.timer()
        try:
            expansions = model.expand([Leaf.of(lease.handle, lease.tree, node) for lease, node in batch])
        except Exception as error:
            if len(leases) == 1:
                self.held.fail(leases[0], error)
            else:
                for lease in leases:
                    self._grow([(other, node) for other, node in batch if other is lease])
            return
        spent = self.timer() - begin
        broken = dict[str, ModelError]()  # by request
        for (lease, node), expansion in zip(batch, expansions, strict=True):
            try:
                lease.expanded(node, expansion.within(lease.limits.vocab_size or MAX_INT))
            except ModelError as error:
                broken[lease.rid] = error
        self._worked(spent, [lease for lease in leases if lease.rid not in broken])
        self.prefill.grew(spent)
        if not any(node is lease.tree.root for lease, node in batch):  # with a root, missing tokens were computed too
            self.steps.observe(len(batch), spent * 1e6)
        for lease in leases:
            lease.unsent.spent(began_us, spent * 1e6)
            if lease.rid in broken:
                self.held.fail(lease, broken[lease.rid])

    def _worked(self, spent_s: float, leases: list[Lease]) -> None:
        self.worked_s += spent_s
        self.held.served(leases)

    def _tell(self) -> None:
        """Send the fragments that are due."""
        now_us = self.now_us()
        for lease in self.leases.values():
            if lease.must_flush(now_us):
                self.line.send(lease.flush(now_us))

    async def _report(self) -> None:
        """At regular intervals send DraftStats, give up weights that no lease uses, and ask for leases of which nothing
        was heard."""
        reported_at = self.clock()
        while True:
            await asyncio.sleep(REPORT_S)
            if not self.leases:
                self.steps.drift(1.0)  # what kept its core busy may be over
            now = self.clock()
            busy = min(1.0, self.worked_s / (now - reported_at)) if now > reported_at else 1.0
            self.worked_s, reported_at = 0.0, now
            self.line.send(self._stats(busy))
            self.generations.retire(lease.generation for lease in self.leases.values())
            for lease in list(self.leases.values()):
                silence = lease.tick()
                if silence >= GIVE_UP_AFTER:
                    self.held.end(lease)
                elif silence >= ASK_AFTER:
                    self.line.send(Resync(lease.rid, lease.epoch, len(lease.committed)))

    def _stats(self, busy: float) -> DraftStats:
        weights = self.generations
        return DraftStats(
            actor_id=self.line.hello.actor_id,
            step_us=self.steps.points(),
            busy=busy,
            version=weights.current.source.version,
            trouble=weights.trouble,
            path=weights.asked.path,
        )
