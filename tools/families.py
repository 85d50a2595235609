"""Write the tables of docs/families.md: what runs each family by the code, and what was tried, kept in families.json.

python -m tools.families
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable
from pathlib import Path

from actors.engines.decoder.configuration import spec_of
from actors.engines.decoder.spec import CONVOLUTION, DELTA, SCAN, SELECTIVE, UNWEIGHTED, DecoderSpec
from tests.engines.families import FAMILIES, config_of
from tools.pages import DOCS, renewed

PAGE = DOCS / "families.md"
KEPT = json.loads(Path(__file__).with_suffix(".json").read_text())
RECURRENT = {DELTA: "gated delta net", SCAN: "Mamba 2", CONVOLUTION: "short convolutions", SELECTIVE: "Mamba 1"}
RESULTS = {
    "equal": "On the generic engine, texts equal to those of transformers, plainly and in trees",
    "refused": "Refused with a sentence when they are loaded, for their attention or their state",
    "unbuilt": "Not tried, since no small random model of them could be made",
}


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


def engines() -> Iterable[str]:
    yield "| architecture | engine | models | what is special |\n|---|---|---|---|"
    for name in FAMILIES:
        spec, kept = spec_of(config_of(name)), KEPT["families"][name]
        what = [*([] if spec is None else special(spec)), *kept.get("also", ())]
        yield f"| `{name}` | {'generic' if spec is None else 'fused'} | {kept['models']} | {', '.join(what)} |"


def others() -> Iterable[str]:
    tried = KEPT["tried"]
    yield f"With transformers {tried['transformers']}, a small random model of each."
    for result, text in RESULTS.items():
        names = ", ".join(f"`{name}`" for name in tried[result])
        yield "\n" + textwrap.fill(f"{text}: {names}.", 120, break_long_words=False, break_on_hyphens=False)


def page(text: str) -> str:
    """The page with its tables as they are now."""
    return renewed(renewed(text, "engines", engines()), "others", others())


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
