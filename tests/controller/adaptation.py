"""The controller against the best fixed setting, for every method, change, seed and kind of compute: the ratio of
tokens per second, what the controller said last, and the setting that was best. From the root of the repository:

python -m tests.controller.adaptation [METHOD ...] [--seeds 100-109] [--changes CHANGE ...]
"""

from __future__ import annotations

import argparse

from tests.controller.scenarios import METHODS, SCENARIOS, tried


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("methods", nargs="*", default=METHODS)
    parser.add_argument("--seeds", default="100-109")
    parser.add_argument("--changes", nargs="*", default=list(SCENARIOS))
    options = parser.parse_args()
    first, last = map(int, options.seeds.split("-"))
    ratios = []
    for method in options.methods:
        for change in options.changes:
            for seed in range(first, last + 1):
                for inline in (False, True):
                    found = tried(method, SCENARIOS[change], seed, inline)
                    ratios.append(found.ratio)
                    kind = "inline" if inline else "thread"
                    ends = found.trace.budgets[-1][2]
                    said = (ends.gamma, ends.sequences, ends.wait_us)
                    best = (found.best.gamma, found.best.sequences, found.best.wait_us)
                    print(f"{found.ratio:.3f} {method:21}{change:36}{seed} {kind} said {said} best {best}", flush=True)
    below = sum(ratio < 0.95 for ratio in ratios)
    print(f"{len(ratios)} comparisons, {below} below 0.95, lowest {min(ratios):.3f}")


if __name__ == "__main__":
    main()
