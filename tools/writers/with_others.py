"""Configs of tools whose checkpoints are refused: mlx-lm, torchao, SINQ, HQQ and quanto, each with an environment."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import base
import torch
from transformers import AutoModelForCausalLM


def refused(into: Path, package: str, call: str, convert: Callable[[Path, Path], None], whole: bool = False) -> None:
    """``convert``: from the unquantised model's directory into another. ``whole``: its tensors alone show the tool."""
    with tempfile.TemporaryDirectory() as place:
        plain, written = base.made(Path(place) / "plain"), Path(place) / "written"
        convert(plain, written)
        base.keep(written, into, {}, {"tool": f"{package} {version(package)}", "call": call}, whole)


def mlx(plain: Path, written: Path, **options: Any) -> None:
    from mlx_lm import convert

    convert(str(plain), str(written), quantize=True, **options)


def through_transformers(plain: Path, written: Path, config: Callable[[], Any]) -> None:
    options = {"dtype": torch.bfloat16, "quantization_config": config(), "device_map": "cpu"}
    AutoModelForCausalLM.from_pretrained(plain, **options).save_pretrained(written)


def torchao(name: str, **options: Any) -> Any:
    from torchao import quantization
    from transformers import TorchAoConfig

    return TorchAoConfig(getattr(quantization, name)(**options))


def torchao_intx() -> Any:
    from torchao.quantization.granularity import PerGroup

    return torchao("IntxWeightOnlyConfig", weight_dtype=torch.int4, granularity=PerGroup(32))


def hqq(plain: Path, written: Path) -> None:
    """By HQQ itself: transformers 5 does not. The config says nothing of it, and a file's name all."""
    from hqq.core.quantize import BaseQuantizeConfig
    from hqq.models.hf.base import AutoHQQHFModel

    model = base.loaded(plain)
    AutoHQQHFModel.quantize_model(model, BaseQuantizeConfig(nbits=4, group_size=64), torch.bfloat16, "cpu")
    AutoHQQHFModel.save_quantized(model, str(written))
    (written / "qmodel.pt").write_bytes(b"")


def sinq_tensors(plain: Path, written: Path) -> None:
    """By SINQ itself."""
    from sinq.patch_model import AutoSINQHFModel
    from sinq.sinqlinear import sinq_base_quant_config
    from transformers import AutoTokenizer

    model, tokenizer = base.loaded(plain), AutoTokenizer.from_pretrained(plain)
    asked = sinq_base_quant_config(nbits=4, group_size=64, tiling_mode="1D", method="sinq")
    AutoSINQHFModel.quantize_model(
        model, tokenizer=tokenizer, quant_config=asked, compute_dtype=torch.bfloat16, device="cpu"
    )
    AutoSINQHFModel.save_quantized_safetensors(model, tokenizer, str(written))


def sinq() -> Any:
    from transformers import SinqConfig

    return SinqConfig()


def quanto(plain: Path, written: Path) -> None:
    from optimum.quanto import QuantizedModelForCausalLM, qint8

    QuantizedModelForCausalLM.quantize(base.loaded(plain), weights=qint8, exclude="lm_head").save_pretrained(written)


CASES: dict[str, Callable[[Path], None]] = {
    **{
        f"mlx-{bits}": partial(
            refused, package="mlx-lm", call=f"{bits} bits", convert=partial(mlx, q_bits=bits, q_group_size=32)
        )
        for bits in (2, 3, 4, 6, 8)
    },
    **{
        f"mlx-{mode}": partial(refused, package="mlx-lm", call=mode, convert=partial(mlx, q_mode=mode))
        for mode in ("mxfp4", "nvfp4", "mxfp8")
    },
    **{
        f"torchao-{name.lower()}": partial(
            refused,
            package="torchao",
            call=f"{name}WeightOnlyConfig",
            convert=partial(through_transformers, config=partial(torchao, f"{name}WeightOnlyConfig")),
        )
        for name in ("Int8", "Float8")
    },
    **{
        f"torchao-{name}": partial(
            refused, package="torchao", call=call, convert=partial(through_transformers, config=config)
        )
        for name, call, config in (
            ("intx", "IntxWeightOnlyConfig, int4 in groups of 32", torchao_intx),
            (
                "w8a8",
                "Int8DynamicActivationInt8WeightConfig",
                partial(torchao, "Int8DynamicActivationInt8WeightConfig"),
            ),
        )
    },
    "hqq": partial(refused, package="hqq", call="4 bits", convert=hqq),
    "sinq-tensors": partial(
        refused, package="sinq", call="4 bits, save_quantized_safetensors", convert=sinq_tensors, whole=True
    ),
    "quanto": partial(refused, package="optimum-quanto", call="qint8", convert=quanto),
    "sinq": partial(refused, package="sinq", call="4 bits", convert=partial(through_transformers, config=sinq)),
}

if __name__ == "__main__":
    base.main(CASES)
