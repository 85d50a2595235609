"""The climb beside a simple rule of others: drafts one longer than those of a request that were accepted, on average.

By hand: ``python -m tests.controller.compare_averages``. Goodput in virtual time, the mean of several texts, over that
of the best fixed gamma.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean

from actors.estimate import Estimate
from protocols.messages import Budget, DraftStats, Kind, RoundStats
from tests.world.simulation import Fixed, Simulation, World

GAMMAS = (2, 4, 8, 12, 16)
SETTLES, TOKENS = 200, 120  # tokens of the first stream
LONE = 800  # tokens of a stream that is alone, at least: 120 are 35 rounds, which scatter by some 5%
TEXTS = range(3, 7)  # seeds
SKILLS = (0.5, 0.85)


@dataclass
class Average:
    """The control of a load by what its requests' drafts were accepted, on average."""

    method: str
    memory: float = 16.0  # rounds of a request
    accepted: dict[str, Estimate] = field(default_factory=dict)  # by request
    revision: int = 0

    def observe_round(self, stats: RoundStats) -> None:
        self.accepted.setdefault(stats.rid, Estimate(memory=self.memory)).add(stats.accepted)

    def observe_draft(self, stats: DraftStats) -> None: ...
    def calibrated(self, forward_us: object) -> None: ...
    def decide(self, now_s: float = 0.0) -> list[Budget]:
        if not self.accepted:
            return []
        self.revision += 1
        mean = sum(one.mean for one in self.accepted.values()) / len(self.accepted)
        return [Budget(self.revision, 10_000, Kind(self.method), gamma=math.ceil(mean) + 1)]


def goodput(
    world: World, method: str, streams: int, control: Callable[[], object] | None = None, texts: Sequence[int] = TEXTS
) -> float:
    """Tokens per second, once a control has settled."""
    rates = []
    for seed in texts:
        sim = Simulation(world, method, control and control(), seed=seed)
        (_, (begin, end)) = sim.play((world, SETTLES, streams), (world, max(TOKENS, LONE // streams), streams))
        rates.append(sim.rate(begin, end))
    return fmean(rates)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--method", default="pearl")
    parser.add_argument("--streams", type=int, nargs="*", default=[1, 4, 8, 16, 32])
    options = parser.parse_args()
    print("| streams | agreement | best fixed gamma | climb | average |\n|---|---|---|---|---|", flush=True)
    for streams in options.streams:
        for skill in SKILLS:
            world = World(skill=skill)
            fixed = {g: goodput(world, options.method, streams, partial(Fixed, options.method, g)) for g in GAMMAS}
            most, best = max((rate, gamma) for gamma, rate in fixed.items())
            climb = goodput(world, options.method, streams) / most
            average = goodput(world, options.method, streams, partial(Average, options.method)) / most
            print(f"| {streams} | {skill} | {best} | {climb:.2f} | {average:.2f} |", flush=True)


if __name__ == "__main__":
    main()
