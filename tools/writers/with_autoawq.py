"""Checkpoints that AutoAWQ writes, with the numbers that it dequantises them to.

It needs transformers 4.51. Its search for where to clip does not take matrices of fewer than 64 rows, and is left out.
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
from awq import AutoAWQForCausalLM
from awq.utils.packing_utils import dequantize_gemm
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoTokenizer


def numbers(directory: Path) -> dict[str, Tensor]:
    """Scales in float32, so that nothing is rounded."""
    stored = load_file(directory / "model.safetensors")
    found = {name: tensor.float() for name, tensor in stored.items() if name.endswith(".weight")}
    found.pop("lm_head.weight", None)
    for name, words in stored.items():
        if name.endswith(".qweight"):
            layer = name.removesuffix(".qweight")
            scales = stored[f"{layer}.scales"].float()
            weight = dequantize_gemm(words, stored[f"{layer}.qzeros"], scales, 4, len(words) // len(scales))
            found[f"{layer}.weight"] = weight.t().contiguous()
    return found


def write(into: Path, call: str, read: bool = True, sizes: dict[str, Any] | None = None, **options: Any) -> None:
    with tempfile.TemporaryDirectory() as place:
        plain, written = base.made(Path(place) / "plain", **(sizes or {})), Path(place) / "written"
        tokenizer = AutoTokenizer.from_pretrained(plain)
        tool = AutoAWQForCausalLM.from_pretrained(str(plain), device_map="cpu", torch_dtype=torch.float16)
        asked = {"zero_point": True, "q_group_size": 32, "w_bit": 4, "version": "GEMM", **options}
        calibration = {"calib_data": base.calibration(64, 30), "max_calib_seq_len": 32, "max_calib_samples": 16}
        tool.quantize(tokenizer, quant_config=asked, apply_clip=False, **calibration)
        tool.save_quantized(str(written))
        said = {"tool": f"AutoAWQ {version('autoawq')}", "call": call}
        base.keep(written, into, numbers(written) if read else {}, said, **(sizes or {}))


MARLIN = {"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 16}  # its tiles
CASES: dict[str, Callable[[Path], None]] = {
    "awq-gemm": partial(write, call="GEMM, groups of 32"),
    "awq-gemv": partial(write, call="GEMV", read=False, version="GEMV"),
    "awq-marlin": partial(
        write, call="Marlin", read=False, sizes=MARLIN, version="marlin", zero_point=False, q_group_size=128
    ),
}

if __name__ == "__main__":
    base.main(CASES)
