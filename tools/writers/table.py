"""Write the lists of docs/weights.md: what GGUF files may hold, and what was read of the files in tests/data/writers.

python -m tools.writers.table
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from actors.engines.weights.faults import quantisation_of
from actors.engines.weights.formats import KINDS
from actors.engines.weights.gguf_architectures import ARCHITECTURES
from actors.engines.weights.gguf_models import GGUFCheckpoint
from actors.engines.weights.quantised import read_weights
from actors.engines.weights.tensor_files import TensorFiles
from tools.pages import DOCS, renewed

WRITTEN, PAGE = Path(__file__).parents[2] / "tests/data/writers", DOCS / "weights.md"

MODELS = {
    "llama": "also Mistral, Mixtral, SmolLM2 and Yi",
    "mistral3": "Ministral 3, Mistral Small 3",
    "deepseek2": "V2, V3, GLM 4.7 Flash",
    "mistral4": "Mistral Small 4",
    "hy_v3": "Hy3",
}


def status(place: Path) -> str:
    """Whether a checkpoint is read, and whether its matrices are multiplied as they lie."""
    if not (place / "numbers.safetensors").exists():
        return "refused"
    model = place / "model"
    if files := sorted(model.glob("*.gguf")):
        weights: Mapping[str, Any] = GGUFCheckpoint(files[0]).own()
    else:
        scheme = quantisation_of(model)
        assert scheme is not None
        weights = dict(read_weights(TensorFiles([model / "model.safetensors"]), scheme))
    blocks = [weight.blocks() for weight in weights.values() if not isinstance(weight, Tensor)]
    held = [found[0].on_cpu for found in blocks if found is not None]
    where = "" if held else ", computed from numbers"
    return f"read{where if any(held) or not held else ', computed from numbers on a CPU'}"


def rows() -> Iterator[str]:
    found: dict[tuple[str, str], list[str]] = {}
    for place in sorted(WRITTEN.iterdir()):
        if place.is_dir():
            said = json.loads((place / "said.json").read_text())
            found.setdefault((said["tool"], status(place)), []).append(said["call"])
    yield "| tool | | checkpoints |"
    yield "|---|---|---|"
    for (tool, what), calls in sorted(found.items()):
        yield f"| {tool} | {what} | {'; '.join(calls)} |"


def gguf() -> Iterator[str]:
    """What may stand in a GGUF file."""
    models = [f"`{name}`" + (f" ({MODELS[name]})" if name in MODELS else "") for name in ARCHITECTURES]
    for what, names in (("architectures", models), ("blocks", [kind.name for kind in KINDS.values()])):
        yield textwrap.fill(f"- {what}: {', '.join(names)}", 120, subsequent_indent="  ", break_on_hyphens=False)


def page(text: str) -> str:
    """The page with its lists as they are now."""
    return renewed(renewed(text, "gguf", gguf()), "checkpoints", rows())


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
