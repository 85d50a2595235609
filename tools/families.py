"""Write the table of docs/families.md: what each family is by its description, and its models in families.json.

python -m tools.families
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from actors.engines.decoder.configuration import described
from actors.engines.decoder.spec import CONVOLUTION, DELTA, SCAN, SELECTIVE, UNWEIGHTED, DecoderSpec
from tests.engines.families import FAMILIES, config_of
from tools.pages import DOCS, renewed

PAGE = DOCS / "families.md"
KEPT = json.loads(Path(__file__).with_suffix(".json").read_text())
RECURRENT = {DELTA: "gated delta net", SCAN: "Mamba 2", CONVOLUTION: "short convolutions", SELECTIVE: "Mamba 1"}


def special(spec: DecoderSpec) -> list[str]:
    """What its layers have beyond Llama's."""
    attention, norms = spec.attentions, [layer.norms for layer in spec.layers]
    found = {
        "latent attention": any(one.latent for one in attention),
        **{text: any(one.kind == kind for one in spec.recurrent) for kind, text in RECURRENT.items()},
        "learned positions": spec.positions is not None,
        "attention sinks": any(one.sinks for one in attention),
        "soft caps": any(one.cap for one in attention),
        "sliding windows": any(one.window and not one.chunked for one in attention),
        "chunked attention": any(one.chunked for one in attention),
        "layers that share keys and values": any(one.shares is not None for one in attention),
        "gates": any(one.gated for one in attention),
        "norms behind rotations": any(one.norms is not None and one.norms.turned for one in attention),
        "norms without weights": any(UNWEIGHTED in (one.attention, one.mlp) for one in norms),
        "attention and MLP side by side": any(layer.parallel for layer in spec.layers),
        "experts": bool(spec.experts),
    }
    return [text for text, has in found.items() if has]


def families() -> Iterable[str]:
    yield "| architecture | models | what is special |\n|---|---|---|"
    for name in FAMILIES:
        what = [*special(described(config_of(name))), *KEPT[name].get("also", ())]
        yield f"| `{name}` | {KEPT[name]['models']} | {', '.join(what)} |"


def page(text: str) -> str:
    """The page with its table as it is now."""
    return renewed(text, "families", families())


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
