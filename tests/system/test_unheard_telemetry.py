"""Telemetry costs nothing where nobody listens, and little where many do."""

import asyncio

from protocols import wire
from protocols.messages import RoundStats, Sampling
from tests.world.clock import run
from tests.world.cluster import Cluster


def test_a_round_is_encoded_for_telemetry_only_while_somebody_listens_and_once_for_a_hundred(monkeypatch):
    encoded, encode = [], wire.encode
    monkeypatch.setattr(wire, "encode", lambda message: encoded.append(type(message)) or encode(message))

    async def go() -> list[int]:
        found = []
        async with Cluster() as cluster:
            caller = await cluster.caller()
            for watchers in (0, 1, 100):
                encoded.clear()
                feeds = [cluster.network.subscribe(cluster.verifier.listener.telemetry) for _ in range(watchers)]
                await caller.generate([5, 6, 7 + watchers % 50], Sampling(max_tokens=20, ignore_eos=True), "vanilla")
                found.append(encoded.count(RoundStats))
                for feed in feeds:
                    feed.close()
        return found

    unheard, heard, crowded = run(go())
    assert unheard == 0 < heard == crowded


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
