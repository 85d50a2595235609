"""The climb beside a simple rule of others: drafts one longer than those of a request that were accepted, on average.

By hand: ``python -m tests.controller.compare_averages``. Goodput in virtual time, over that of the best fixed gamma.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass, field

from actors.estimate import Estimate
from protocols.messages import Budget, DraftStats, Kind, RoundStats
from tests.world.simulation import Fixed, Simulation, World

GAMMAS = (1, 2, 4, 8, 16)
SETTLES, TOKENS = 200, 120  # tokens of the first stream
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


def goodput(world: World, method: str, control: object | None, streams: int) -> float:
    """Tokens per second, once a control has settled."""
    sim = Simulation(world, method, control, seed=3)
    (_, (begin, end)) = sim.play((world, SETTLES, streams), (world, TOKENS, streams))
    return sim.rate(begin, end)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--method", default="pearl")
    parser.add_argument("--streams", type=int, nargs="*", default=[1, 4, 8, 16, 32])
    options = parser.parse_args()
    print("| streams | agreement | best fixed gamma | climb | average |\n|---|---|---|---|---|", flush=True)
    for streams in options.streams:
        for skill in SKILLS:
            world = World(skill=skill)
            fixed = {g: goodput(world, options.method, Fixed(options.method, g), streams) for g in GAMMAS}
            best = max(fixed, key=lambda gamma: fixed[gamma])
            climb = goodput(world, options.method, None, streams) / fixed[best]
            average = goodput(world, options.method, Average(options.method), streams) / fixed[best]
            print(f"| {streams} | {skill} | {best} | {climb:.2f} | {average:.2f} |", flush=True)


if __name__ == "__main__":
    main()
