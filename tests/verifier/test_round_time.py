"""What a round takes is asked to tell whether drafts pay; what came with requests in the meantime is none of it."""

import asyncio

from actors.verifier.sources.retrieval import Sources
from protocols.messages import Sampling
from tests.world.clock import run
from tests.world.cluster import Cluster

READING_S = 1.0


class SlowMemory(Sources):
    """Another text is always there to be read, and takes a second of ``clock``."""

    def __init__(self):
        super().__init__()
        self.spent_s = 0.0

    def read(self):
        self.spent_s += READING_S
        return True


def test_reading_finished_texts_is_no_part_of_a_round():
    memory, took = SlowMemory(), []

    async def story():
        async with Cluster(sources=memory, forward_s=0.01) as system:
            loop, verifier = asyncio.get_running_loop(), system.verifier
            verifier.clock = lambda: loop.time() + memory.spent_s
            verifier.judge.of_own = lambda job, outcomes, took_us, forward_us: took.append(took_us)
            caller = await system.caller()
            await caller.generate((5, 6, 7), Sampling(max_tokens=20, ignore_eos=True))

    run(story())
    assert len(took) > 15
    assert all(10_000 <= one < 1e6 * READING_S / 2 for one in took[1:])
