"""Checkpoints that modelopt exports, with the numbers that its quantisers compute with.

gpt-oss is written by its example: MODELOPT is a checkout of its repository (0.40).
"""

from __future__ import annotations

import os
import runpy
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import base
import modelopt.torch.quantization as mtq
import torch
from modelopt.torch.export import export_hf_checkpoint
from modelopt.torch.quantization import tensor_quant
from modelopt.torch.quantization.qtensor import FP8QTensor, INT8QTensor, MXFP4QTensor, MXFP8QTensor, NVFP4QTensor
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoTokenizer


def write(into: Path, name: str, read: bool = True, whole: bool = False, **changes: Any) -> None:
    with tempfile.TemporaryDirectory() as place:
        model = base.loaded(base.made(Path(place) / "plain", **changes)).float()

        def calibrate(model: Any) -> None:
            for ids in base.calibration():
                model(torch.tensor([ids]))

        on_gpu = ("NVFP4" in name or "MX" in name) and "AWQ" not in name  # activations are quantised there alone
        mtq.quantize(model, config_of(name), None if on_gpu else calibrate)
        written = Path(place) / "written"
        with torch.inference_mode():
            export_hf_checkpoint(model, dtype=torch.float32, export_dir=written)
        tensors = load_file(written / "model.safetensors")
        plain = {key: one for key, one in tensors.items() if key.endswith(".weight") and f"{key}_scale" not in tensors}
        found = plain | dequantised(tensors) if read else {}
        said = {
            "tool": f"modelopt {version('nvidia-modelopt')}",
            "call": f"{MIXTURE if name == 'mixed' else name}{', experts' if changes == base.EXPERTS else ''}",
        }
        base.keep(written, into, found, said, whole, **changes)


def config_of(name: str) -> Any:
    """Of two names, joined by a plus sign, the second is that of keys and values."""
    if name == "mixed":
        return MIXED
    first, *more = (getattr(mtq, one) for one in name.split("+"))
    return {**first, "quant_cfg": [*first["quant_cfg"], *(rule for one in more for rule in one["quant_cfg"])]}


def rounded(inputs: Tensor, size: int, largest: Tensor, *_: Any) -> Tensor:
    """NVFP4 without a GPU, which the tool's own function needs: the search of AWQ asks for it."""
    blocks, whole = inputs.float().reshape(-1, size), largest.float().max() / (6 * 448)
    scale = (blocks.abs().amax(-1, keepdim=True) / 6 / whole).clamp(2**-9, 448).to(torch.float8_e4m3fn).float() * whole
    numbers = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    nearest = ((blocks / scale).abs()[..., None] - numbers).abs().argmin(-1)
    return (numbers[nearest] * blocks.sign() * scale).reshape(inputs.shape).to(inputs.dtype)


tensor_quant.dynamic_block_quantize_op = rounded
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


def write_gpt_oss(into: Path) -> None:
    """By ``convert_and_save`` of examples/gpt-oss, which reads its other file for fine-tuning alone."""
    sys.modules["utils"] = SimpleNamespace(get_original_huggingface_quant_method=None)  # type: ignore[assignment]
    example = Path(os.environ["MODELOPT"]) / "examples/gpt-oss/convert_oai_mxfp4_weight_only.py"
    with tempfile.TemporaryDirectory() as place:
        model = base.loaded(plain := base.made(Path(place) / "plain", **GPT_OSS))
        written = Path(place) / "written"
        runpy.run_path(str(example))["convert_and_save"](model, AutoTokenizer.from_pretrained(plain), str(written))
        tensors = load_file(written / "model.safetensors")
        found = {name: one for name, one in tensors.items() if not name.endswith(("_blocks", "_scales"))}
        for name, codes in tensors.items():
            if name.endswith("_blocks"):
                weight, shape = name.removesuffix("_blocks"), (*codes.shape[:2], 32 * codes.shape[2])
                whole = MXFP4QTensor(shape, torch.float32, codes.flatten(2))
                scale = tensors[f"{weight}_scales"]
                numbers = whole.dequantize(torch.float32, scale=scale, block_sizes={-1: 32})
                found[weight] = numbers.transpose(1, 2).contiguous()
        tool = f"modelopt {version('nvidia-modelopt')}, its example for gpt-oss"
        base.keep(written, into, found, {"tool": tool, "call": "convert_oai_mxfp4_weight_only"}, **GPT_OSS)


GPT_OSS = {
    "model_type": "gpt_oss",
    "num_local_experts": 2,
    "num_experts_per_tok": 1,
    "intermediate_size": 32,
    "layer_types": ["full_attention"],
}
FP8 = {"num_bits": (4, 3), "axis": None}
MIXTURE = "FP8 of attention, NVFP4 of the rest"
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
    "modelopt-nvfp4-inputs": lambda into: write(into, "NVFP4_DEFAULT_CFG"),
    "modelopt-nvfp4-32": lambda into: write(into, "NVFP4_MLP_WEIGHT_ONLY_CFG", False, **WIDE),
    "modelopt-mixed": lambda into: write(into, "mixed"),
    "modelopt-mxfp4": lambda into: write(into, "MXFP4_DEFAULT_CFG", False),
    "modelopt-mxfp8": lambda into: write(into, "MXFP8_DEFAULT_CFG"),
    "modelopt-int8": lambda into: write(into, "INT8_DEFAULT_CFG"),
    "modelopt-int8-smooth": lambda into: write(into, "INT8_SMOOTHQUANT_CFG", read=False, whole=True),
    "modelopt-int8-only": lambda into: write(into, "INT8_WEIGHT_ONLY_CFG"),
    "modelopt-int8-embedding": lambda into: write(into, "NVFP4_KV_ROTATE_CFG"),
    "modelopt-fp8-experts": lambda into: write(into, "FP8_DEFAULT_CFG", **base.EXPERTS),
    "modelopt-nvfp4-experts": lambda into: write(into, "W4A16_NVFP4_CFG", **base.EXPERTS),
    "modelopt-fp8-kv": lambda into: write(into, "FP8_DEFAULT_CFG+FP8_KV_CFG"),
    "modelopt-fp8-affine-kv": lambda into: write(into, "FP8_DEFAULT_CFG+FP8_AFFINE_KV_CFG"),
    "modelopt-nvfp4-kv": lambda into: write(into, "NVFP4_DEFAULT_CFG+NVFP4_KV_CFG"),
    "modelopt-nvfp4-mlp": lambda into: write(into, "NVFP4_MLP_ONLY_CFG"),
    "modelopt-nvfp4-clip": lambda into: write(into, "NVFP4_AWQ_CLIP_CFG"),
    "modelopt-nvfp4-awq": lambda into: write(into, "NVFP4_AWQ_LITE_CFG", False),
    "modelopt-nvfp4-svd": lambda into: write(into, "NVFP4_SVDQUANT_DEFAULT_CFG", False),
    "modelopt-nvfp4-fp8": lambda into: write(into, "W4A8_NVFP4_FP8_CFG", False),
    "gpt-oss": write_gpt_oss,
    "modelopt-int4-awq": lambda into: write(into, "INT4_AWQ_CFG", False, **WIDE),
    "modelopt-w4a8-awq": lambda into: write(into, "W4A8_AWQ_BETA_CFG", False, **WIDE),
}

if __name__ == "__main__":
    base.main(CASES)
