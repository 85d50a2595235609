"""Telemetry costs nothing where nobody listens."""

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
