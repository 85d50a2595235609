"""``auto`` over plain decoding by load and temperature, in virtual time: it never loses.

By hand: ``python -m tests.controller.compare_loads``. Nothing repeats itself in these texts, so that only a drafter
helps; its agreement falls with the temperature, as the bundled pair's does (docs/experiments/policy.md).
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace

from tests.world.simulation import Simulation, World

SKILLS: Mapping[float, float] = {0.0: 0.675, 0.7: 0.548, 1.0: 0.492}  # by temperature
MACHINES: Mapping[str, World] = {
    "a GPU": World(forward=10_000.0, row=30.0, step=500.0),
    "two cores": World(forward=2_700.0, row=700.0, step=100.0, leaf=15.0),
    "useless drafts": World(forward=10_000.0, row=300.0, boast=0.5),
}
STREAMS = (1, 2, 4, 8, 16, 32, 64)
SETTLES, TOKENS = 40, 100  # of the first stream


def world(machine: str, temperature: float) -> World:
    found = MACHINES[machine]
    skill = 0.0 if found.boast else SKILLS[temperature]
    return replace(found, skill=skill)


def rate(machine: str, temperature: float, streams: int, method: str) -> float:
    """Tokens per second of all streams together."""
    costs = world(machine, temperature)
    sim = Simulation(costs, method, seed=7, inline=True, temperature=temperature)
    _, (begin, end) = sim.play((costs, SETTLES, streams), (costs, TOKENS, streams))
    return sim.rate(begin, end)


def ratio(machine: str, temperature: float, streams: int) -> float:
    return rate(machine, temperature, streams, "auto") / rate(machine, temperature, streams, "vanilla")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--streams", type=int, nargs="*", default=STREAMS)
    parser.add_argument("--temperatures", type=float, nargs="*", default=list(SKILLS))
    parser.add_argument("--machines", nargs="*", default=list(MACHINES))
    options = parser.parse_args()
    print(f"| | temperature | {' | '.join(map(str, options.streams))} |")
    print(f"|---|---|{'---|' * len(options.streams)}", flush=True)
    for machine in options.machines:
        for temperature in options.temperatures:
            cells = [f"{ratio(machine, temperature, streams):.2f}" for streams in options.streams]
            print(f"| {machine} | {temperature:g} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
