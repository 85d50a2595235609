"""A port that leads to a verifier wherever it is; servers that say their names stand for verifiers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from duoactor.launch.forwarder import Forwarder
from protocols.address import parse


class Place:
    """Where the verifier is; ``find`` as a forwarder wants it."""

    def __init__(self) -> None:
        self.address = ""
        self._moved = asyncio.Condition()

    async def move(self, address: str) -> None:
        async with self._moved:
            self.address = address
            self._moved.notify_all()

    async def find(self, but: str) -> str:
        async with self._moved:
            await self._moved.wait_for(lambda: self.address != but)
            return self.address


@asynccontextmanager
async def verifier(name: bytes, at: socket.socket | None = None) -> AsyncIterator[str]:
    """Sends its name, then whatever it hears, back. Leaving it drops its connections. ``at``: bound to a port."""
    open_now: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_now.add(writer)
        writer.write(name + b"\n")
        while data := await reader.read(1000):
            writer.write(data)
        writer.close()

    where = {"sock": at} if at is not None else {"host": "127.0.0.1", "port": 0}
    server = await asyncio.start_server(serve, **where)
    try:
        yield f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for writer in open_now:
            writer.close()


async def reach(address: str) -> tuple[bytes, asyncio.StreamReader, asyncio.StreamWriter]:
    """Try until somebody answers with a name, as ZeroMQ does."""
    at = parse(address)
    while True:
        try:
            reader, writer = await asyncio.open_connection(at.host, at.port)
        except ConnectionRefusedError:
            await asyncio.sleep(0.01)
            continue
        if name := (await reader.readline()).strip():
            return name, reader, writer
        writer.close()


async def test_bytes_go_both_ways():
    place = Place()
    async with verifier(b"one") as address, Forwarder(place.find) as forwarder:
        await place.move(address)
        name, reader, writer = await reach(forwarder.address)
        writer.write(b"tokens\n")
        assert (name, await reader.readline()) == (b"one", b"tokens\n")
        writer.close()


async def test_who_is_connected_is_sent_to_the_new_place_at_the_same_address():
    place = Place()
    async with Forwarder(place.find) as forwarder, verifier(b"one") as first, verifier(b"two") as second:
        await place.move(first)
        name, reader, writer = await reach(forwarder.address)
        await place.move(second)
        assert (name, await reader.read()) == (b"one", b"")  # the old connection ends
        writer.close()
        name, _, writer = await reach(forwarder.address)
        assert name == b"two"
        writer.close()


async def refused(address: str) -> None:
    """Until a connection is refused: the first to come is dropped, and is how a verifier's end is noticed."""
    at = parse(address)
    with pytest.raises(ConnectionRefusedError):
        while True:
            reader, writer = await asyncio.open_connection(at.host, at.port)
            assert await reader.read() == b""
            writer.close()


async def test_a_verifier_that_is_not_to_be_found_is_gone_for_good():
    async def find(but: str) -> str:
        if not but:
            return address
        raise RuntimeError("its actor is dead")

    async with verifier(b"one") as address, Forwarder(find) as forwarder:
        while not forwarder.ended:
            await asyncio.sleep(0.01)
        await refused(forwarder.address)


async def test_nobody_listens_while_the_verifier_does_not():
    """A connection that is accepted and dropped would tell a client of wrong keys."""
    place = Place()
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        async with Forwarder(place.find) as forwarder:
            await refused(forwarder.address)
            await place.move(f"tcp://127.0.0.1:{bound.getsockname()[1]}")  # it loads its model
            await refused(forwarder.address)
            async with verifier(b"one", bound):
                name, reader, writer = await reach(forwarder.address)
                assert name == b"one"
            assert await reader.read() == b""
            writer.close()
            await refused(forwarder.address)
