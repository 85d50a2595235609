"""Checkpoints that llm-compressor writes, with the numbers that compressed-tensors decompresses them to."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import base
import torch
from compressed_tensors.quantization import QuantizationConfig
from llmcompressor import oneshot
from llmcompressor.modifiers.quantization import GPTQModifier, QuantizationModifier
from safetensors import safe_open
from torch import Tensor, nn
from transformers import AutoTokenizer

LEFT = {"quant_method", "transform_config", "sparsity_config", "version", "provider"}


def numbers(directory: Path) -> dict[str, Tensor]:
    """The tool's own."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.compressors.nvfp4 import base as nvfp4
    from compressed_tensors.utils.match import match_targets

    nvfp4.unpack_fp4_from_uint8 = partial(nvfp4.unpack_fp4_from_uint8, dtype=torch.float32)  # no rounding to bfloat16
    said = json.loads((directory / "config.json").read_text())["quantization_config"]
    config = QuantizationConfig(**{key: value for key, value in said.items() if key not in LEFT})
    file = safe_open(directory / "model.safetensors", "pt")
    schemes = {target: one for one in config.config_groups.values() for target in one.targets}
    layers: dict[str, dict[str, Tensor]] = {}
    for name in file.keys():  # noqa: SIM118
        layer, _, end = name.rpartition(".")
        layers.setdefault(layer, {})[end] = file.get_tensor(name)
    found = {}
    for layer, parts in layers.items():
        if "weight_scale" in parts:
            module = nn.Embedding(1, 1) if "embed_tokens" in layer else nn.Linear(1, 1)
            scheme = schemes[match_targets(layer, module, schemes)[0]]
            parts = {
                end: one.float() if one.dtype in (torch.bfloat16, torch.float16) else one for end, one in parts.items()
            }  # no rounding
            compressor = BaseCompressor.get_value_from_registry(scheme.format or config.format)
            found[f"{layer}.weight"] = compressor.decompress(parts, scheme)["weight"].float()
        elif "weight" in parts:
            found[f"{layer}.weight"] = parts["weight"].float()
    return found


def write(
    into: Path,
    call: str,
    recipe: Any,
    calibrated: bool = False,
    read: bool = True,
    whole: bool = False,
    **changes: Any,
) -> None:
    with tempfile.TemporaryDirectory() as place:
        model = base.loaded(base.made(Path(place) / "plain", **changes))
        more: dict[str, Any] = {}
        if calibrated:
            from datasets import Dataset

            ids = base.calibration()
            rows = {"input_ids": ids, "attention_mask": [[1] * len(one) for one in ids]}
            more = {"dataset": Dataset.from_dict(rows), "max_seq_length": 48, "num_calibration_samples": len(ids)}
            more["processor"] = AutoTokenizer.from_pretrained(Path(place) / "plain")
        oneshot(model=model, recipe=recipe, **more)
        written = Path(place) / "written"
        model.save_pretrained(written, save_compressed=True)
        tool = f"llm-compressor {version('llmcompressor')}, compressed-tensors {version('compressed-tensors')}"
        said = {"tool": tool, "call": call}
        base.keep(written, into, numbers(written) if read else {}, said, whole, **changes)


def integers(bits: int, size: int = 32, symmetric: bool = True, strategy: str = "group", kind: str = "int") -> Any:
    grouped = {"group_size": size} if strategy == "group" else {}
    return {"num_bits": bits, "type": kind, "symmetric": symmetric, "strategy": strategy, **grouped}


def groups(*each: tuple[list[str], Any], ignore: tuple[str, ...] = ("lm_head",), **more: Any) -> QuantizationModifier:
    return QuantizationModifier(
        config_groups={
            f"group_{place}": {"targets": targets, "weights": weights} for place, (targets, weights) in enumerate(each)
        },
        ignore=list(ignore),
        **more,
    )


