"""Pieces of a prompt beside streams that decode."""

import asyncio

from actors.verifier.scheduler import LEAST_PIECE, Scheduler
from protocols.messages import Generate, Sampling
from tests.world.clock import run
from tests.world.cluster import Cluster
from tests.world.models import ToyTarget


def test_while_streams_wait_for_drafts_a_prompt_has_the_time_of_a_round(monkeypatch):
    rows: list[int] = []
    piece = Scheduler._piece

    def watched(self, stream):
        batch = piece(self, stream)
        rows.append(batch.piece_rows)
        return batch

    async def main() -> None:
        async with Cluster(target=ToyTarget(slots=8192, mixes_prompts=True), forward_s=0.001) as cluster:
            cluster.start_drafter("d1")
            await cluster.connected("d1")
            caller = await cluster.caller()
            caller.send(Generate("a", (1, 2, 3), sampling=Sampling(max_tokens=300, ignore_eos=True), method="sps"))
            await asyncio.sleep(0.05)
            monkeypatch.setattr(Scheduler, "_piece", watched)
            caller.send(Generate("b", (5,) * 2000, sampling=Sampling(max_tokens=3), method="vanilla"))
            await caller.collect("b")

    run(main())
    assert rows and min(rows) >= LEAST_PIECE
