"""A network between two ends of TCP connections: each way takes time, and loses some segments."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from functools import partial

SEGMENT = 1448  # bytes, as on Ethernet
LEAST_RTO_S = 0.2  # Linux's shortest wait for an acknowledgement, beyond the round trip


class Relay:
    """Listens at ``address`` (host and port; 0: any) and passes on to ``onward``, another one or a socket file. TCP
    hides a loss behind a delay: the lost segment comes a retransmission later, and all of its direction behind it."""

    def __init__(
        self, onward: tuple[str, int] | str, delay_s: float = 0.0, lost: float = 0.0, seed: int = 0, port: int = 0
    ) -> None:
        """``delay_s`` each way; ``lost``: share of the segments."""
        self.onward, self.delay_s, self.lost = onward, delay_s, lost
        self._port = port
        self._chance = random.Random(seed)
        self._pipes: set[asyncio.Task[None]] = set()
        self.segments = self.losses = 0

    async def __aenter__(self) -> Relay:
        self._server = await asyncio.start_server(self._join, "127.0.0.1", self._port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()
        for pipe in self._pipes:
            pipe.cancel()
        await asyncio.gather(*self._pipes, return_exceptions=True)

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if isinstance(self.onward, str):
                ends = await asyncio.open_unix_connection(self.onward)
            else:
                ends = await asyncio.open_connection(*self.onward)
        except OSError:
            writer.close()
            return
        both = [asyncio.create_task(self._carry(reader, ends[1])), asyncio.create_task(self._carry(ends[0], writer))]
        self._pipes.update(both)
        for one in both:
            one.add_done_callback(partial(self._part, both))

    def _part(self, both: Sequence[asyncio.Task[None]], _ended: asyncio.Task[None]) -> None:
        """A connection that ends at one side ends at the other."""
        for one in both:
            one.cancel()
        self._pipes.difference_update(both)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        on_the_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def arrive() -> None:
            while True:
                due, data = await on_the_way.get()
                if (wait := due - loop.time()) > 0:
                    await asyncio.sleep(wait)
                writer.write(data)

        arriving = asyncio.create_task(arrive())
        due = 0.0
        try:
            while data := await reader.read(SEGMENT):
                due = max(due, loop.time() + self.delay_s)
                self.segments += 1
                if self._chance.random() < self.lost:
                    self.losses += 1
                    due = max(due, loop.time() + self.delay_s + LEAST_RTO_S + 2 * self.delay_s)
                on_the_way.put_nowait((due, data))
        except OSError:
            pass
        finally:
            arriving.cancel()
            writer.close()
