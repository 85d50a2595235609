"""The measured cells of a map (:mod:`tools.speedups.map`): one deployment for each kind of place, a relay for distance.

The verifier has the same CPUs in every cell, so that a second host's are not its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from actors.controller.climb import Measured
from actors.cost import Curve
from actors.settings import retrieves
from duoactor.bench.answers import Ours
from duoactor.bench.benchmark import BenchJob, Benchmark, Show
from duoactor.bench.places import FAR, HOST, INLINE
from duoactor.bench.streams import summarize_streams
from duoactor.client.async_client import AsyncClient
from duoactor.launch.cores import format_cpus
from duoactor.launch.deployment import Deployment
from duoactor.launch.wanted import Wanted
from protocols.address import parse
from protocols.errors import ConfigError
from protocols.messages import RoundStats
from tools.speedups.map import ALL, RETRIEVAL, SECOND, Cell, PayMap, modelled
from tools.speedups.relay import Relay

METHOD = "auto"


def places_wanted(wanted: Wanted, cpus: Sequence[int], port: int) -> Iterator[tuple[dict[str, float], Wanted]]:
    """Deployments for inline drafts, a drafter apart (behind a relay at ``port``), retrieval, and all of it; before
    it the places that are measured with that, and the relay's ms each way."""
    if not wanted.drafters or retrieves(wanted.drafters[0].draft):
        raise ConfigError("a map needs a draft model: give --draft one")
    drafter = wanted.drafters[0]
    half = sorted(cpus)[: max(1, len(cpus) // 2)]
    verifier = replace(wanted.verifier, threads=len(half), cpus=format_cpus(half))
    inline, without = replace(verifier, inline_draft=drafter.draft), replace(verifier, inline_draft="none")
    apart = (replace(drafter, connect=f"tcp://127.0.0.1:{port}"),)
    yield {INLINE.name: 0.0}, Wanted(inline, ())
    yield {place.name: place.away_ms or 0.0 for place in (HOST, *FAR)}, Wanted(without, apart)
    yield {RETRIEVAL: 0.0}, Wanted(without, ())
    yield {ALL: 0.0, SECOND: 1.0}, Wanted(inline, apart)


@dataclass
class Survey:
    """``deployed``: plans and address of what is wanted; ``bench``: a benchmark of a deployment."""

    wanted: Wanted
    cpus: Sequence[int]
    job: BenchJob
    deployed: Callable[[Wanted], Deployment]
    bench: Callable[[Deployment, BenchJob], Benchmark]
    cells: list[Cell] = field(default_factory=list)
    different: int = 0

    async def measure(self, show: Show) -> PayMap:
        async with Relay(str(parse(self.wanted.verifier.bind).path)) as relay:
            found: PayMap | None = None
            for places, wanted in places_wanted(self.wanted, self.cpus, relay.port):
                bench = self.bench(self.deployed(wanted), self.job)
                async with bench.answering(show) as answers:
                    ours = answers[METHOD]
                    assert isinstance(ours, Ours)
                    for place, away_ms in places.items():
                        relay.delay_s = away_ms / 1000
                        heard = Measured()
                        listening = asyncio.create_task(_listen(ours.client, heard))
                        try:
                            await self._measure(bench, ours, place, show)
                        finally:
                            listening.cancel()
                        if place == HOST.name:
                            found = await self._facts(ours.client, bench, heard)
            assert found is not None
            return replace(found, measured=modelled(self.cells, found.costs()), different=self.different)

    async def _measure(self, bench: Benchmark, ours: Ours, place: str, show: Show) -> None:
        bench.loads = []
        rows = dict.fromkeys((row.name for row in self.job.rows), ours)
        await bench.run(rows, lambda text, done, count: show(f"{place}: {text}", done, count))
        for line in summarize_streams(bench.results(complete=True)):
            self.different += line.different
            if line.name == METHOD:
                self.cells.append(
                    Cell(
                        place=place,
                        streams=line.streams,
                        tokens_per_second=round(line.tokens_per_second, 1),
                        speedup=round(line.speedup, 3),
                        low=round(line.low, 3),
                        high=round(line.high, 3),
                    )
                )

    async def _facts(self, client: AsyncClient, bench: Benchmark, heard: Measured) -> PayMap:
        results, status = bench.results(complete=True), await client.status()
        costs = heard.costs(Curve(dict(client.welcome.forward_us)), Curve({1: status.drafters[0].step_us}))
        return PayMap(
            command=results.command,
            machine=results.machine,
            models=results.models,
            forward_us=client.welcome.forward_us,
            step_us=status.drafters[0].step_us,
            beside_us=round(costs.beside, 1),
            agreement=round(costs.chance, 3),
        )


async def _listen(client: AsyncClient, heard: Measured) -> None:
    async for message in client.telemetry():
        if isinstance(message, RoundStats) and message.plan is not None:
            heard.observe(message)
