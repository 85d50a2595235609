"""Telemetry costs nothing where nobody listens, and little where somebody does."""

import asyncio

from protocols import wire
from protocols.messages import RoundStats, Sampling
from tests.world.clock import run
from tests.world.cluster import Cluster


def test_a_round_is_encoded_for_telemetry_only_while_somebody_listens(monkeypatch):
    encoded, encode = [], wire.encode
    monkeypatch.setattr(wire, "encode", lambda message: encoded.append(type(message)) or encode(message))

    async def go() -> tuple[int, int]:
        async with Cluster() as cluster:
            caller = await cluster.caller()
            await caller.generate([5, 6, 7], Sampling(max_tokens=20), "vanilla")
            unheard = encoded.count(RoundStats)
            feed = cluster.network.subscribe(cluster.verifier.listener.telemetry)
            await caller.generate([5, 6, 8], Sampling(max_tokens=20), "vanilla")
            feed.close()
            return unheard, encoded.count(RoundStats)

    unheard, heard = run(go())
    assert unheard == 0 < heard


def test_short_rounds_are_published_together_with_the_chunk_that_they_share():
    published = []

    async def go() -> tuple[int, int]:
        async with Cluster(forward_s=0.001, chunk_s=0.02) as cluster:
            caller, clock = await cluster.caller(), asyncio.get_running_loop().time
            cluster.verifier.publish = lambda message: published.append((type(message), clock()))
            chunks = await caller.generate([5, 6, 7] * 9, Sampling(max_tokens=90), "pld")
            return len(chunks), chunks[-1].stats.rounds

    chunks, rounds = run(go())
    at = [when for kind, when in published if kind is RoundStats]
    assert len(at) == rounds > 4 * chunks >= 4 * len({*at})
