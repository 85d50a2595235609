"""A verifier's end and a peer's on the real network, joined."""

from __future__ import annotations

from protocols.ends import ZmqLink, ZmqListener
from protocols.zeromq import ZmqNetwork

TCP = "tcp://127.0.0.1:0"


async def pair(network: ZmqNetwork, address: str) -> tuple[ZmqListener, ZmqLink]:
    listener = network.listen(address)
    link = network.connect(listener.address)
    await link.writable()
    return listener, link
