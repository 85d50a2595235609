"""Checkpoints that auto-round writes for other tools, with the numbers that it has rounded weights to.

Those for llm-compressor have the numbers that compressed-tensors decompresses them to. On a processor with bfloat16 the
tool would round its numbers to that, so it is told that there is none. ``autoround-own-awq`` was written before; it
has those of ``autoround-awq-sym``, whose codes and scales are the same.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import base
import torch
from auto_round import AutoRound
from auto_round.utils.device import CpuInfo
from transformers import AutoTokenizer

MODELS = {"qwen3_moe": ", experts", "mixtral": ", Mixtral"}


def write(
    into: Path,
    scheme: str,
    form: str,
    sizes: dict[str, Any] | None = None,
    read: bool = True,
    whole: bool = False,
    **options: Any,
) -> None:
    with tempfile.TemporaryDirectory() as place:
        plain = base.made(Path(place) / "plain", **(sizes or {}))
        model, tokenizer = base.loaded(plain), AutoTokenizer.from_pretrained(plain)
        grouped = {"group_size": 32} if scheme.startswith("W") else {}
        rows = [torch.tensor([ids]) for ids in base.calibration()]
        calls = {"iters": 0, "disable_opt_rtn": True, "device_map": "cpu", "dataset": rows, "nsamples": len(rows)}
        lengths = {"seqlen": rows[0].shape[1], "batch_size": 1}

        def made(of: Any) -> Any:
            return AutoRound(of, tokenizer, scheme=scheme, **calls, **lengths, **{**grouped, **options})

        tool = made(model)
        rounded, _ = tool.quantize()  # whose weights are the numbers that will be packed
        found = {name: weight.detach().float().clone() for name, weight in rounded.state_dict().items()}
        if (sizes or {}).get("tie_word_embeddings", True):
            found.pop("lm_head.weight")
        if form == "auto_round:auto_awq":  # which it saves in one go alone
            made(base.loaded(plain)).quantize_and_save(str(Path(place) / "written"), format=form)
        else:
            tool.save_quantized(str(Path(place) / "written"), format=form)
        directory = next(Path(place, "written").rglob("config.json")).parent
        if form == "llm_compressor":
            from with_llmcompressor import numbers

            found = numbers(directory)
        elif form == "fp8":  # for transformers among others
            from with_transformers import numbers

            found = numbers(directory)
        said = {
            "tool": f"auto-round {version('auto-round')}",
            "call": f"{scheme}, {form}, {options}{MODELS.get((sizes or {}).get('model_type', ''), '')}",
        }
        base.keep(directory, into, found if read else {}, said, whole, **(sizes or {}))


WIDE = {"hidden_size": 128, "intermediate_size": 256}  # its blocks are of 128
CASES: dict[str, Callable[[Path], None]] = {
    "autoround-gptq": lambda into: write(into, "W4A16", "auto_gptq"),
    "autoround-gptq-3": lambda into: write(into, "W3A16", "auto_gptq"),
    "autoround-gptq-2": lambda into: write(into, "W2A16", "auto_gptq", sym=False),
    "autoround-gptq-8": lambda into: write(into, "W8A16", "auto_gptq"),
    "autoround-for-fp8": lambda into: write(into, "FP8_BLOCK", "fp8", WIDE),
    "autoround-awq": lambda into: write(into, "W4A16", "auto_awq", sym=False),
    "autoround-awq-sym": lambda into: write(into, "W4A16", "auto_awq"),
    "autoround-awq-mixed": lambda into: write(
        into, "W4A16", "auto_awq", read=False, whole=True, layer_config={"down_proj": {"group_size": 16}}
    ),
    "autoround-gptq-experts": lambda into: write(into, "W4A16", "auto_gptq", base.EXPERTS),
    "autoround-own-experts": lambda into: write(into, "W4A16", "auto_round", base.EXPERTS),
    "autoround-gptq-mixed": lambda into: write(
        into, "W4A16", "auto_gptq", layer_config={"down_proj": {"bits": 8}, "k_proj": {"bits": 16}}
    ),
    "autoround-own": lambda into: write(into, "W4A16", "auto_round"),
    "autoround-own-2": lambda into: write(into, "W2A16", "auto_round", sym=False),
    "autoround-own-gptqmodel": lambda into: write(into, "W4A16", "auto_round:gptqmodel"),
    "autoround-own-awq": lambda into: write(into, "W4A16", "auto_round:auto_awq"),
    "autoround-nvfp4": lambda into: write(into, "NVFP4", "auto_round", read=False),
    "autoround-mxfp8": lambda into: write(into, "MXFP8", "auto_round", read=False),
    "autoround-fp8-static": lambda into: write(into, "FP8_STATIC", "auto_round", read=False),
    "autoround-int8": lambda into: write(into, "INT8_W8A8", "auto_round", read=False),
    "autoround-mxfp4": lambda into: write(into, "MXFP4", "auto_round", read=False),
    "autoround-fp8-block": lambda into: write(into, "FP8_BLOCK", "auto_round", WIDE, read=False),
    "autoround-own-mixed": lambda into: write(
        into, "W4A16", "auto_round", layer_config={"down_proj": {"bits": 8}, "k_proj": {"bits": 16}}
    ),
    "autoround-awq-none": lambda into: write(
        into, "W4A16", "auto_awq", sym=False, layer_config={"k_proj": {"bits": 16}}
    ),
    "autoround-gptq-mixtral": lambda into: write(into, "W4A16", "auto_gptq", base.MIXTRAL),
    "autoround-own-mixtral": lambda into: write(into, "W4A16", "auto_round", base.MIXTRAL),
    "autoround-own-head": lambda into: write(
        into, "W4A16", "auto_round", {"tie_word_embeddings": False}, quant_lm_head=True
    ),
}

FOR_CT: dict[str, Callable[[Path], None]] = {  # which the environment of llm-compressor writes
    f"autoround-ct-{name.lower().replace('_', '-')}": lambda into, name=name: write(into, name, "llm_compressor")
    for name in ("FP8_STATIC", "INT8_W8A8", "MXFP4", "MXFP8", "NVFP4", "W4A16")
}

if __name__ == "__main__":
    CpuInfo.bf16 = property(lambda self: False)  # else it rounds its numbers to bfloat16
    torch.set_num_threads(1)
    base.main(FOR_CT if find_spec("llmcompressor") else CASES)