def preset(name: str, targets: Any = "Linear", ignore: tuple[str, ...] = ("lm_head",)) -> QuantizationModifier:
    return QuantizationModifier(targets=targets, scheme=name, ignore=list(ignore))


def rotated(*rotations: str) -> list[Any]:
    from llmcompressor.modifiers.transform import SpinQuantModifier

    spin = SpinQuantModifier(rotations=list(rotations), transform_type="hadamard")
    return [spin, groups((["Linear"], integers(4)))]


def quip() -> list[Any]:
    from llmcompressor.modifiers.transform import QuIPModifier

    return [QuIPModifier(transform_type="hadamard"), groups((["Linear"], integers(4)))]


def sparse() -> Any:
    from llmcompressor.modifiers.pruning import SparseGPTModifier

    return SparseGPTModifier(sparsity=0.5, mask_structure="2:4", ignore=["lm_head"])


def smoothed(weights: Any) -> list[Any]:
    from llmcompressor.modifiers.transform.awq import AWQModifier

    if not torch.cuda.is_available():
        Tensor.pin_memory = lambda self: self  # type: ignore[method-assign, assignment]  # there is none to pin for
    return [AWQModifier(), groups((["Linear"], weights))]


def smoothquant() -> list[Any]:
    from llmcompressor.modifiers.transform.smoothquant import SmoothQuantModifier

    return [SmoothQuantModifier(smoothing_strength=0.8), preset("W8A8")]


