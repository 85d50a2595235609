"""The in-memory network on the clock: messages take milliseconds, connections break, and all that is sent is noted.

A connection is what ZeroMQ makes of TCP: it delivers in order and once, or it breaks, and the next one has another
routing id. Some messages meet worse: SPEC.md promises that those between verifier and drafter, and whatever is said
again and again, may be lost; and that what comes twice, late or out of order does no harm. Of a Promote it does not: it
is said once, and holds until the next, which a connection brings behind it.
"""

from __future__ import annotations

import asyncio
import hashlib
import heapq
from collections.abc import Callable, Sequence

from protocols.wire import kind
from tests.world.network import Faults, MemoryLink, MemoryNetwork, only

MAY_VANISH = only(
    *("Load", "Finished"),  # said again until DraftStats tell of it; a text more or less
    *("Open", "Verdict", "Close", "Grow", "Resync", "Budget", "DraftStats"),  # they are asked for again
    *("Hello", "Welcome", "Heartbeat", "Goodbye"),  # said again, or not missed for longer than a time to live
)
IN_ORDER = only("Promote")


class ClockedNetwork(MemoryNetwork):
    """``turn`` counts milliseconds."""

    def __init__(self, seed: int, log: Callable[[str], None] | None = None) -> None:
        super().__init__(seed)
        self.log = log
        self.digest = hashlib.blake2b()  # digest of every message, when it was sent and what it said
        self.messages = 0
        self._held: dict[str, int] = {}  # until when messages of a host are under way

    @property
    def turn(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    def faults_of(self, frames: Sequence[bytes]) -> Faults | None:
        time = asyncio.get_running_loop().time()
        self.messages += 1
        self.digest.update(b"%r %r" % (time, frames))
        if self.log is not None:
            self.log(f"{time:9.4f} {kind(frames)}")
        if IN_ORDER(frames):
            return None
        faults = self.faults
        return faults if MAY_VANISH(frames) else Faults(0.0, faults.duplicate, faults.reorder, faults.delay)

    def deliver(self, turn: int, link: MemoryLink, action: Callable[[], object]) -> None:
        turn = max(turn, self._held.get(link.host, 0))
        now = self.turn
        if turn <= now and not (self._late and self._late[0][0] <= now):
            action()
            return
        self._sent += 1
        heapq.heappush(self._late, (turn, self._sent, link, action))
        asyncio.get_running_loop().call_at((turn + 0.5) / 1000, self._tick)

    def _tick(self) -> None:
        while self._late and self._late[0][0] <= self.turn:
            _, _, link, action = heapq.heappop(self._late)
            if not link.dead and not link.partitioned:
                action()

    def hold(self, host: str, seconds: float) -> None:
        """What the host sends and is sent from now on arrives in so many seconds at the earliest."""
        self._held[host] = max(self._held.get(host, 0), self.turn + round(1000 * seconds))

    def cut(self, host: str) -> None:
        """The host's connections break."""
        for link in self._select(host):
            link.detach()

    def mend(self, host: str) -> None:
        for link in self._select(host):
            if not link.peer:
                self.attach(link)
