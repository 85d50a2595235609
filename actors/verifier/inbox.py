"""Reads what arrives at the verifier's socket, and counts the time that it takes.

Where forwards run in the event loop, the socket is not read during one. So the loop has whatever has arrived handled
between two of its steps, up to a bound, and no flood keeps it from its work.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence

from actors.verifier.dispatcher import Dispatcher
from actors.verifier.floods import Floods
from protocols.transport import Listener

# Messages handled between two pieces of work. A round brings one Grow per stream, so drafters that follow the protocol
# stay far below it.
MAX_HANDLED = 256
# Messages of a flood that are dropped between two pieces of work, some 4 µs each. libzmq reads connections in turns, so
# every other peer has had as many messages read by then.
MAX_DROPPED = 4
FLOOD_PAUSE_S = 0.001  # before the next ones are dropped


class Receiver:
    def __init__(
        self,
        listener: Listener,
        dispatcher: Dispatcher,
        floods: Floods,
        counters: Counter[str],
        wake: Callable[[], None],
        timer: Callable[[], float],
    ) -> None:
        """``wake``: called when messages were handled that nobody else may have looked for."""
        self.listener, self.dispatcher, self.floods, self.counters = listener, dispatcher, floods, counters
        self._wake, self.timer = wake, timer
        # Peers are charged for CPU time, not wall time: a preempted thread has not worked for the sender of a message.
        self.cpu_timer = time.thread_time if timer is time.perf_counter else timer
        self.handled = 0  # messages so far
        self.spent_s = 0.0  # on messages, since somebody set it to 0

    async def run(self) -> None:
        while True:
            dropped = not self._handle(*await self.listener.receive())
            read_all = self.read()
            self._wake()
            if not read_all:  # a flood does not keep the loop to itself
                await asyncio.sleep(FLOOD_PAUSE_S if dropped else 0)

    def read(self) -> bool:
        """Handle the messages that have arrived, up to a bound; return whether those were all.

        Drafts that arrived during a forward must be merged before the next step of the loop, or they would be used a
        round late and look as if they came too late."""
        dropped = 0
        for _ in range(MAX_HANDLED):
            item = self.listener.receive_nowait()
            if item is None:
                return True
            dropped += not self._handle(*item)
            if dropped == MAX_DROPPED:
                break
        return False

    def _handle(self, peer: bytes, frames: Sequence[bytes]) -> bool:
        """Return False if the message was dropped unread."""
        if self.floods.drops(peer, self.timer()):
            self.counters["flood"] += 1
            return False
        self.handled += 1
        begin = self.cpu_timer()
        self.dispatcher.receive(peer, frames)
        spent_s = self.cpu_timer() - begin
        self.floods.charge(peer, spent_s, self.timer())
        self.spent_s += spent_s
        return True
