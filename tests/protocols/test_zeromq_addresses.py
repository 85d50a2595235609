"""Addresses on the real network: used, left behind, held by strangers, or without anybody."""

# ruff: noqa: ASYNC240 (the file calls are tiny)

from __future__ import annotations

import asyncio
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from protocols.errors import ConfigError, ConnectionLost
from protocols.zeromq import ZmqNetwork
from tests.protocols.linked import pair


async def test_an_address_in_use_is_refused_with_a_sentence(address: str) -> None:
    first, second = ZmqNetwork(), ZmqNetwork()
    listener, link = await pair(first, address)
    with pytest.raises(ConfigError) as caught:
        second.listen(listener.address)
    sentence = "is in use: is another verifier up? Stop it, or choose another --bind"
    assert str(caught.value) == f"address {listener.address} {sentence}"
    assert link.send([b"", b"unharmed"])
    assert (await listener.receive())[1] == [b"", b"unharmed"]
    first.close()
    second.close()


async def test_closing_leaves_no_file_and_the_address_can_be_used_again(directory: Path) -> None:
    address = f"ipc://{directory}/new/verifier.sock"
    network = ZmqNetwork()
    for _ in range(5):
        listener, link = await pair(network, address)
        assert stat.S_IMODE((directory / "new").stat().st_mode) == 0o700
        assert {path.name for path in (directory / "new").iterdir()} == {
            "verifier.sock",
            "verifier.sock.telemetry",
            "verifier.sock.lock",
        }
        assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in (directory / "new").iterdir())
        link.send([b"", b"x"])
        await listener.receive()
        listener.close()
        link.close()
        assert list((directory / "new").iterdir()) == []
    network.close()


@pytest.mark.processes
async def test_a_verifier_killed_with_kill_9_does_not_block_the_next(directory: Path) -> None:
    address = f"ipc://{directory}/verifier.sock"
    program = (
        "import asyncio, os, signal\n"
        "from protocols.zeromq import ZmqNetwork\n"
        "async def main():\n"
        f"    ZmqNetwork().listen({address!r})\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )
    done = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", program], cwd=Path(__file__).parents[2])
    assert done.returncode == -9
    assert (directory / "verifier.sock").exists()
    network = ZmqNetwork()
    listener, link = await pair(network, address)
    link.send([b"", b"x"])
    assert (await listener.receive())[1] == [b"", b"x"]
    network.close()
    assert list(directory.iterdir()) == []


async def test_a_foreign_server_on_the_path_is_left_alone(directory: Path) -> None:
    path = directory / "verifier.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        network = ZmqNetwork()
        with pytest.raises(ConfigError, match="in use"):
            network.listen(f"ipc://{path}")
        assert path.is_socket()
        network.close()


async def test_a_file_that_is_no_socket_is_not_removed(directory: Path) -> None:
    path = directory / "verifier.sock"
    path.write_text("precious")
    network = ZmqNetwork()
    with pytest.raises(ConfigError, match="not a socket"):
        network.listen(f"ipc://{path}")
    assert [one.name for one in directory.iterdir()] == ["verifier.sock"]
    assert path.read_text() == "precious"
    network.close()


@pytest.mark.parametrize("address", ["ipc://{}/nobody.ipc", "ipc://{}/no/such/directory/v.ipc", "tcp://127.0.0.1:1"])
async def test_an_address_where_nobody_listens_is_known_at_once(directory: Path, address: str) -> None:
    address = address.format(directory)
    network = ZmqNetwork()
    link = network.connect(address)
    with pytest.raises(ConnectionLost, match=f"no verifier answers at {address}"):
        await link.writable(wait=False)
    waiting = asyncio.create_task(link.writable())
    with pytest.raises(ConnectionLost, match="no verifier answers"):
        await link.writable(wait=False)
    assert not waiting.done()
    link.close()
    with pytest.raises(ConnectionLost, match="closed"):
        await waiting
    network.close()


async def test_who_does_not_wait_reaches_a_verifier_that_is_there(directory: Path) -> None:
    network = ZmqNetwork()
    address = f"ipc://{directory}/v.ipc"
    link = network.connect(address)
    with pytest.raises(ConnectionLost):
        await link.writable(wait=False)
    listener = network.listen(address)
    await link.writable()
    await link.writable(wait=False)
    assert link.send([b"", b"x"])
    assert (await listener.receive())[1] == [b"", b"x"]
    network.close()