LINEAR = ["Linear"]
STILL = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
CASES: dict[str, Callable[[Path], None]] = {
    **{
        f"ct-w{bits}": lambda into, bits=bits: write(
            into, f"{bits} bits, groups of 32", groups((LINEAR, integers(bits)))
        )
        for bits in (2, 3, 4, 5, 6, 7, 8)
    },
    "ct-w4-asym": lambda into: write(into, "4 bits, asymmetric", groups((LINEAR, integers(4, symmetric=False)))),
    "ct-w3-asym": lambda into: write(into, "3 bits, asymmetric", groups((LINEAR, integers(3, symmetric=False)))),
    "ct-w4-channel": lambda into: write(
        into, "4 bits, a scale for each row, asymmetric", groups((LINEAR, integers(4, 0, False, "channel")))
    ),
    **{
        f"ct-w4-{order}": lambda into, order=order: write(
            into,
            f"GPTQModifier, actorder {order}",
            GPTQModifier(
                config_groups={"group_0": {"targets": LINEAR, "weights": {**integers(4), "actorder": order}}},
                ignore=["lm_head"],
            ),
            calibrated=True,
        )
        for order in ("static", "weight")
    },
    "ct-w4-asym-weight": lambda into: write(
        into,
        "GPTQModifier, asymmetric, actorder weight",
        GPTQModifier(
            config_groups={
                "group_0": {"targets": LINEAR, "weights": {**integers(4, symmetric=False), "actorder": "weight"}}
            },
            ignore=["lm_head"],
        ),
        calibrated=True,
    ),
    "ct-w3-odd": lambda into: write(
        into,
        "3 bits, a scale for each row of 112 inputs",
        groups((LINEAR, integers(3, 0, True, "channel"))),
        intermediate_size=112,
    ),
    "ct-w8a8-asym": lambda into: write(
        into, "8 bits, a scale for each row, asymmetric", groups((LINEAR, integers(8, 0, False, "channel")))
    ),
    "ct-sparse-fp8": lambda into: write(
        into, "SparseGPT 2:4, FP8_DYNAMIC", [sparse(), preset("FP8_DYNAMIC")], calibrated=True
    ),
    "ct-quip": lambda into: write(into, "QuIP, 4 bits", quip(), read=False, intermediate_size=128),
    "ct-w8a8": lambda into: write(into, "W8A8", preset("W8A8")),
    "ct-fp8": lambda into: write(into, "FP8", preset("FP8"), calibrated=True),
    "ct-fp8-dynamic": lambda into: write(into, "FP8_DYNAMIC", preset("FP8_DYNAMIC")),
    "ct-fp8-block": lambda into: write(into, "FP8_BLOCK", preset("FP8_BLOCK"), intermediate_size=288),
    "ct-nvfp4": lambda into: write(into, "NVFP4A16", preset("NVFP4A16")),
    "ct-mxfp4": lambda into: write(into, "MXFP4A16", preset("MXFP4A16")),
    "ct-mxfp8": lambda into: write(into, "MXFP8A16", preset("MXFP8A16")),
    "ct-smooth": lambda into: write(into, "SmoothQuantModifier, W8A8", smoothquant(), calibrated=True),
    "ct-mixed": lambda into: write(
        into,
        "4 bits for Linear, 8 bits for re:.*down_proj$",
        groups((LINEAR, integers(4)), (["re:.*down_proj$"], integers(8))),
    ),
    "ct-mixed-formats": lambda into: write(
        into,
        "4 bits for Linear, FP8 for re:.*down_proj$",
        groups((LINEAR, integers(4)), (["re:.*down_proj$"], integers(8, 0, True, "channel", "float"))),
    ),
    "ct-mixed-names": lambda into: write(
        into,
        "4 bits for Linear, 8 bits for model.layers.0.mlp.down_proj",
        groups((LINEAR, integers(4)), (["model.layers.0.mlp.down_proj"], integers(8))),
    ),
    "ct-awq": lambda into: write(
        into, "AWQModifier, 4 bits, asymmetric", smoothed(integers(4, symmetric=False)), calibrated=True
    ),
    "ct-ignore": lambda into: write(
        into, "4 bits, ignore lm_head and re:.*k_proj", groups((LINEAR, integers(4)), ignore=("lm_head", "re:.*k_proj"))
    ),
    "ct-head": lambda into: write(
        into,
        "8 bits, Linear and Embedding, nothing ignored",
        groups((["Linear", "Embedding"], integers(8, 0, True, "channel")), ignore=()),
        tie_word_embeddings=False,
    ),
    "ct-kv": lambda into: write(
        into,
        "4 bits and kv_cache_scheme of 8 bits",
        groups(
            (LINEAR, integers(4)),
            kv_cache_scheme=STILL,
        ),
        calibrated=True,
    ),
    "ct-attention": lambda into: write(
        into,
        "FP8 of the inputs of attention alone",
        QuantizationModifier(
            config_groups={"group_0": {"targets": ["re:.*self_attn$"], "input_activations": STILL}}, ignore=[]
        ),
        calibrated=True,
    ),
    "ct-experts": lambda into: write(
        into,
        "4 bits of experts",
        groups((LINEAR, integers(4)), ignore=("lm_head", "re:.*mlp.gate$")),
        model_type="qwen3_moe",
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=64,
    ),
    **{
        f"ct-experts-{kind}": lambda into, name=name: write(
            into, f"{name} of experts", preset(name, ignore=("lm_head", "re:.*mlp.gate$")), **base.EXPERTS
        )
        for kind, name in (("fp8", "FP8_DYNAMIC"), ("nvfp4", "NVFP4A16"))
    },
    "ct-mixtral": lambda into: write(
        into,
        "4 bits of Mixtral's experts",
        groups((LINEAR, integers(4)), ignore=("lm_head", "re:.*gate$")),
        **base.MIXTRAL,
        intermediate_size=32,
    ),
    "ct-spin-folded": lambda into: write(into, "SpinQuant R1 and R2, 4 bits", rotated("R1", "R2")),
    "ct-spin-online": lambda into: write(
        into, "SpinQuant R1, R2 and R4, 4 bits", rotated("R1", "R2", "R4"), read=False, intermediate_size=128
    ),
    "ct-spin-heads": lambda into: write(into, "SpinQuant R1, R2 and R3, 4 bits", rotated("R1", "R2", "R3"), read=False),
}

