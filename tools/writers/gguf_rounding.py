"""How far rounded inputs move the logits of mixtures in GGUF files, and how far with the same experts.

python -m tools.writers.gguf_rounding [NAME ...]

For each mixture in tests/data/gguf_families, in Q8_0: the relative distance of our logits, and of transformers' with
inputs rounded, from those that transformers computes from the dequantised weights; then with the experts chosen as if
nothing was rounded.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from actors.engines.weights.gguf import GGUF
from tests.engines.weights.gguf_files import FILES, quantised, unpacked
from tests.engines.weights.rounded import both
from tools.writers.gguf_families import IDS


def main(*names: str) -> None:
    print("| file | ours | transformers, inputs rounded | the same experts |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as scratch:
        for name in names or FILES:
            source = Path(unpacked(name, Path(scratch)))
            if not GGUF(source).of_architecture("expert_count"):
                continue
            file = str(quantised(source.with_suffix(".q8_0.gguf"), source, {"weight": "Q8_0"}))
            ours, rounded, exact = both(file, [IDS])
            _, same, _ = both(file, [IDS], forced=True)
            apart = (float((each - exact).norm() / exact.norm()) for each in (ours, rounded, same))
            print(f"| {name} | {' | '.join(f'{one:.3f}' for one in apart)} |", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
