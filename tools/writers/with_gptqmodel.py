"""Checkpoints that GPTQModel writes, with the numbers that its own layers in torch dequantise them to.

A machine with two processors needs GPTQMODEL_CPU_WORKERS=2.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import base
import torch
from gptqmodel import BACKEND, GPTQModel, QuantizeConfig
from gptqmodel.nn_modules.qlinear.torch_awq import AwqTorchLinear
from gptqmodel.quantization.awq.utils.packing_utils import dequantize_gemm
from safetensors.torch import load_file
from torch import Tensor

BITS, GROUP = 4, 32


def numbers(directory: Path, backend: BACKEND = BACKEND.TORCH) -> dict[str, Tensor]:
    """Scales in float32, so that nothing is rounded."""
    stored = load_file(directory / "model.safetensors")
    found = {name: tensor for name, tensor in stored.items() if name.endswith(".weight")}
    model = GPTQModel.load(str(directory), backend=backend, device="cpu", dtype=torch.float16).model
    for name, module in model.named_modules():
        if isinstance(module, AwqTorchLinear):
            words, scales = (module.qweight, module.qzeros), module.scales.float()
            found[f"{name}.weight"] = dequantize_gemm(*words, scales, module.bits, module.group_size).t().contiguous()
        if hasattr(module, "dequantize_weight"):
            module.scales = module.scales.float()
            found[f"{name}.weight"] = module.dequantize_weight().detach().t().float().contiguous()
    return found


def write(
    into: Path,
    call: str,
    read: bool = True,
    whole: bool = False,
    sizes: dict[str, Any] | None = None,
    **options: Any,
) -> None:
    into = into.absolute()
    with tempfile.TemporaryDirectory() as place, contextlib.chdir(place):  # where it leaves its logs
        plain, written = base.made(Path(place) / "plain", **(sizes or {})), Path(place) / "written"
        asked = {"offload_to_disk": False, "group_size": GROUP, **options}
        model = GPTQModel.load(str(plain), QuantizeConfig(**asked), device="cpu")
        model.quantize([{"input_ids": one, "attention_mask": [1] * len(one)} for one in base.calibration()])
        model.save(str(written))
        said = {"tool": f"GPTQModel {version('gptqmodel')}", "call": call}
        backend = BACKEND.TORCH_AWQ if options.get("method") == "awq" else BACKEND.TORCH
        base.keep(written, into, numbers(written, backend) if read else {}, said, whole, **(sizes or {}))


TALL = {"num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 128}  # clips are sought in 64 rows
UNTIED = {"tie_word_embeddings": False}
OVERRIDES = {r".*down_proj.*": {"bits": 8}, r"-:.*k_proj.*": {}}
CASES: dict[str, Callable[[Path], None]] = {
    **{f"gptq-{bits}": partial(write, call=f"{bits} bits", bits=bits) for bits in (2, 3, 4, 8)},
    "gptq-asym": partial(write, call="4 bits, asymmetric", bits=4, sym=False),
    "gptq-order": partial(write, call="4 bits, desc_act", bits=4, desc_act=True, act_group_aware=False),
    "gptq-order-3": partial(
        write, call="3 bits, desc_act, asymmetric", bits=3, desc_act=True, act_group_aware=False, sym=False
    ),
    "gptq-rows": partial(write, call="4 bits, group_size -1", bits=4, group_size=-1, act_group_aware=False),
    "gptq-ragged": partial(write, call="4 bits, groups of 64 of 96 inputs", bits=4, group_size=64),
    "gptq-v2": partial(write, call="4 bits, gptq_v2", bits=4, format="gptq_v2"),
    "gptq-dynamic": partial(
        write, call="4 bits, dynamic: 8 bits for down_proj, none for k_proj", bits=4, dynamic=OVERRIDES
    ),
    "gptq-head": partial(write, call="4 bits, lm_head", bits=4, lm_head=True, sizes=UNTIED),
    "gptq-experts": partial(write, call="4 bits, experts", bits=4, sizes=base.EXPERTS),
    "gptqmodel-awq": partial(write, call="AWQ of 4 bits", bits=4, method="awq", format="gemm", sizes=TALL),
    "gptqmodel-awq-experts": partial(
        write,
        call="AWQ of 4 bits, experts",
        bits=4,
        method="awq",
        format="gemm",
        sizes={**TALL, **base.EXPERTS, "moe_intermediate_size": 64},
    ),
    "gptqmodel-awq-dynamic": partial(
        write,
        call="AWQ of 4 bits, dynamic: none for k_proj",
        bits=4,
        method="awq",
        format="gemm",
        dynamic={r"-:.*k_proj.*": {}},
        sizes=TALL,
    ),
    "gptqmodel-awq-groups": partial(
        write,
        call="AWQ of 4 bits, dynamic: groups of 64 for up_proj",
        read=False,
        whole=True,
        bits=4,
        method="awq",
        format="gemm",
        dynamic={r".*up_proj.*": {"group_size": 64}},
        sizes=TALL,
    ),
    "gptq-mixtral": partial(write, call="4 bits, Mixtral", bits=4, sizes=base.MIXTRAL),
    "gptq-p": partial(write, call="gptq_p", read=False, bits=4, format="gptq_p"),
    "gptq-fp8": partial(write, call="fp8", read=False, method="fp8", format="float8_e4m3fn"),
    "gptq-gguf": partial(write, call="gguf", read=False, method="gguf", bits="q4_k_m"),
}

if __name__ == "__main__":
    torch.set_num_threads(2)
    base.main(CASES)
