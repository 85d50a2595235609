"""Who may connect: directories of one's own, loopback, and CURVE keys beyond it."""

# ruff: noqa: ASYNC240 (the file calls are tiny)

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import zmq

from protocols.errors import ConfigError, ConnectionLost
from protocols.security import AllowedKeys, KeyPair, KeyRole, Security
from protocols.zeromq import ZmqNetwork

Run = Callable[[Awaitable[None]], None]
TCP = "tcp://127.0.0.1:0"


async def test_a_directory_that_others_can_write_to_is_refused_at_both_ends(directory: Path) -> None:
    directory.chmod(0o777)
    network = ZmqNetwork()
    with pytest.raises(ConfigError, match="writable by others"):
        network.listen(f"ipc://{directory}/verifier.sock")
    with pytest.raises(ConfigError, match="writable by others"):
        network.connect(f"ipc://{directory}/verifier.sock")
    network.close()


async def test_a_directory_of_another_user_is_refused(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = directory.stat().st_uid
    monkeypatch.setattr("os.geteuid", lambda: owner + 1)
    network = ZmqNetwork()
    with pytest.raises(ConfigError, match="belongs to another user"):
        network.listen(f"ipc://{directory}/verifier.sock")
    network.close()


@pytest.mark.parametrize(
    "address", ["tcp://0.0.0.0:7601", "tcp://*:7601", "tcp://10.0.0.1:7601", "tcp://[::]:7601", "tcp://eth0:0"]
)
async def test_an_open_bind_beyond_loopback_is_never_even_tried(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[object] = []
    monkeypatch.setattr(zmq.Socket, "bind", lambda _, endpoint: tried.append(endpoint))
    network = ZmqNetwork()
    with pytest.raises(ConfigError, match="run `duoactor keys verifier"):
        network.listen(address)
    assert tried == []
    network.close()


async def test_an_open_connection_to_another_machine_is_refused() -> None:
    network = ZmqNetwork()
    with pytest.raises(ConfigError, match="run `duoactor keys NAME`"):
        network.connect("tcp://gpu-box:7601")
    network.close()


def secured(directory: Path) -> tuple[Security, Security, Security]:
    """A verifier, and two others of which it knows the first."""
    server, known, unknown = (KeyPair.generate() for _ in range(3))
    known.write(directory / "allowed", "known", [KeyRole.CONTROLLER])
    (directory / "allowed" / "known.key").unlink()
    return (
        Security(server.public, server.secret, server.public, AllowedKeys(directory / "allowed")),
        Security(known.public, known.secret, server.public),
        Security(unknown.public, unknown.secret, server.public),
    )


def test_curve_lets_those_in_whose_key_is_in_the_list(run: Run, directory: Path) -> None:
    async def main() -> None:
        server, known, unknown = secured(directory)
        here, there, outside = ZmqNetwork(server), ZmqNetwork(known), ZmqNetwork(unknown)
        listener = here.listen(TCP)
        link = there.connect(listener.address)
        stranger = outside.connect(listener.address)
        await link.writable()
        assert link.send([b"", b"secret"])
        peer, frames = await listener.receive()
        assert frames == [b"", b"secret"]
        assert listener.send(peer, [b"", b"answer"])
        assert await link.receive() == [b"", b"answer"]
        with pytest.raises(ConnectionLost, match="denies this key"):
            await stranger.receive()
        with pytest.raises(ConnectionLost, match="denies this key"):
            await stranger.writable()
        assert here.denied >= 1
        assert not stranger.send([b"", b"x"])
        assert listener.receive_nowait() is None
        own = here.connect(listener.address)  # the verifier's host itself needs no entry
        await own.writable()
        feed = there.subscribe(listener.telemetry)
        heard = asyncio.create_task(feed.receive())
        while not heard.done():
            listener.publish(b"T", [b"", b"t"])
            await asyncio.sleep(0)
        for network in (here, there, outside):
            network.close()

    run(main())


def test_a_connection_is_known_by_its_key_whatever_it_says_of_itself(run: Run, directory: Path) -> None:
    async def main() -> None:
        server, known, _ = secured(directory)
        here, there = ZmqNetwork(server), ZmqNetwork(known)
        listener = here.listen(TCP)
        link, own = there.connect(listener.address), here.connect(listener.address)
        for one, key in ((link, known.public_key), (own, server.public_key)):
            await one.writable()
            assert one.send([b"", b"I am the verifier's operator"])
            peer, _ = await listener.receive()
            assert listener.holder(peer).key == key
            assert listener.holder(peer).may_be("operator") is (one is own)
        for network in (here, there):
            network.close()

    run(main())


def test_telemetry_is_for_those_who_watch(run: Run, directory: Path) -> None:
    async def main() -> None:
        server, known, _ = secured(directory)
        pair = KeyPair.generate()
        pair.write(directory / "allowed", "client", [KeyRole.CLIENT])
        here, there = ZmqNetwork(server), ZmqNetwork(known)
        outside = ZmqNetwork(Security(pair.public, pair.secret, server.public_key))
        listener = here.listen(TCP)
        deaf = asyncio.create_task(outside.subscribe(listener.telemetry).receive())
        while not here.denied:
            await asyncio.sleep(0.01)
        heard = asyncio.create_task(there.subscribe(listener.telemetry).receive())
        while not heard.done():
            listener.publish(b"T", [b"", b"t"])
            await asyncio.sleep(0)
        assert not deaf.done()
        deaf.cancel()
        for network in (here, there, outside):
            network.close()

    run(main())


async def test_a_peer_without_keys_learns_that_the_verifier_has_them(directory: Path) -> None:
    server, _, _ = secured(directory)
    here, there = ZmqNetwork(server), ZmqNetwork()
    listener = here.listen(TCP)
    with pytest.raises(ConnectionLost, match="pass --key"):
        await there.connect(listener.address).receive()
    here.close()
    there.close()


async def test_a_peer_with_keys_learns_that_the_verifier_has_none(directory: Path) -> None:
    _, known, _ = secured(directory)
    here, there = ZmqNetwork(), ZmqNetwork(known)
    with pytest.raises(ConnectionLost, match=r"no keys; .*leave out --key"):
        await there.connect(here.listen(TCP).address).receive()
    here.close()
    there.close()


async def test_keys_without_the_other_half_of_the_setup_are_refused() -> None:
    pair = KeyPair.generate()
    network = ZmqNetwork(Security(pair.public, pair.secret))
    with pytest.raises(ConfigError, match="--allow"):
        network.listen("tcp://0.0.0.0:0")
    with pytest.raises(ConfigError, match="--server-key"):
        network.connect("tcp://127.0.0.1:7601")
    network.close()


@pytest.mark.parametrize("ask", ["receive", "writable"])
async def test_a_wrong_server_key_is_called_so(directory: Path, ask: str) -> None:
    server, known, _ = secured(directory)
    here = ZmqNetwork(server)
    there = ZmqNetwork(Security(known.public_key, known.secret_key, KeyPair.generate().public))
    listener = here.listen(TCP)
    with pytest.raises(ConnectionLost, match="another public key than the given server key"):
        await getattr(there.connect(listener.address), ask)()
    here.close()
    there.close()
