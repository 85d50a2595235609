"""The quantization_config of compressed-tensors, which llm-compressor writes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from msgspec import Struct

from actors.engines.weights.quantisation import (
    READ,
    ROW,
    TENSOR,
    Config,
    LayerForm,
    Strict,
    pattern_of,
    read_struct,
    refused,
)

Numbers = Literal["int", "float"]
Strategy = Literal["tensor", "channel", "group", "block", "tensor_group", "token", "attn_head"]
CtFormat = Literal[
    "dense",
    "pack-quantized",
    "int-quantized",
    "float-quantized",
    "naive-quantized",
    "nvfp4-pack-quantized",
    "mxfp4-pack-quantized",
    "mxfp8-quantized",
    "mixed-precision",
]


class CtNumbers(Strict, frozen=True, forbid_unknown_fields=True):
    """``QuantizationArgs``. Observers are ignored: they matter only while a model is quantised."""

    num_bits: Literal[1, 2, 3, 4, 5, 6, 7, 8, 16] = 8
    type: Numbers = "int"
    symmetric: bool = True
    group_size: int | None = None
    strategy: Strategy | None = None
    block_structure: list[int] | str | None = None
    dynamic: bool | Literal["local"] = False
    actorder: Literal["group", "weight", "static", "dynamic"] | bool | None = None
    scale_dtype: str | None = None
    zp_dtype: str | None = None
    observer: Any = None
    observer_kwargs: Any = None

    @property
    def block(self) -> tuple[int, int]:
        size = self.group_size or 0
        match self.strategy or ("group" if size > 0 else "channel" if size == -1 else "tensor"):
            case "tensor":
                return TENSOR
            case "channel":
                return ROW
            case "block":
                both = re.findall(r"\d+", str(self.block_structure))
                return (int(both[0]), int(both[1])) if len(both) == 2 else TENSOR
        return (1, size) if size > 0 else ROW


class CtGroup(Strict, frozen=True, forbid_unknown_fields=True):
    """``QuantizationScheme``. Activations are computed with as they are, which rounds less."""

    targets: list[str]
    weights: CtNumbers | None = None
    input_activations: CtNumbers | None = None
    output_activations: CtNumbers | None = None
    format: CtFormat | None = None


class CtPlace(Struct, frozen=True):
    """``TransformArgs``: weights that are stored rotated need nothing; a rotation of inputs is to be computed."""

    location: Literal["weight_input", "weight_output"]


class CtTransform(Struct, frozen=True):
    apply: list[CtPlace] = []


class CtConfig(Strict, frozen=True, forbid_unknown_fields=True):
    config_groups: dict[str, Any]
    format: CtFormat = "dense"
    ignore: list[str] | None = None
    kv_cache_scheme: CtNumbers | None = None  # keys and values are kept as they are computed
    quantization_status: Literal["compressed", "frozen"] | None = None
    sparsity_config: dict[str, Any] | None = None
    transform_config: dict[str, Any] | None = None
    moe_sparsity_config: None = None


CT_PROVENANCE = "quant_method version provider global_compression_ratio"


@dataclass(frozen=True, slots=True)
class CompressedTensors:
    where: str
    config: CtConfig
    groups: tuple[CtGroup, ...]
    tool: str = "compressed-tensors"

    @classmethod
    def of(cls, where: str, config: Config) -> CompressedTensors:
        name = "compressed-tensors"
        if (sparse := _part(config, "sparsity_config").get("format", "dense")) != "dense":
            raise refused(where, f"sparsity_config.format {sparse!r} of {name}", "dense weights")
        read = read_struct(CtConfig, where, name, config, without=CT_PROVENANCE)
        transforms = _part(_part(config, "transform_config"), "config_groups").items()
        for key, one in transforms:
            try:
                msgspec.convert(one, CtTransform, strict=True)
            except msgspec.ValidationError:
                raise refused(
                    where, f"rotations at run time in transform_config.{key} of {name}", "folded ones or none"
                ) from None
        groups = tuple(
            read_struct(CtGroup, where, name, group, f"config_groups.{key}.")
            for key, group in read.config_groups.items()
        )
        made = cls(where, read, groups)
        for target in made._targets() | set(read.ignore or ()):
            if target.startswith("re:"):
                pattern_of(where, "a pattern of targets or ignore", target[3:])
        for group in groups:
            made._form(group)
        return made

    def _targets(self) -> set[str]:
        return {target for group in self.groups for target in group.targets}

    def form(self, layer: str) -> LayerForm | None:
        kind = "Embedding" if layer.endswith(("embed_tokens", "wte")) else "Linear"
        if any(_matches(layer, name) or name == kind for name in self.config.ignore or ()):
            return None
        by_target = {target: group for group in self.groups for target in group.targets}
        patterns = sorted(target for target in by_target if target.startswith("re:"))
        order = [layer, *(one for one in patterns if _matches(layer, one)), kind]
        group = next((by_target[target] for target in order if target in by_target), None)
        return None if group is None else self._form(group)

    def _form(self, group: CtGroup) -> LayerForm | None:
        name, weights = group.format or self.config.format, group.weights
        if weights is None or name == "dense" or weights.num_bits == 16:
            return None
        kind, bits, size = weights.type, weights.num_bits, weights.block
        numbers = "integers" if kind == "int" else "floats"
        match name:
            case "pack-quantized" if kind == "int" and bits <= 8:
                return LayerForm("packed", numbers, bits, size, not weights.symmetric)
            case "int-quantized" | "naive-quantized" if kind == "int" and bits <= 8:
                return LayerForm("scaled", numbers, 8, size, not weights.symmetric)
            case "float-quantized" | "naive-quantized" if kind == "float" and bits == 8 and weights.symmetric:
                return LayerForm("scaled", numbers, bits, size)
            case "nvfp4-pack-quantized" if (kind, bits) == ("float", 4):
                return LayerForm("nvfp4", "NVFP4", bits, (1, 16))
            case "mxfp4-pack-quantized" if (kind, bits) == ("float", 4):
                return LayerForm("mxfp4", "MXFP4", bits, (1, 32))
            case "mxfp8-quantized" if (kind, bits) == ("float", 8):
                return LayerForm("mxfp8", "MXFP8", bits, (1, 32))
        found = LayerForm("packed", numbers, bits, size, not weights.symmetric)
        raise refused(self.where, f"{name} {found} of {self.tool}", READ[self.tool])


def _part(config: Config, name: str) -> Config:
    """A part of a config; empty: there is none, or it is none."""
    return part if isinstance(part := config.get(name), dict) else {}


def _matches(layer: str, target: str) -> bool:
    """As compressed-tensors matches names: whole, or by a pattern from their beginning."""
    return re.match(target[3:], layer) is not None if target.startswith("re:") else target == layer
