"""An AsyncClient against actors in one process, or against a verifier that says what a test has it say."""

import asyncio

from duoactor import AsyncClient
from protocols import wire
from protocols.messages import Generate, Heartbeat, Hello, ToVerifier, Welcome
from tests.world.caller import ADDRESS
from tests.world.cluster import Cluster
from tests.world.network import MemoryNetwork

WELCOME = Welcome("v1", 500, 2500, "")


def client_of(cluster: Cluster, **options) -> AsyncClient:
    return AsyncClient(ADDRESS, network=cluster.network.host("client"), **options)


class Puppet:
    """A verifier that says what a test has it say."""

    def __init__(self, network: MemoryNetwork) -> None:
        self.listener = network.listen(ADDRESS)
        self.decoder = wire.Decoder(ToVerifier)
        self.heard: list = []
        self.peer = b""
        self.welcomes = True
        self.task = asyncio.create_task(self._serve())

    async def _serve(self) -> None:
        while True:
            self.peer, frames = await self.listener.receive()
            message = self.decoder.decode(frames)
            self.heard.append(message)
            if isinstance(message, Hello) and self.welcomes:
                self.say(WELCOME)
            elif isinstance(message, Heartbeat):
                self.say(message)

    def say(self, message) -> None:
        self.listener.send(self.peer, wire.encode(message))

    def requests(self) -> list[Generate]:
        return [message for message in self.heard if isinstance(message, Generate)]


async def settled(condition) -> None:
    for _ in range(3000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never happened")


# --- at first --------------------------------------------------------------------------------------------------------
