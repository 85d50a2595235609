"""What a verifier says of where its telemetry is may be nonsense."""

import asyncio

import pytest

from actors.telemetry import Subscription
from protocols.messages import ActorUp, Role, Welcome
from protocols.wire import encode
from protocols.zeromq import ZmqNetwork

WHERE = "tcp://127.0.0.1:7601"


def announcing(telemetry: str) -> Welcome:
    return Welcome("v", 500, 2500, telemetry)


@pytest.mark.parametrize("nonsense", ["text", "tcp://nowhere", "tcp://a.example:1", "ipc://", "tcp://0.0.0.0:x"])
async def test_an_address_that_is_none_ends_nobody_and_the_next_one_is_listened_to(nonsense):
    network = ZmqNetwork()
    try:
        listener = network.listen("tcp://127.0.0.1:0")
        subscription = Subscription(network, WHERE, announcing(nonsense))
        subscription.follow(announcing(listener.telemetry))
        subscription.follow(announcing(nonsense))
        subscription.follow(announcing(listener.telemetry))
        message = ActorUp(Role.DRAFTER, "d")
        receiving = asyncio.create_task(subscription.receive())
        while not receiving.done():
            listener.publish(b"ActorUp", encode(message))
            await asyncio.sleep(0.01)
        assert await receiving == message
        subscription.close()
    finally:
        network.close()