OLD: dict[str, Callable[[Path], None]] = {  # llm-compressor 0.12: later ones pack otherwise, and order no groups
    "ct-old-order": lambda into: write(
        into,
        "GPTQModifier, actorder group",
        GPTQModifier(
            config_groups={"group_0": {"targets": LINEAR, "weights": {**integers(4), "actorder": "group"}}},
            ignore=["lm_head"],
        ),
        calibrated=True,
    ),
    **{
        f"ct-old-w{bits}": lambda into, bits=bits: write(
            into, f"{bits} bits, groups of 32", groups((LINEAR, integers(bits)))
        )
        for bits in (3, 5, 7)
    },
    "ct-old-w6": lambda into: write(
        into, "6 bits, groups of 32, asymmetric", groups((LINEAR, integers(6, symmetric=False)))
    ),
}

NEW: dict[str, Callable[[Path], None]] = {  # compressed-tensors 0.20, which leaves out keys and has new ones
    "ct-new-w4": lambda into: write(into, "4 bits, asymmetric", groups((LINEAR, integers(4, symmetric=False)))),
    "ct-new-fp8": lambda into: write(into, "FP8_DYNAMIC", preset("FP8_DYNAMIC")),
    "ct-new-nvfp4": lambda into: write(into, "NVFP4A16", preset("NVFP4A16")),
    "ct-new-w4-tensor": lambda into: write(
        into, "4 bits, one scale, asymmetric", groups((LINEAR, integers(4, 0, False, "tensor")))
    ),
    "ct-new-w8-block": lambda into: write(
        into,
        "8 bits, blocks of 32 x 32, asymmetric",
        groups((LINEAR, {**integers(8, 0, False, "block"), "block_structure": [32, 32]})),
    ),
    "ct-new-w4-block": lambda into: write(
        into,
        "4 bits, blocks of 16 x 32, asymmetric",
        groups((LINEAR, {**integers(4, 0, False, "block"), "block_structure": [16, 32]})),
    ),
    "ct-new-w4a8": lambda into: write(
        into, "W4A8", preset("W4A8"), hidden_size=128, intermediate_size=128, num_attention_heads=8
    ),
    "ct-new-fp8-groups": lambda into: write(into, "FP8, groups of 32", groups((LINEAR, integers(8, kind="float")))),
    "ct-new-mixed": lambda into: write(
        into,
        "8 bits of rows for attention, MXFP4A16 for gate_proj and up_proj, MXFP8A16 for down_proj",
        QuantizationModifier(
            scheme={
                "W8A8": ["re:.*self_attn.*"],
                "MXFP4A16": ["re:.*gate_proj", "re:.*up_proj"],
                "MXFP8A16": ["re:.*down_proj"],
            },
            ignore=["lm_head"],
        ),
    ),
    "ct-new-mixed-experts": lambda into: write(
        into,
        "4 bits for gates and ups of experts, 8 bits for their downs, FP8 of rows for attention",
        groups(
            (["re:.*experts.*(gate|up)_proj$"], integers(4)),
            (["re:.*experts.*down_proj$"], integers(8)),
            (["re:.*self_attn.*"], integers(8, 0, True, "channel", "float")),
        ),
        **base.EXPERTS,
    ),
    "ct-new-mxfp6": lambda into: write(into, "MXFP6A16", preset("MXFP6A16"), read=False),
}

OLDEST: dict[str, Callable[[Path], None]] = {  # llm-compressor 0.8: later ones write sparse weights densely
    "ct-sparse-24": lambda into: write(into, "SparseGPT 2:4", [sparse()], calibrated=True, read=False),
    "ct-sparse-24-fp8": lambda into: write(
        into, "SparseGPT 2:4, FP8_DYNAMIC", [sparse(), preset("FP8_DYNAMIC")], calibrated=True, read=False
    ),
}

if __name__ == "__main__":
    base.main({"0.12": OLDEST, "0.17": OLD, "0.20": NEW}.get(version("compressed-tensors")[:4], CASES))
