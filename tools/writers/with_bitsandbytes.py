"""Checkpoints that bitsandbytes writes through transformers, with the numbers that it dequantises them to."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import base
import bitsandbytes
import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig


def write(into: Path, call: str, quantisation: dict[str, Any], **changes: Any) -> None:
    with tempfile.TemporaryDirectory() as place:
        plain, written = base.made(Path(place) / "plain", **changes), Path(place) / "written"
        model = AutoModelForCausalLM.from_pretrained(
            plain, dtype=torch.bfloat16, quantization_config=BitsAndBytesConfig(**quantisation), device_map="cpu"
        )
        model.save_pretrained(written)
        found = {}
        for name, module in model.named_modules():
            if isinstance(module, bitsandbytes.nn.Linear4bit):
                state = module.weight.quant_state
                state.dtype = torch.float32  # no rounding
                found[f"{name}.weight"] = bitsandbytes.functional.dequantize_4bit(module.weight.data, state).clone()
            elif isinstance(module, bitsandbytes.nn.Linear8bitLt):
                largest = module.weight.SCB if module.weight.SCB is not None else module.state.SCB
                found[f"{name}.weight"] = module.weight.data.float() * largest.float()[:, None] / 127
            elif type(module).__name__ in ("Linear", "Embedding", "LlamaRMSNorm"):
                found[f"{name}.weight"] = module.weight.detach().float()
        tool = f"bitsandbytes {version('bitsandbytes')}, transformers {version('transformers')}"
        base.keep(written, into, found, {"tool": tool, "call": call}, **changes)


FOUR = {"load_in_4bit": True}
CASES: dict[str, Callable[[Path], None]] = {
    "bnb-nf4": lambda into: write(into, "nf4", {**FOUR, "bnb_4bit_quant_type": "nf4"}),
    "bnb-nf4-twice": lambda into: write(
        into, "nf4, double quantisation", {**FOUR, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True}
    ),
    "bnb-fp4": lambda into: write(into, "fp4", {**FOUR, "bnb_4bit_quant_type": "fp4"}),
    "bnb-nf4-bfloat16": lambda into: write(
        into,
        "nf4, storage bfloat16",
        {**FOUR, "bnb_4bit_quant_type": "nf4", "bnb_4bit_quant_storage": torch.bfloat16},
    ),
    "bnb-nf4-float32": lambda into: write(
        into, "nf4, storage float32", {**FOUR, "bnb_4bit_quant_type": "nf4", "bnb_4bit_quant_storage": torch.float32}
    ),
    "bnb-nf4-odd": lambda into: write(
        into, "nf4, rows of 112 numbers in blocks of 64", {**FOUR, "bnb_4bit_quant_type": "nf4"}, intermediate_size=112
    ),
    "bnb-int8": lambda into: write(into, "int8", {"load_in_8bit": True}),
}

if __name__ == "__main__":
    base.main(CASES)
