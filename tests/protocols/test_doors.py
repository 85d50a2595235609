"""Strangers that only connect: they are let go after a while, and never take the last open file."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocols import doors, zeromq
from protocols.address import parse
from protocols.doors import LEAST_FILES, MOST_FILES, raise_file_limit, room_for_connections
from protocols.errors import ConfigError
from protocols.pump import Unwanted
from protocols.security import AllowedKeys, KeyPair, Security
from protocols.zeromq import ZmqNetwork
from tests.protocols.linked import pair

MOST = 12  # connections


@contextlib.contextmanager
def strangers(address: str, count: int) -> Iterator[list[socket.socket]]:
    there = parse(address)
    opened = []
    try:
        for _ in range(count):
            if there.scheme == "ipc":
                one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                one.connect(str(there.path))
            else:
                one = socket.create_connection((there.host, there.port))
            one.setblocking(False)
            opened.append(one)
        yield opened
    finally:
        for one in opened:
            one.close()


async def let_go(one: socket.socket) -> None:
    """Until the other end has closed the connection."""
    while await asyncio.get_running_loop().sock_recv(one, 1000):
        pass


async def test_who_connects_and_says_nothing_is_let_go(address, monkeypatch):
    monkeypatch.setattr(zeromq, "HANDSHAKE_MS", 100)
    network = ZmqNetwork()
    listener, link = await pair(network, address)
    with strangers(listener.address, 1) as (one,):
        await let_go(one)
    link.send([b"still", b"here"])
    assert (await listener.receive())[1] == [b"still", b"here"]
    network.close()


async def test_beyond_the_room_strangers_are_hung_up_on_and_peers_go_on(address, monkeypatch, caplog):
    monkeypatch.setattr(zeromq, "HANDSHAKE_MS", 500)
    monkeypatch.setattr(zeromq, "room_for_connections", lambda: MOST)
    network = ZmqNetwork()
    listener, link = await pair(network, address)
    with strangers(listener.address, MOST):
        while not listener._doors.hung_up:
            await asyncio.sleep(0.001)
        link.send([b"peers", b"go on"])
        assert (await listener.receive())[1] == [b"peers", b"go on"]
        while listener._doors.open > 1:  # the link; the strangers still hold their ends
            await asyncio.sleep(0.001)
        newcomer = network.connect(listener.address)
        await newcomer.writable()
        newcomer.send([b"at", b"last"])
        assert (await listener.receive())[1] == [b"at", b"last"]
        assert listener._doors.open <= MOST
    assert sum("raise the limit with `ulimit -n`" in record.message for record in caplog.records) == 1
    network.close()


@pytest.mark.parametrize("keyed", [False, True])
async def test_who_is_hung_up_on_is_gone_when_it_sends_again_and_others_stay(address, keyed, directory):
    there, here = peer_keys(directory) if keyed else (None, None)
    network, other = ZmqNetwork(there), ZmqNetwork(here)
    listener = network.listen(address)
    unwanted, guest = other.connect(listener.address), other.connect(listener.address)
    peers = []
    for link in (unwanted, guest):
        await link.writable()
        link.send([b"who", b"am I"])
        peers.append((await listener.receive())[0])
    listener.hang_up(peers[0])
    unwanted.send([b"once", b"more"])
    assert (await listener.receive())[0] == peers[0], "which tells the connection's file"
    while listener.send(peers[0], [b"are", b"you there"]):
        await asyncio.sleep(0.001)
    guest.send([b"still", b"here"])
    assert await listener.receive() == (peers[1], [b"still", b"here"])
    while (heard := listener.receive_nowait()) is None:  # what is sent before it sees the end is lost
        unwanted.send([b"back", b"again"])
        await asyncio.sleep(0.001)
    again, frames = heard
    assert frames == [b"back", b"again"] and again != peers[0], "it has connected anew"
    network.close()
    other.close()


def peer_keys(directory: Path) -> tuple[Security, Security]:
    """A verifier's keys, and a peer's that it admits."""
    verifier, peer = KeyPair.generate(), KeyPair.generate()
    peer.write(directory / "keys", "peer")
    allowed = AllowedKeys(directory / "keys")
    return (
        Security(verifier.public, verifier.secret, allowed=allowed),
        Security(peer.public, peer.secret, server_key=verifier.public),
    )


def test_of_connections_to_end_a_bounded_number_is_remembered():
    unwanted = Unwanted(lambda descriptor: None)
    for number in range(3 * Unwanted.MOST):
        unwanted.add(b"%d" % number)
    assert 0 < len(unwanted.ids) <= Unwanted.MOST


async def test_what_is_no_zeromq_is_counted_once_and_forgotten(address):
    network = ZmqNetwork()
    listener, link = await pair(network, address)
    for _ in range(20):
        with strangers(listener.address, 1) as (one,):
            await asyncio.get_running_loop().sock_sendall(one, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + bytes(100))
            await let_go(one)
    while listener._doors.open != 1:  # the link
        await asyncio.sleep(0.001)
    link.send([b"a", b"b"])
    assert (await listener.receive())[1] == [b"a", b"b"]
    network.close()


def limited(monkeypatch, soft: int, hard: int) -> list[tuple[int, int]]:
    """This process may open so many files; what it raises the limit to."""
    limits = [(soft, hard)]
    monkeypatch.setattr(doors.resource, "getrlimit", lambda which: limits[-1])
    monkeypatch.setattr(doors.resource, "setrlimit", lambda which, pair: limits.append(pair))
    return limits


@pytest.mark.parametrize(
    ("soft", "hard", "raised"),
    [
        (1024, 4096, 4096),
        (1024, 1 << 20, MOST_FILES),
        (1 << 20, 1 << 20, 1 << 20),
        (1024, resource.RLIM_INFINITY, MOST_FILES),
    ],
)
def test_the_soft_limit_of_open_files_is_raised_as_far_as_allowed(monkeypatch, soft, hard, raised):
    limits = limited(monkeypatch, soft, hard)
    assert raise_file_limit() == raised == limits[-1][0]
    assert limits[-1][1] == hard
    assert 0 < room_for_connections() < raised


def test_too_few_files_are_a_sentence_at_the_start_instead_of_an_abort_later(monkeypatch):
    limited(monkeypatch, 64, 64)
    with pytest.raises(ConfigError, match=f"64 files at once, and needs {LEAST_FILES}.*ulimit -n"):
        room_for_connections()
