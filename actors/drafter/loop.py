"""The drafter: mirrors requests, grows their trees with the draft model, tells the verifier before it looks.

Its loop is receive, decide, compute, commit, tell. The draft step runs in the event loop's own thread: it is short,
and a second thread would only add hand-overs.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable

from actors.drafter.lease import Lease
from actors.models import DraftModel
from actors.peer import Line
from actors.process import work_until
from actors.tree.calibration import Calibration
from actors.tree.tree import Node
from protocols import wire
from protocols.errors import PoolFull
from protocols.handshake import Lost
from protocols.messages import (
    Budget,
    Close,
    DraftStats,
    Drain,
    Hello,
    Message,
    Open,
    Resync,
    ToDrafter,
    Verdict,
    Welcome,
)
from protocols.transport import Network

log = logging.getLogger("duoactor.drafter")
WIDTH = 8  # most leaves of one request in one forward
MESSAGE_US = 250.0  # a fragment leaves this long, and one draft step, before the verifier looks
REPORT_S = 1.0


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
    ) -> None:
        """``step_us``: the calibrated time of a draft step by its number of leaves."""
        self.model, self.timer = model, timer
        self.clock = clock or asyncio.get_running_loop().time
        self.line = Line(network, address, hello, wire.Decoder(ToDrafter))
        self.leases: OrderedDict[str, Lease] = OrderedDict()
        self.turned_away: OrderedDict[int, None] = OrderedDict()  # epochs that found no room
        self.calibrations: dict[bool, Calibration] = {}
        self.step_us = dict(step_us)
        self.leaving = False
        self.worked_s = 0.0
        self.reported_at = self.began = self.clock()

    def now_us(self) -> float:
        """Since this drafter's start: what a message says of it tells nothing about the machine."""
        return (self.clock() - self.began) * 1e6

    # --- lifecycle ---------------------------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event) -> None:
        """Draft until ``stop`` is set or the verifier asks us to leave."""
        try:
            await work_until(stop, self._serve())
        finally:
            self.line.close("leaving")

    async def _serve(self) -> None:
        await self.line.open()
        await work_until(asyncio.Event(), self._work(), self.line.beat())

    async def _work(self) -> None:
        while True:
            self._receive()
            if self.leaving and not self.leases:
                return
            batch = self._decide()
            if batch:
                self._compute(batch)
                self._tell()
                await asyncio.sleep(0)
            else:
                self._tell()
                self._take(await self.line.next())

    # --- receive -----------------------------------------------------------------------------------------------------

    def _receive(self) -> None:
        while (message := self.line.next_nowait()) is not None:
            self._take(message)

    def _take(self, message: Message | Lost) -> None:
        match message:
            case Lost() | Welcome():
                for rid in list(self.leases):
                    self._drop(rid)
            case Verdict():
                self._verdict(message)
            case Open():
                self._open(message)
            case Close():
                lease = self.leases.get(message.rid)
                if lease is not None and lease.epoch <= message.epoch:
                    self._drop(message.rid)
            case Drain():
                self.leaving = True
            case Budget():
                pass  # plans arrive with verdicts

    def _open(self, message: Open) -> None:
        known = self.leases.get(message.rid)
        if known is not None:
            if known.epoch >= message.epoch:
                return
            self._drop(message.rid)
        try:
            handle = self.model.open(message.prefix, message.prompt_len, message.sampling)
        except PoolFull:
            self.turned_away[message.epoch] = None
            while len(self.turned_away) > 1000:
                self.turned_away.popitem(last=False)
            log.warning("no room for request %s; it goes on without drafts", message.rid)
            return
        calibration = self.calibrations.setdefault(message.sampling.temperature > 0, Calibration())
        margin = MESSAGE_US + self.step_us.get(1, 1000.0)
        eos = self.model.info.eos_token_ids
        self.leases[message.rid] = Lease(message, handle, eos, calibration, self.model.scratch_slots, margin)

    def _verdict(self, message: Verdict) -> None:
        lease = self.leases.get(message.rid)
        if lease is None:
            if message.epoch not in self.turned_away:
                self.line.send(Resync(message.rid, message.epoch, 0))
            return
        if lease.epoch != message.epoch:
            return
        now_us = self.now_us()
        lease.margin_us = MESSAGE_US + self.step_us.get(1, 1000.0)  # as steps are now, not as the lease began
        change = lease.verdict(message, now_us)
        if isinstance(change, Resync):
            self.line.send(change)
        elif change is not None:
            if lease.must_flush(now_us, after_verdict=True):
                self.line.send(lease.flush(now_us))  # first of all: the verifier may be waiting for it
            self.model.commit(lease.handle, change.tokens, change.slots)
            self.model.release(lease.handle, change.dead)

    def _drop(self, rid: str) -> None:
        lease = self.leases.pop(rid)
        self.model.close(lease.handle)

    # --- decide, compute, commit, tell -------------------------------------------------------------------------------

    def _decide(self) -> list[tuple[Lease, Node]]:
        """The next leaves of every lease: one batched forward grows all their trees."""
        return [(lease, node) for lease in self.leases.values() for node in lease.wanted(WIDTH)]

    def _compute(self, batch: list[tuple[Lease, Node]]) -> None:
        began_us, begin = self.now_us(), self.timer()
        expansions = self.model.expand([lease.leaf(node) for lease, node in batch])
        spent = self.timer() - begin
        self.worked_s += spent
        self._measure(len(batch), spent * 1e6, any(node is lease.tree.root for lease, node in batch))
        for (lease, node), expansion in zip(batch, expansions, strict=True):
            lease.expanded(node, expansion)
        share = spent * 1e6 / len(batch)
        for lease in {id(lease): lease for lease, _ in batch}.values():
            lease.spent(share * sum(1 for other, _ in batch if other is lease), began_us, spent * 1e6)

    def _measure(self, width: int, spent_us: float, with_root: bool) -> None:
        if with_root:
            return  # a root catches up on an unknown number of tokens
        before = self.step_us.get(width)
        self.step_us[width] = spent_us if before is None else before + 0.1 * (min(spent_us, 4 * before) - before)

    def _tell(self) -> None:
        now, now_us = self.clock(), self.now_us()
        for lease in self.leases.values():
            if lease.must_flush(now_us):
                self.line.send(lease.flush(now_us))
        if now - self.reported_at >= REPORT_S:
            busy = self.worked_s / (now - self.reported_at)
            steps = tuple(sorted((width, us) for width, us in self.step_us.items()))
            self.line.send(DraftStats(self.line.hello.actor_id, steps, busy, len(self.leases)))
            self.worked_s, self.reported_at = 0.0, now
