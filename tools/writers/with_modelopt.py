"""Checkpoints that modelopt exports, with the numbers that its quantisers compute with."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import base
import modelopt.torch.quantization as mtq
import torch
from modelopt.torch.export import export_hf_checkpoint
from modelopt.torch.quantization.qtensor import FP8QTensor, INT8QTensor, MXFP8QTensor, NVFP4QTensor
from safetensors.torch import load_file
from torch import Tensor


def write(into: Path, name: str, read: bool = True, **changes: Any) -> None:
    with tempfile.TemporaryDirectory() as place:
        model = base.loaded(base.made(Path(place) / "plain", **changes)).float()

        def calibrate(model: Any) -> None:
            for ids in base.calibration():
                model(torch.tensor([ids]))

        config = MIXED if name == "mixed" else getattr(mtq, name)
        on_gpu = "NVFP4" in name or "MX" in name  # whose activations the tool quantises there alone
        mtq.quantize(model, config, None if on_gpu else calibrate)
        written = Path(place) / "written"
        with torch.inference_mode():
            export_hf_checkpoint(model, dtype=torch.float32, export_dir=written)
        tensors = load_file(written / "model.safetensors")
        plain = {key: one for key, one in tensors.items() if key.endswith(".weight") and f"{key}_scale" not in tensors}
        found = plain | dequantised(tensors) if read else {}
        said = {
            "tool": f"modelopt {version('nvidia-modelopt')}",
            "call": "FP8 of attention, NVFP4 of the rest" if name == "mixed" else name,
        }
        base.keep(written, into, found, said, **changes)


KINDS = {torch.int8: INT8QTensor, torch.float8_e4m3fn: FP8QTensor}


def dequantised(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """By the tool's own classes."""
    found = {}
    for name, scale in tensors.items():
        if name.endswith(".weight_scale"):
            weight = name.removesuffix("_scale")
            codes = tensors[weight]
            rows, width = codes.shape
            if f"{weight}_scale_2" in tensors:
                whole = NVFP4QTensor((rows, 2 * width), torch.float32, codes)
                more = {"double_scale": tensors[f"{weight}_scale_2"], "block_sizes": {-1: 16}}
                found[weight] = whole.dequantize(torch.float32, scale=scale, **more)
            else:
                kind = (
                    MXFP8QTensor
                    if scale.dtype == torch.uint8
                    else INT8QTensor
                    if codes.dtype == torch.int8
                    else FP8QTensor
                )
                scale = scale if scale.dtype == torch.uint8 else scale.reshape(-1, 1)
                found[weight] = kind((rows, width), torch.float32, codes).dequantize(torch.float32, scale=scale)
    return found


FP8 = {"num_bits": (4, 3), "axis": None}
MIXED = {
    "quant_cfg": [
        *mtq.W4A16_NVFP4_CFG["quant_cfg"],
        {"quantizer_name": "*self_attn*proj.weight_quantizer", "cfg": FP8},
        {"quantizer_name": "*self_attn*proj.input_quantizer", "cfg": FP8},
    ],
    "algorithm": "max",
}
WIDE = {"hidden_size": 128, "intermediate_size": 128, "num_attention_heads": 8}  # its groups are of 128
CASES: dict[str, Callable[[Path], None]] = {
    "modelopt-fp8": lambda into: write(into, "FP8_DEFAULT_CFG"),
    "modelopt-fp8-rows": lambda into: write(into, "FP8_PER_CHANNEL_PER_TOKEN_CFG"),
    "modelopt-fp8-block": lambda into: write(into, "FP8_2D_BLOCKWISE_WEIGHT_ONLY_CFG", False),
    "modelopt-nvfp4": lambda into: write(into, "W4A16_NVFP4_CFG"),
    "modelopt-mixed": lambda into: write(into, "mixed"),
    "modelopt-mxfp4": lambda into: write(into, "MXFP4_DEFAULT_CFG", False),
    "modelopt-mxfp8": lambda into: write(into, "MXFP8_DEFAULT_CFG"),
    "modelopt-int8": lambda into: write(into, "INT8_DEFAULT_CFG"),
    "modelopt-int8-only": lambda into: write(into, "INT8_WEIGHT_ONLY_CFG"),
    "modelopt-int8-embedding": lambda into: write(into, "NVFP4_KV_ROTATE_CFG"),
    "modelopt-int4-awq": lambda into: write(into, "INT4_AWQ_CFG", False, **WIDE),
    "modelopt-w4a8-awq": lambda into: write(into, "W4A8_AWQ_BETA_CFG", False, **WIDE),
}

if __name__ == "__main__":
    base.main(CASES)
