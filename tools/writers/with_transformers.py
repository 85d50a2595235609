"""Checkpoints in FP8 as DeepSeek and Qwen publish them, by transformers' own quantiser (it needs accelerate).

The quantiser asks for a GPU before it begins, because products need one. Quantising is torch's arithmetic on any
device, and writing too: the question is left out here, and nothing else.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import base
import torch
from transformers import AutoModelForCausalLM, FineGrainedFP8Config
from transformers.quantizers.quantizer_finegrained_fp8 import FineGrainedFP8HfQuantizer

FineGrainedFP8HfQuantizer.validate_environment = lambda self, *args, **kwargs: None


def numbers(written: Path) -> dict[str, Any]:
    """The tool's own, which it dequantises to where there is no GPU."""
    quantisation = FineGrainedFP8Config(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(written, dtype=torch.float32, quantization_config=quantisation)
    found = {name: weight.float() for name, weight in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        found.pop("lm_head.weight")
    return found


def write(into: Path, call: str, read: bool = True, sizes: dict[str, Any] | None = None, **options: Any) -> None:
    changes = sizes or {}
    with tempfile.TemporaryDirectory() as place:
        plain, written = base.made(Path(place) / "plain", **changes), Path(place) / "written"
        asked = FineGrainedFP8Config(**{"weight_block_size": (32, 32), **options})
        AutoModelForCausalLM.from_pretrained(
            plain, dtype=torch.bfloat16, quantization_config=asked, device_map="cpu"
        ).save_pretrained(written)
        said = {"tool": f"transformers {version('transformers')}", "call": f"FineGrainedFP8Config, {call}"}
        base.keep(written, into, numbers(written) if read else {}, said, whole=True, **changes)


UNTIED = {"tie_word_embeddings": False}
CASES: dict[str, Callable[[Path], None]] = {
    "fp8-block": partial(write, call="blocks of 32 x 32"),
    "fp8-powers": partial(write, call="scale_fmt ue8m0", scale_fmt="ue8m0"),
    "fp8-tensor": partial(write, call="one scale", weight_block_size=None),
    "fp8-static": partial(write, call="activation_scheme static", activation_scheme="static"),
    "fp8-ignore": partial(
        write, call="modules_to_not_convert", modules_to_not_convert=["k_proj", "lm_head"], sizes=UNTIED
    ),
    "fp8-head": partial(write, call="lm_head too", modules_to_not_convert=["k_proj"], sizes=UNTIED),
    "fp8-odd": partial(write, call="48 rows in blocks of 32", read=False, sizes={"intermediate_size": 48}),
    "fp8-experts": partial(write, call="experts", read=False, sizes=base.EXPERTS),
}

if __name__ == "__main__":
    base.main(CASES)
