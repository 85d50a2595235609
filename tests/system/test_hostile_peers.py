"""Any messages that can be decoded, from peers of every role, in any order: nothing ends, nothing grows.

``python -m tests.system.test_hostile_peers 1000000`` sends a million from each role and says what they cost.
"""

from __future__ import annotations

import asyncio
import sys
import time
import typing
from collections import deque
from dataclasses import replace
from pathlib import Path

import pytest

from actors.controller.loop import Controller
from protocols import wire
from protocols.messages import (
    Goodbye,
    Message,
    Sampling,
    Status,
    StatusReport,
    Telemetry,
    ToDrafter,
)
from tests.world.caller import tokens_of
from tests.world.clock import run
from tests.world.cluster import Cluster
from tests.world.desk import Desk
from tests.world.extremes import Extremes
from tests.world.hostile import DECODERS, Hostile
from tests.world.models import INFO, ToyLanguage

BURST = 50  # messages sent before the verifier has a turn
LANGUAGE = ToyLanguage(eos_rate=0.02)
SMALL = replace(INFO, max_context=120)


async def rant(count: int, seed: int, roles=tuple(DECODERS), report=lambda sent: None) -> dict[str, int]:
    """So many messages from each role. Returns what the verifier counted."""
    cluster = Cluster(language=LANGUAGE, forward_s=0.001)
    cluster.target.slots, cluster.target.info = 4000, SMALL
    cluster.target.batches = deque(maxlen=10)  # what grows is to be the verifier's
    async with cluster:
        cluster.start_drafter("d1")
        cluster.start_controller()
        await cluster.connected("d1")
        feed = cluster.network.subscribe(cluster.verifier.listener.telemetry)
        telemetry = wire.Decoder(Telemetry)
        hostile = [Hostile(cluster.network, role, seed + i) for i, role in enumerate(roles)]
        for sent in range(0, count, BURST):
            for peer in hostile:
                peer.rave(min(BURST, count - sent))
            await asyncio.sleep(0.01)
            for peer in hostile:
                peer.listen()
            while len(feed.inbox):
                telemetry.decode(await feed.receive())
            for name, task in cluster.tasks.items():
                assert not task.done() or name == "d1", f"{name} ended"  # the drafter may have been drained
            report(sent)
        for peer in hostile:
            peer.send(Goodbye())
        await asyncio.sleep(20.0)  # until the honest ones are known again and the rest has ended
        caller = await cluster.caller()
        chunks = await caller.generate((5, 9, 33), Sampling(max_tokens=30, ignore_eos=True), "sps")
        assert tokens_of(chunks) == LANGUAGE.continuation((5, 9, 33), Sampling(max_tokens=30, ignore_eos=True))
        await asyncio.sleep(1.0)
        caller.send(Status("s"))
        status = await caller.until(lambda m: isinstance(m, StatusReport))
        assert not status.requests and cluster.target.kv_used == 0
        return status.counters


@pytest.mark.parametrize("seed", range(3))
def test_whatever_can_be_decoded_ends_nobody_and_every_answer_can_be_decoded(seed):
    counters = run(rant(1500, 10 * seed))
    assert counters["out_of_role"] > 0 and counters["fenced_lease"] > 0 and counters["generation_tokens"] >= 30


def test_a_drafter_survives_whatever_a_verifier_says():
    async def go():
        async with Desk() as desk:
            extremes = Extremes(5)
            kinds = [one for one in typing.get_args(ToDrafter) if one.__name__ not in ("Refuse", "Drain", "Welcome")]
            for _ in range(60):
                desk.send(*(extremes.message(kinds) for _ in range(BURST)))
                await desk.settle(0.01)
                assert not desk.running.done()
            assert len(desk.drafter.leases) <= 5 and len(desk.drafter.held.declined) <= 1000

    run(go())


def test_the_controller_survives_whatever_is_published():
    async def go():
        async with Cluster(language=LANGUAGE) as cluster:
            controller: Controller = cluster.start_controller()
            await asyncio.sleep(1.0)
            extremes = Extremes(6)
            for _ in range(60):
                for _ in range(BURST):
                    message: Message = extremes.message(typing.get_args(Telemetry))
                    cluster.verifier.publish(message)
                await asyncio.sleep(0.05)
                assert not cluster.tasks["controller"].done(), "the controller ended"
            return controller

    run(go())


def resident() -> int:
    """Bytes of memory that this process holds now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def main(count: int) -> None:
    began, at_first, most = time.monotonic(), 0, 0

    def report(sent: int) -> None:
        nonlocal at_first, most
        if sent == 1000 - 1000 % BURST:  # imports and first allocations are over
            at_first = resident()
        most = max(most, resident() - at_first if at_first else 0)
        if sent % 50_000 == 0:
            print(f"{sent:9,} from each role, {most / 1e6:6.1f} MB more, {time.monotonic() - began:5.0f} s", flush=True)

    counters = run(rant(count, 1, report=report))
    print(f"{count:,} messages from each role: at most {most / 1e6:.1f} MB more than after the first thousand")
    print(dict(sorted(counters.items())))


if __name__ == "__main__":
    main(int(sys.argv[1]))
