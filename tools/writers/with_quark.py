"""Checkpoints that Quark exports: its own are refused, FP8 for others has the numbers of its fake export."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import base
import torch
from quark.torch import LLMTemplate, ModelQuantizer, export_safetensors
from safetensors.torch import load_file


def frozen(plain: Path, scheme: str, algorithm: str | None) -> Any:
    tool = ModelQuantizer(LLMTemplate.get("llama").get_config(scheme=scheme, algorithm=algorithm))
    data = [torch.tensor([one]) for one in base.calibration()]
    rounded = tool.quantize_model(
        base.loaded(plain).float(), [{"input_ids": one} for one in data] if algorithm else data
    )
    return tool.freeze(rounded)


def write(into: Path, scheme: str, mode: str = "quark", algorithm: str | None = None, **options: Any) -> None:
    with tempfile.TemporaryDirectory() as place:
        plain, written, numbers = base.made(Path(place) / "plain"), Path(place) / "written", Path(place) / "numbers"
        found = {}
        with torch.no_grad():
            export_safetensors(frozen(plain, scheme, algorithm), str(written), custom_mode=mode, **options)
            if mode == "fp8":  # an export changes the model
                export_safetensors(frozen(plain, scheme, algorithm), str(numbers), weight_format="fake_quantized")
                stored = load_file(numbers / "model.safetensors")
                found = {name: one for name, one in stored.items() if name.endswith(".weight") and "head" not in name}
        call = ", ".join([scheme, *([f"for {mode}"] if mode != "quark" else []), *options.values()])
        base.keep(
            written, into, found, {"tool": f"amd-quark {version('amd-quark')}", "call": call}, whole=mode == "awq"
        )


OWN = ("fp8", "ptpc_fp8", "mxfp4", "mxfp4_weight_only", "nvfp4", "int4_wo_32", "uint4_wo_32", "int8")
CASES: dict[str, Callable[[Path], None]] = {
    **{f"quark-{scheme}": partial(write, scheme=scheme) for scheme in OWN},
    "quark-for-fp8": partial(write, scheme="fp8", mode="fp8"),
    "quark-for-awq": partial(write, scheme="uint4_wo_32", mode="awq", algorithm="awq"),
    "quark-for-awq-order": partial(write, scheme="uint4_wo_32", mode="awq", algorithm="awq", pack_method="order"),
}

if __name__ == "__main__":
    base.main(CASES)
