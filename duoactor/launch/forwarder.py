"""A port of this host's own that leads to a verifier, wherever that is at present.

For whoever connects once and must not be restarted: clients and the gateway. What passes is ZeroMQ's own bytes,
encrypted from end to end; drafters and controllers connect directly.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from types import TracebackType

from protocols.address import parse

CONNECT_TIMEOUT_S = 5.0  # a host that vanished does not answer at all
AGAIN_S = 0.2  # between two attempts to reach a verifier that loads its model
CHUNK = 1 << 16  # bytes

Find = Callable[[str], Awaitable[str]]  # the verifier's address, once it is another than the one given


class Forwarder:
    """Listens only while the verifier does: who connects in between is refused, as by a verifier that is not there.
    A connection that is taken and then dropped would look like one with the wrong keys."""

    def __init__(self, find: Find) -> None:
        self._find = find
        self._port = 0
        self._connections: set[asyncio.Task[None]] = set()
        self._unreachable = asyncio.Event()

    @property
    def address(self) -> str:
        """Stays the same as long as this is entered."""
        return f"tcp://127.0.0.1:{self._port}"

    @property
    def ended(self) -> bool:
        """Whether ``find`` has failed: the verifier is gone for good."""
        return self._work.done()

    async def __aenter__(self) -> Forwarder:
        async with await asyncio.start_server(self._forward, "127.0.0.1", 0) as server:
            self._port = server.sockets[0].getsockname()[1]
        self._work = asyncio.create_task(self._follow())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._work.cancel()
        await asyncio.gather(self._work, return_exceptions=True)

    async def _follow(self) -> None:
        address = ""
        moving = asyncio.ensure_future(self._find(address))
        serving: asyncio.Task[None] | None = None
        try:
            while True:
                address = await moving
                if serving is not None:
                    await _end(serving)
                serving = asyncio.create_task(self._serve(address))
                moving = asyncio.ensure_future(self._find(address))
        finally:
            moving.cancel()
            if serving is not None:
                await _end(serving)

    async def _serve(self, address: str) -> None:
        parsed = parse(address)
        self._there = (parsed.host, parsed.port)
        try:
            while True:
                await self._reach()
                self._unreachable.clear()
                async with await asyncio.start_server(self._forward, "127.0.0.1", self._port):
                    await self._unreachable.wait()
        finally:
            for connection in self._connections:
                connection.cancel()

    async def _reach(self) -> None:
        """Until the verifier takes connections."""
        while True:
            if (streams := await self._connect()) is not None:
                streams[1].close()
                return
            await asyncio.sleep(AGAIN_S)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        with contextlib.suppress(OSError, TimeoutError):
            return await asyncio.wait_for(asyncio.open_connection(*self._there), CONNECT_TIMEOUT_S)
        return None

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            streams = await self._connect()
            if streams is None:
                self._unreachable.set()
                return
            there, back = streams[0], streams[1]
            copies = [asyncio.create_task(_copy(reader, back)), asyncio.create_task(_copy(there, writer))]
            try:
                await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for copy in copies:
                    copy.cancel()
                back.close()
        except asyncio.CancelledError:
            pass  # the verifier moved; a task that ends as cancelled is told to the loop's exception handler
        finally:
            self._connections.discard(task)
            writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
