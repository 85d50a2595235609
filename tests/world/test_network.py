"""The in-process network: a faithful one by default, and faults that repeat by seed."""

from __future__ import annotations

import asyncio

import pytest

from protocols.errors import ConfigError, ConnectionLost
from protocols.messages import Cancel, Grow
from protocols.wire import encode
from tests.world.network import MemoryNetwork, only


async def settle(network: MemoryNetwork) -> None:
    for _ in range(200):
        await asyncio.sleep(0)


async def arrivals(network: MemoryNetwork, count: int) -> list[int]:
    listener, link = network.listen("memory"), network.connect("memory")
    for number in range(count):
        link.send([b"", bytes([number])])
        await asyncio.sleep(0)
    await settle(network)
    arrived = []
    while (message := listener.receive_nowait()) is not None:
        arrived.append(message[1][1][0])
    network.close()
    return arrived


async def test_without_faults_everything_arrives_once_and_in_order() -> None:
    assert await arrivals(MemoryNetwork(), 50) == list(range(50))


FAULTS = [
    {"drop": 0.3},
    {"duplicate": 0.3},
    {"reorder": 0.3},
    {"drop": 0.2, "duplicate": 0.2, "reorder": 0.2, "delay": 5},
]


@pytest.mark.parametrize("faults", FAULTS, ids=lambda faults: "+".join(faults))
async def test_the_same_seed_deals_the_same_faults(faults: dict[str, float]) -> None:
    first = await arrivals(MemoryNetwork(7, **faults), 100)  # type: ignore[arg-type]
    assert first == await arrivals(MemoryNetwork(7, **faults), 100)  # type: ignore[arg-type]
    assert first != await arrivals(MemoryNetwork(8, **faults), 100)  # type: ignore[arg-type]
    assert first != list(range(100))


async def test_each_fault_does_what_its_name_says() -> None:
    everything = list(range(100))
    dropped = await arrivals(MemoryNetwork(1, drop=0.3), 100)
    assert len(dropped) < 100
    assert dropped == sorted(dropped)
    doubled = await arrivals(MemoryNetwork(1, duplicate=0.3), 100)
    assert len(doubled) > 100
    assert sorted(set(doubled)) == everything
    reordered = await arrivals(MemoryNetwork(1, reorder=0.3), 100)
    assert reordered != everything
    assert sorted(reordered) == everything
    assert await arrivals(MemoryNetwork(1, delay=5), 100) == everything


async def test_a_delayed_message_is_late_by_turns_of_the_loop() -> None:
    network = MemoryNetwork(3, delay=50)
    listener, link = network.listen("memory"), network.connect("memory")
    for _ in range(5):
        link.send([b"", b"x"])
    assert len(listener.inbox) < 5
    await settle(network)
    assert len(listener.inbox) == 5


async def test_faults_meet_only_the_messages_that_the_predicate_picks() -> None:
    network = MemoryNetwork(drop=1.0, faulty=only("Grow"))
    listener, link = network.listen("memory"), network.connect("memory")
    assert link.send(encode(Grow("r", 1, 1, (), (), ())))
    assert link.send(encode(Cancel("r")))
    peer, frames = await listener.receive()
    assert frames == encode(Cancel("r"))
    assert listener.receive_nowait() is None
    assert listener.send(peer, frames)
    assert await link.receive() == frames


async def test_a_killed_host_hears_nothing_and_its_peer_is_told_so() -> None:
    network = MemoryNetwork()
    listener = network.listen("memory")
    doomed, other = network.host("a").connect("memory"), network.host("b").connect("memory")
    doomed.send([b"", b"a"])
    other.send([b"", b"b"])
    (first, _), (second, _) = await listener.receive(), await listener.receive()
    network.kill("a")
    assert not listener.send(first, [b"", b"hello"])
    assert listener.send(second, [b"", b"hello"])
    assert not doomed.send([b"", b"hello"])
    assert doomed.receive_nowait() is None
    assert await other.receive() == [b"", b"hello"]
    again = network.host("a").connect("memory")
    assert again.send([b"", b"back"])
    assert (await listener.receive())[0] != first


async def test_what_is_under_way_to_a_killed_host_vanishes() -> None:
    network = MemoryNetwork(reorder=1.0)
    listener, link = network.listen("memory"), network.connect("memory")
    assert link.send([b"", b"x"])
    network.kill(link)
    await settle(network)
    assert listener.receive_nowait() is None


async def test_a_partition_tells_nobody_and_heals() -> None:
    network = MemoryNetwork()
    listener, link = network.listen("memory"), network.connect("memory")
    network.partition(link)
    assert link.send([b"", b"lost"])
    network.heal(link)
    assert link.send([b"", b"kept"])
    assert (await listener.receive())[1] == [b"", b"kept"]
    assert listener.receive_nowait() is None


async def test_a_link_connects_by_itself_when_the_verifier_comes_back() -> None:
    network = MemoryNetwork()
    link = network.connect("memory")
    assert not link.send([b"", b"x"])
    waiting = asyncio.create_task(link.writable())
    await asyncio.sleep(0)
    listener = network.listen("memory")
    await waiting
    assert link.send([b"", b"x"])
    old, _ = await listener.receive()
    listener.close()
    assert not link.send([b"", b"x"])
    with pytest.raises(ConnectionLost):
        await listener.receive()
    listener = network.listen("memory")
    assert link.send([b"", b"x"])
    assert (await listener.receive())[0] != old


async def test_two_verifiers_cannot_share_an_address() -> None:
    network = MemoryNetwork()
    network.listen("memory")
    with pytest.raises(ConfigError, match="address memory is in use"):
        network.listen("memory")


async def test_telemetry_reaches_those_who_subscribed_to_its_topic() -> None:
    network = MemoryNetwork()
    listener = network.listen("memory")
    everything, rounds = network.subscribe(listener.telemetry), network.subscribe(listener.telemetry, [b"RoundStats"])
    listener.publish(b"ActorUp", [b"", b"1"])
    listener.publish(b"RoundStats", [b"", b"2"])
    assert [await everything.receive(), await everything.receive()] == [[b"", b"1"], [b"", b"2"]]
    assert await rounds.receive() == [b"", b"2"]
    rounds.close()
    with pytest.raises(ConnectionLost):
        await rounds.receive()


async def test_a_reader_cancelled_as_a_message_arrives_leaves_it_to_the_next() -> None:
    network = MemoryNetwork()
    listener, link = network.listen("memory"), network.connect("memory")
    reader = asyncio.create_task(listener.receive())
    await asyncio.sleep(0)
    link.send([b"", b"x"])
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert (await listener.receive())[1] == [b"", b"x"]


async def test_a_full_inbox_holds_its_senders_back() -> None:
    network = MemoryNetwork()
    listener, link = network.listen("memory"), network.connect("memory")
    listener.inbox.capacity = 2
    assert [link.send([b"", b"x"]) for _ in range(3)] == [True, True, False]
