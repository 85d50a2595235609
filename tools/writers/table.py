"""Write the table of docs/weights.md: what was read of the files in tests/data/writers, and what was refused.

Run from the root of the project: ``python tools/writers/table.py``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from actors.engines.weights.faults import quantisation_of
from actors.engines.weights.gguf_models import GGUFCheckpoint
from actors.engines.weights.quantised import read_weights
from actors.engines.weights.tensor_files import TensorFiles
from protocols.errors import ModelError

WRITTEN, PAGE = Path("tests/data/writers"), Path("docs/weights.md")
BEGIN, END = "<!-- table of tools/writers/table.py -->", "<!-- end of the table -->"


def status(model: Path) -> str:
    """Whether a checkpoint is read, and whether its matrices are multiplied as they lie."""
    try:
        if files := sorted(model.glob("*.gguf")):
            weights: Mapping[str, Any] = GGUFCheckpoint(files[0]).own()
        else:
            scheme = quantisation_of(model)
            assert scheme is not None
            weights = dict(read_weights(TensorFiles([model / "model.safetensors"]), scheme))
    except ModelError:
        return "refused"
    packed = [weight for weight in weights.values() if not isinstance(weight, Tensor)]
    return "read" if any(weight.blocks() is not None for weight in packed) else "read, computed from numbers"


def rows() -> Iterator[str]:
    found: dict[tuple[str, str], list[str]] = {}
    for place in sorted(WRITTEN.iterdir()):
        if place.is_dir():
            said = json.loads((place / "said.json").read_text())
            found.setdefault((said["tool"], status(place / "model")), []).append(said["call"])
    yield "| tool | | checkpoints |"
    yield "|---|---|---|"
    for (tool, what), calls in sorted(found.items()):
        yield f"| {tool} | {what} | {'; '.join(calls)} |"


if __name__ == "__main__":
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    PAGE.write_text("\n".join([before + BEGIN, "", *rows(), "", END]) + rest.partition(END)[2])
