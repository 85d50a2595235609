"""What the controller commands while the world changes: docs/controller.png. From the root of the repository:

python -m tests.controller.picture docs/controller.png
"""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import pairwise

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes

from tests.controller.scenarios import WORLD
from tests.world.simulation import START, Simulation
from tests.world.timed import World

METHODS = ("duodecoding", "tree", "auto")
SLOW = replace(WORLD, step_us=5 * WORLD.step_us)
SCENES: list[tuple[str, World, int, int, bool]] = [  # what, world, tokens of the first stream, streams, controlled
    ("prose", WORLD, 300, 1, True),
    ("drafter\n5x slower", SLOW, 350, 1, True),
    ("as before", WORLD, 350, 1, True),
    ("controller killed", WORLD, 1800, 1, False),
    ("back", WORLD, 300, 1, True),
    ("text copies", WORLD, 1500, 1, True),
    ("second\nstream", WORLD, 900, 2, True),
    ("eight\nstreams", WORLD, 600, 8, True),
]
COPIES_FROM = START + sum(tokens for _, _, tokens, _, _ in SCENES[:5])


def drawn(method: str, axes: Axes) -> None:
    """Gamma and sequences as they were in force, and tokens per second of all streams."""
    sim = Simulation(WORLD, method, seed=100, copies_from=COPIES_FROM)
    spans = sim.play(*[scene[1:] for scene in SCENES])
    rounds = sim.trace.rounds
    times = [at for at, _ in rounds]
    said = {number: budget for _, number, budget in sim.trace.budgets}
    sequences, leaves = None, []
    for number in range(len(rounds)):
        sequences = said[number].sequences if number in said else sequences
        leaves.append(sequences)
    axes.step(times, [stats.gamma or 0 for _, stats in rounds], where="post", label="γ in force (0: rests)")
    axes.step(
        times, [one or float("nan") for one in leaves], where="post", label="sequences (in a tree: leaves a step)"
    )
    axes.set_ylabel(f"{method}\nγ, sequences")
    axes.set_ylim(0, 42)
    rate = axes.twinx()
    window = 0.4
    points = [times[0] + window * (i + 1) for i in range(int((times[-1] - times[0]) / window))]
    tokens = [sum(s.committed for at, s in rounds if low < at <= high) / window for low, high in pairwise(points)]
    rate.plot(points[1:], tokens, color="0.6", linewidth=0.8, label="tokens/s of all streams")
    rate.set_ylim(bottom=0)
    rate.set_ylabel("tokens/s")
    for (what, *_), (begin, end) in zip(SCENES, spans, strict=True):
        axes.axvline(times[min(begin, len(times) - 1)], color="0.85", linewidth=0.8)
        middle = (times[begin] + times[min(end, len(times)) - 1]) / 2
        axes.text(middle, 41, what, ha="center", va="top", fontsize=7)
    if not axes.figure.legends:
        lines, names = axes.get_legend_handles_labels()
        grey, also = rate.get_legend_handles_labels()
        axes.figure.legend([*lines, *grey], [*names, *also], loc="lower center", ncols=3, fontsize=8)


def main() -> None:
    figure, all_axes = pyplot.subplots(len(METHODS), 1, figsize=(12, 9))
    for method, axes in zip(METHODS, all_axes, strict=True):
        drawn(method, axes)
    all_axes[-1].set_xlabel("seconds (simulated: the real actors on a virtual clock)")
    figure.tight_layout(rect=(0, 0.03, 1, 1))
    figure.savefig(sys.argv[1], dpi=110)


if __name__ == "__main__":
    main()
