"""The real network, on asyncio's own loop and on uvloop. A hang is a failure of these tests; none of them sleeps."""

from __future__ import annotations

import asyncio
import errno
import gc
import socket
import weakref
from collections.abc import Awaitable, Callable
from unittest.mock import Mock

import pytest
import zmq

from protocols.errors import ConnectionLost, ProtocolError
from protocols.messages import Cancel, Message, ToVerifier
from protocols.wire import Decoder, encode
from protocols.zeromq import ZmqNetwork
from tests.protocols.linked import TCP, pair

Run = Callable[[Awaitable[None]], None]


def test_messages_go_both_ways_in_order(run: Run, address: str) -> None:
    async def main() -> None:
        network = ZmqNetwork()
        listener, link = await pair(network, address)
        for number in range(500):
            assert link.send(encode(Cancel(str(number))))
        for number in range(500):
            peer, frames = await listener.receive()
            assert Decoder(ToVerifier).decode(frames) == Cancel(str(number))
            assert listener.send(peer, frames)
        for number in range(500):
            assert await link.receive() == encode(Cancel(str(number)))
        assert link.receive_nowait() is None
        network.close()

    run(main())


def test_a_burst_sent_and_read_at_once_never_misses_a_wake_up(run: Run, address: str) -> None:
    async def main() -> None:
        network = ZmqNetwork()
        listener, link = await pair(network, address)

        async def echo() -> None:
            while True:
                peer, frames = await listener.receive()
                while not listener.send(peer, frames):
                    await asyncio.sleep(0)

        async def flood() -> None:
            for number in range(3000):
                while not link.send([b"", str(number).encode()]):
                    await asyncio.sleep(0)

        tasks = [asyncio.create_task(echo()), asyncio.create_task(flood())]
        for number in range(3000):
            assert (await link.receive())[1] == str(number).encode()
        for task in tasks:
            task.cancel()
        network.close()

    run(main())


def test_a_cancelled_receive_loses_nothing(run: Run, address: str) -> None:
    async def main() -> None:
        network = ZmqNetwork()
        listener, link = await pair(network, address)
        got: list[bytes] = []
        cancelled = 0
        for number in range(300):
            reader = asyncio.create_task(listener.receive())
            await asyncio.sleep(0)
            link.send([b"", str(number).encode()])
            for _ in range(number % 7):
                await asyncio.sleep(0)
            reader.cancel()
            try:
                got.append((await reader)[1][1])
            except asyncio.CancelledError:
                cancelled += 1
        while len(got) < 300:
            got.append((await listener.receive())[1][1])
        assert got == [str(number).encode() for number in range(300)]
        assert cancelled > 0
        network.close()

    run(main())


def test_sending_to_a_vanished_peer_returns_false(run: Run, address: str) -> None:
    async def main() -> None:
        network = ZmqNetwork()
        listener, link = await pair(network, address)
        link.send([b"", b"hello"])
        peer, _ = await listener.receive()
        link.close()
        while listener.send(peer, [b"", b"still there?"]):
            await asyncio.sleep(0)
        assert not listener.send(peer, [b"", b"gone"])
        assert not listener.send(b"nobody", [b"", b"x"])
        assert not link.send([b"", b"x"])
        network.close()

    run(main())


async def test_a_link_without_a_verifier_refuses_to_queue() -> None:
    network = ZmqNetwork()
    link = network.connect("tcp://127.0.0.1:9")
    assert not link.send([b"", b"x"])
    network.close()
    with pytest.raises(ConnectionLost):
        await link.receive()
    with pytest.raises(ConnectionLost):
        await link.writable()


