"""A verifier that is stopped tells its clients, and closes its sockets when they have heard it."""

import asyncio

import pytest

from actors.cost import CostModel
from actors.settings import VerifierSettings
from actors.verifier.compute import InlineCompute
from actors.verifier.context import Equipment
from actors.verifier.loop import Verifier
from protocols.messages import Drain, Goodbye
from protocols.zeromq import ZmqNetwork
from tests.world.caller import Caller
from tests.world.cluster import Cluster
from tests.world.models import ToyCodec, ToyLanguage, ToyTarget


class Here:
    """Callers on a network that has no hosts."""

    def __init__(self, address: str) -> None:
        self.address, self.network = address, ZmqNetwork()

    def host(self, name: str):
        return self

    def connect(self, address: str):
        return self.network.connect(self.address)


async def test_a_client_that_reads_late_hears_of_the_end_before_the_connection_is_closed():
    """ZeroMQ drops what was not read when a connection ends, so the verifier must not be the first to end it."""
    language, network, stop = ToyLanguage(), ZmqNetwork(), asyncio.Event()
    listener = network.listen("tcp://127.0.0.1:0")
    equipment = Equipment(ToyTarget(language), ToyCodec(), CostModel({1: 1000.0}), InlineCompute())
    verifier = Verifier(VerifierSettings(), equipment, listener)
    serving = asyncio.create_task(verifier.run(stop))
    callers = Here(listener.address)
    caller = Caller(callers)
    await caller.link.writable()
    await caller.hello()
    stop.set()
    while not verifier.state.draining:
        await asyncio.sleep(0)
    await asyncio.sleep(0.1)  # it has had the time to close
    assert not serving.done()
    assert await caller.next() == Drain()
    caller.send(Goodbye())
    await serving
    callers.network.close()
    network.close()


async def test_clients_that_do_not_answer_hold_up_the_end_for_a_second_only():
    async with Cluster() as cluster:
        silent = Caller(cluster.network)
        await silent.hello()
        cluster.stops["verifier"].set()
        await cluster.tasks["verifier"]
        assert await silent.next() == Drain()


async def test_a_client_that_vanished_is_not_waited_for():
    async with Cluster() as cluster:
        vanished = Caller(cluster.network, "vanished")
        await vanished.hello()
        cluster.network.kill("vanished")
        cluster.stops["verifier"].set()
        await cluster.tasks["verifier"]
        assert not cluster.verifier.state.clients


async def test_a_verifier_that_fails_says_nothing_and_its_clients_wait_for_the_next():
    async with Cluster() as cluster:
        caller = await cluster.caller()
        cluster.verifier.learning.tell = lambda: 1 / 0
        with pytest.raises(ZeroDivisionError):
            await cluster.tasks.pop("verifier")
        unread = iter(caller.link.receive_nowait, None)
        assert Drain() not in [caller.decoder.decode(frames) for frames in unread]
