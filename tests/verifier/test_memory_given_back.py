"""Memory that serves nobody goes back to the system within a minute, and rounds are not held up by that."""

import asyncio

from protocols.messages import Sampling
from tests.world.clock import run
from tests.world.cluster import Cluster

PROMPT, FORWARD_S = (5, 9, 33), 0.05


def test_memory_goes_back_within_a_minute_of_the_last_request():
    async def story():
        async with Cluster(forward_s=FORWARD_S) as system:
            caller, target = await system.caller(), system.target
            beating = asyncio.ensure_future(caller.beat())
            for _ in range(3):
                await caller.generate(PROMPT, Sampling(max_tokens=40, ignore_eos=True))
                before = target.given_back
                await asyncio.sleep(60.0)
                assert target.given_back > before
            beating.cancel()

    run(story())


def test_rounds_are_held_up_for_it_at_most_every_half_minute():
    async def story():
        async with Cluster(forward_s=FORWARD_S) as system:
            caller, target = await system.caller(), system.target
            beating = asyncio.ensure_future(caller.beat())
            await caller.generate(PROMPT, Sampling(max_tokens=2000, ignore_eos=True), "vanilla")
            assert target.rounds >= 1999
            assert 2 <= target.given_back <= 2000 * FORWARD_S / 30 + 1
            beating.cancel()

    run(story())