def test_telemetry_reaches_its_subscribers(run: Run, address: str) -> None:
    async def main() -> None:
        network = ZmqNetwork()
        listener = network.listen(address)
        assert not listener.watched
        feed = network.subscribe(listener.telemetry, [b"Round"])
        arrived = asyncio.create_task(feed.receive())
        while not arrived.done():  # a subscription takes effect some time after it is made
            listener.publish(b"ActorUp", [b"", b"not wanted"])
            listener.publish(b"RoundStats", [b"", b"wanted"])
            await asyncio.sleep(0)
        assert await arrived == [b"", b"wanted"]
        assert listener.watched
        feed.close()
        while listener.watched:
            await asyncio.sleep(0)
        network.close()

    run(main())


async def test_garbage_on_the_socket_does_not_hurt_others() -> None:
    network = ZmqNetwork()
    listener, link = await pair(network, TCP)
    host, port = listener.address.removeprefix("tcp://").split(":")
    with socket.create_connection((host, int(port))) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\n\r\n" + bytes(range(256)) * 40)
    rude: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
    rude.connect(listener.address)
    rude.send_multipart([b"\xff"] * 5000)
    rude.send(b"")
    rude.send_multipart([b"duoactor/99", b"\xc1"])
    assert link.send(encode(Cancel("r")))
    decoder = Decoder(ToVerifier)
    refused: set[str] = set()
    understood: list[Message] = []
    while not understood or not any("version 99" in sentence for sentence in refused):
        _, frames = await listener.receive()
        assert len(frames) <= 3  # a flood of frames is cut off
        try:
            understood.append(decoder.decode(frames))
        except ProtocolError as error:
            refused.add(str(error))
    assert understood == [Cancel("r")]
    assert len(refused) >= 3
    rude.close(0)
    network.close()


def test_an_actor_that_does_not_read_holds_its_peers_back(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("protocols.zeromq.QUEUE", 20)

    async def main() -> None:
        network = ZmqNetwork()
        listener, link = await pair(network, TCP)
        sent = 0
        body = bytes(100_000)  # more than the kernel's buffers take
        while link.send([b"", body]):
            sent += 1
            await asyncio.sleep(0)
        for _ in range(sent):
            await listener.receive()
        assert listener.receive_nowait() is None
        await link.writable()
        assert link.send([b"", b"again"])
        assert (await listener.receive())[1] == [b"", b"again"]
        network.close()

    run(main())


def test_every_connection_has_a_fresh_id(run: Run, address: str) -> None:
    async def main() -> None:
        network = ZmqNetwork()
        listener = network.listen(address)
        ids = set()
        for _ in range(5):
            link = network.connect(listener.address)
            await link.writable()
            link.send([b"", b"x"])
            ids.add((await listener.receive())[0])
            link.close()
        assert len(ids) == 5
        network.close()

    run(main())


async def test_a_message_sent_just_before_closing_still_arrives(address: str) -> None:
    here, there = ZmqNetwork(), ZmqNetwork()
    listener = here.listen(address)
    link = there.connect(listener.address)
    await link.writable()
    link.send([b"", b"goodbye"])
    there.close()
    assert (await listener.receive())[1] == [b"", b"goodbye"]
    here.close()


async def test_a_network_forgets_links_that_were_closed() -> None:
    network = ZmqNetwork()
    try:
        known = []
        for _ in range(3):
            for end in (network.subscribe("tcp://127.0.0.1:9"), network.connect("tcp://127.0.0.1:9")):
                end.close()
                known.append(weakref.ref(end))
        del end
        network.subscribe("tcp://127.0.0.1:9").close()
        await asyncio.sleep(0)
        gc.collect()
        assert not any(one() for one in known)
    finally:
        network.close()


@pytest.mark.parametrize("lacks", ["get_monitor_socket", "fileno"])
def test_a_connection_for_which_files_are_lacking_is_refused_and_keeps_nothing_open(
    run: Run, address: str, lacks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        network = ZmqNetwork()
        listener = network.listen(address)
        with monkeypatch.context() as scarce:
            scarce.setattr(zmq.Socket, lacks, Mock(side_effect=zmq.ZMQError(errno.EMFILE)))
            with pytest.raises(ConnectionLost, match="Too many open files"):
                network.connect(listener.address)
        network.close()

    run(main())
