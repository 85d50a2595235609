"""Configs of tools whose checkpoints are refused: mlx-lm, torchao, Quark, SINQ and quanto, each with an environment."""

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


def refused(into: Path, package: str, call: str, convert: Callable[[Path, Path], None]) -> None:
    """``convert``: from the unquantised model's directory into another."""
    with tempfile.TemporaryDirectory() as place:
        plain, written = base.made(Path(place) / "plain"), Path(place) / "written"
        convert(plain, written)
        base.keep(written, into, {}, {"tool": f"{package} {version(package)}", "call": call})


def mlx(plain: Path, written: Path, **options: Any) -> None:
    from mlx_lm import convert

    convert(str(plain), str(written), quantize=True, **options)


def through_transformers(plain: Path, written: Path, config: Callable[[], Any]) -> None:
    options = {"dtype": torch.bfloat16, "quantization_config": config(), "device_map": "cpu"}
    AutoModelForCausalLM.from_pretrained(plain, **options).save_pretrained(written)


def torchao(name: str) -> Any:
    from torchao import quantization
    from transformers import TorchAoConfig

    return TorchAoConfig(getattr(quantization, name)())


def sinq() -> Any:
    from transformers import SinqConfig

    return SinqConfig()


def quanto(plain: Path, written: Path) -> None:
    from optimum.quanto import QuantizedModelForCausalLM, qint8

    QuantizedModelForCausalLM.quantize(base.loaded(plain), weights=qint8, exclude="lm_head").save_pretrained(written)


def quark(plain: Path, written: Path, scheme: str) -> None:
    from quark.torch import LLMTemplate, ModelQuantizer, export_safetensors

    tool = ModelQuantizer(LLMTemplate.get("llama").get_config(scheme=scheme))
    model = tool.quantize_model(base.loaded(plain), [torch.tensor([one]) for one in base.calibration()])
    with torch.no_grad():
        export_safetensors(tool.freeze(model), str(written))


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
        f"quark-{scheme}": partial(refused, package="amd-quark", call=scheme, convert=partial(quark, scheme=scheme))
        for scheme in ("fp8", "mxfp4", "int4_wo_32")
    },
    "quanto": partial(refused, package="optimum-quanto", call="qint8", convert=quanto),
    "sinq": partial(refused, package="sinq", call="4 bits", convert=partial(through_transformers, config=sinq)),
}

if __name__ == "__main__":
    base.main(CASES)
