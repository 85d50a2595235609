"""Quantised safetensors: what each published layout's numbers mean.

The ``weight`` of a linear layer is stored as several tensors, with the tool's own names and order of bits. Here
they become the matrix again, as that tool computes it; no quantisation library is needed.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actors.engines.decoder.cpu.forms import E2M1, GROUP, MXFP4, PANEL
from actors.engines.weights.blocks import Codes, half_powers
from actors.engines.weights.grouped import Blocks, in_float16
from protocols.errors import ModelError

Parts = Mapping[str, Tensor]  # of one layer, by the end of their names
Config = Mapping[str, Any]
FP4 = torch.tensor(E2M1) / 2
FORM_OF = {(4, 8.0): 1, (8, 128.0): 5}  # of products with integers, by bits and the zero of all groups
WITH_ZEROS = {4: 2}  # by bits, where groups have zeros of their own
CLOSE = 1e-3  # relative: float16 has scales to within half of it, unless they are below its normal numbers
AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # where the columns 0 to 7 of a word are
_STATE = "weight.quant_state.bitsandbytes__"
ENDS = (
    "weight weight_packed weight_scale weight_zero_point weight_shape weight_g_idx weight_global_scale "
    "weight_scale_inv weight_scale_2 input_global_scale input_scale qweight qzeros scales g_idx SCB weight_format "
    f"weight.absmax weight.quant_map weight.nested_absmax weight.nested_quant_map {_STATE}nf4 {_STATE}fp4"
)
_ENDS = sorted(ENDS.split(), key=len, reverse=True)


def _unpacked(words: Tensor, bits: int, count: int) -> Tensor:
    """Numbers without a sign along the last dimension of int32 words, the lowest bits first."""
    shifts = torch.arange(0, 32, bits)
    wide = (words.to(torch.int64)[..., None] & 0xFFFFFFFF) >> shifts & ((1 << bits) - 1)
    return wide.flatten(-2)[..., :count]


@dataclass(frozen=True, slots=True)
class Integers:
    """A matrix ``(codes - zeros) * scales`` of codes without a sign; scales and zeros ``(rows, groups)``."""

    shape: tuple[int, int]
    bits: int
    read: Callable[[Tensor], Tensor]  # int64 rows to their codes (rows, inputs)
    scales: Tensor
    zeros: Tensor | float
    groups: Tensor | None = None  # the group of each input; None: they are equal and follow one another

    def values(self) -> Tensor:
        codes = self.read(torch.arange(self.shape[0]))
        groups = torch.arange(self.shape[1]) // self.group if self.groups is None else self.groups
        shifted = codes.float() - (self.zeros[:, groups].float() if isinstance(self.zeros, Tensor) else self.zeros)
        return shifted * self.scales.float()[:, groups]

    @property
    def group(self) -> int:
        """Inputs of a group."""
        return -(-self.shape[1] // self.scales.shape[1])

    @property
    def form(self) -> int:
        """See :class:`Codes`; 0: there is none."""
        own = isinstance(self.zeros, Tensor)
        return WITH_ZEROS.get(self.bits, 0) if own else FORM_OF.get((self.bits, float(self.zeros)), 0)

    def blocks(self) -> Blocks | None:
        rows, inputs = self.shape
        if not self.form or rows < PANEL or inputs % GROUP or self.groups is not None or self.group % GROUP:
            return None
        scales = self.scales.float()
        return Blocks([(self, None)]) if torch.allclose(scales.half().float(), scales, rtol=CLOSE, atol=0) else None

    def expert_blocks(self) -> None:
        return None

    def codes(self, rows: NDArray[np.int64]) -> Codes:
        """For the products. Scales, and what zeros take away, are rounded to float16."""
        chosen = torch.from_numpy(rows)
        scales = self.scales[chosen].float()
        steps = [scales.half()]
        if isinstance(self.zeros, Tensor):
            steps.append((-self.zeros[chosen] * scales).half())
        each = torch.stack(steps, 2).repeat_interleave(self.group // GROUP, 1)[:, : self.shape[1] // GROUP]
        return Codes(self.form, self.read(chosen).to(torch.uint8).numpy(), each.numpy())


@dataclass(frozen=True, slots=True)
class Microscaled:
    """MXFP4 of experts ``(experts, outputs, groups of 32, 16)``: two codes a byte, the even input's in its low half,
    and a power of two for each group. transformers has outputs last."""

    packed: Tensor
    scales: Tensor
    woven: bool = False  # a gate's row lies beside its row of up

    @property
    def shape(self) -> tuple[int, int, int]:
        experts, outputs, groups, _ = self.packed.shape
        return experts, 32 * groups, outputs

    def blocks(self) -> None:
        return None

    def expert_blocks(self) -> list[Blocks] | None:
        if not in_float16(self.scales.numpy()):
            return None
        experts, _, outputs = self.shape
        order = np.concatenate([np.arange(0, outputs, 2), np.arange(1, outputs, 2)]) if self.woven else None
        return [Blocks([(_OfExpert(self, expert), order)]) for expert in range(experts)]

    def codes(self, expert: int, rows: Tensor) -> Tensor:
        """uint8 ``(rows, inputs)``."""
        chosen = self.packed[expert][rows]
        return torch.stack([chosen & 15, chosen >> 4], -1).flatten(1)

    def values(self) -> Tensor:
        experts, inputs, outputs = self.shape
        whole = torch.empty(experts, inputs, outputs, dtype=torch.bfloat16)
        for expert in range(experts):
            steps = torch.exp2(self.scales[expert].float() - 127).repeat_interleave(32, 1)
            whole[expert] = (FP4[self.codes(expert, torch.arange(outputs)).long()] * steps).t()
        return whole


@dataclass(frozen=True, slots=True)
class _OfExpert:
    """The matrix of one expert."""

    whole: Microscaled
    expert: int
    form: int = MXFP4

    @property
    def shape(self) -> tuple[int, ...]:
        return self.whole.shape[:0:-1]

    def codes(self, rows: NDArray[np.int64]) -> Codes:
        chosen = torch.from_numpy(rows)
        steps = half_powers(self.whole.scales[self.expert][chosen].numpy())
        return Codes(MXFP4, self.whole.codes(self.expert, chosen).numpy(), steps[:, :, None])


@dataclass(frozen=True, slots=True)
class Dequantised:
    """A matrix that is computed when it is asked for: those of all layers at once take several times their files."""

    shape: tuple[int, ...]
    make: Callable[[], Tensor]  # in float32

    def values(self) -> Tensor:
        return self.make()

    def blocks(self) -> None:
        return None

    def expert_blocks(self) -> None:
        return None


READ_BITS = (2, 4, 8)
GPTQ_FORMATS = (None, "gptq", "gptq_v2", "marlin")  # the last has a sentence of its own
FOLDED = {"weight_input", "weight_output"}  # places of rotations that the stored weights have in them


def _refused(name: str, found: str, read: str) -> ModelError:
    return ModelError(f"{name} has {found}, which duoactor does not read; choose a checkpoint with {read}")


Weight = Tensor | Integers | Microscaled | Dequantised


def _group_of(config: Config, name: str) -> dict[str, Any]:
    """The ``weights`` of the group of compressed-tensors that a layer belongs to."""
    by_target = {
        target: group for group in config.get("config_groups", {}).values() for target in group.get("targets", ())
    }
    patterns = sorted(target for target in by_target if target.startswith("re:"))
    found = [name, *(pattern for pattern in patterns if re.match(pattern[3:], name)), "Linear"]
    chosen = next((by_target[target] for target in found if target in by_target), None)
    return dict((chosen or next(iter(config["config_groups"].values())))["weights"])


def _compressed(name: str, parts: Parts, config: Config) -> Integers | Dequantised:
    weights = _group_of(config, name)
    bits = int(weights.get("num_bits", 8))
    if "weight_global_scale" in parts:
        return _nvfp4(
            parts["weight_packed"],
            lambda: parts["weight_scale"].float() / parts["weight_global_scale"].float(),
        )
    scale, zero = parts["weight_scale"], parts.get("weight_zero_point")
    if "weight_packed" in parts:
        if "weight_shape" not in parts:
            raise _refused(name, "weight_packed without weight_shape (MXFP4)", "pack-quantized and NVFP4")
        if bits not in READ_BITS:
            raise _refused(name, f"num_bits {bits} of compressed-tensors", "2, 4 and 8 bits")
        rows, inputs = (int(n) for n in parts["weight_shape"])
        packed = parts["weight_packed"]
        zeros: Tensor | float = 1 << (bits - 1)
        if zero is not None:
            zeros = _unpacked(zero.t(), bits, rows).t() if zero.dtype == torch.int32 else zero + (1 << (bits - 1))
        groups = _ordered(parts.get("weight_g_idx"))
        return Integers(
            (rows, inputs),
            bits,
            lambda chosen: _unpacked(packed[chosen], bits, inputs),
            scale.reshape(rows, -1),
            zeros,
            groups,
        )
    weight = parts["weight"]
    if weight.dtype == torch.int8 and scale.numel() == len(weight) and (zero is None or not bool(zero.any())):
        return _signed(weight, scale)
    return _scaled(name, weight, scale, zero)


def _signed(weight: Tensor, scale: Tensor) -> Integers:
    """int8 with a scale for each row."""
    shape = (weight.shape[0], weight.shape[1])
    return Integers(shape, 8, lambda rows: weight[rows].to(torch.int64) + 128, scale.reshape(-1, 1), 128)


def _ordered(groups: Tensor | None) -> Tensor | None:
    return None if groups is None or bool((groups < 0).any()) else groups.long()


def _scaled(name: str, weight: Tensor, scale: Tensor, zero: Tensor | None = None) -> Dequantised:
    """Of a tensor, each row, or blocks of rows and inputs."""
    if scale.dtype == torch.uint8 or weight.dtype == torch.uint8:
        raise _refused(name, "exponents or packed codes in uint8 (MXFP8, MXFP4, INT4)", "FP8, INT8 and NVFP4")
    if scale.ndim > 2:
        raise _refused(name, f"a weight_scale of shape {tuple(scale.shape)}", "scales of two dimensions at most")

    def numbers() -> Tensor:
        values, scales = weight.float(), scale.float()
        if zero is not None and bool(zero.any()):
            values = values - zero.float().reshape(-1, 1)
        if scales.numel() == 1 or scales.numel() == len(scales) == len(values):  # not as many blocks as there are rows
            return values * scales.reshape(-1, 1)
        rows, inputs = (-(-size // count) for size, count in zip(values.shape, scales.shape, strict=True))
        rows, inputs = (1 << (size - 1).bit_length() for size in (rows, inputs))
        whole = scales.repeat_interleave(rows, 0).repeat_interleave(inputs, 1)
        return values * whole[: values.shape[0], : values.shape[1]]

    return Dequantised(tuple(weight.shape), numbers)


def _fp8(name: str, parts: Parts, config: Config) -> Dequantised:
    return _scaled(name, parts["weight"], parts["weight_scale_inv" if "weight_scale_inv" in parts else "weight_scale"])


def _gptq(name: str, parts: Parts, config: Config) -> Integers:
    bits = int(config.get("bits", 4))
    words, scales = parts["qweight"], parts["scales"].t()
    inputs = words.shape[0] * 32 // bits
    more = 0 if config.get("checkpoint_format") == "gptq_v2" else 1
    zeros = _unpacked(parts["qzeros"], bits, scales.shape[0]).t() + more
    groups = _ordered(parts.get("g_idx"))
    if groups is not None and torch.equal(groups, torch.arange(inputs) // -(-inputs // scales.shape[1])):
        groups = None
    shape = (scales.shape[0], inputs)
    return Integers(shape, bits, lambda rows: _unpacked(words[:, rows].t(), bits, inputs), scales, zeros, groups)


def _awq(name: str, parts: Parts, config: Config) -> Integers:
    words, scales = parts["qweight"], parts["scales"].t()
    places = 4 * torch.tensor(AWQ_ORDER)

    def columns(words: Tensor, chosen: Tensor) -> Tensor:
        return (words[:, chosen // 8].to(torch.int64) & 0xFFFFFFFF) >> places[chosen % 8] & 15

    shape, zeros = (scales.shape[0], words.shape[0]), columns(parts["qzeros"], torch.arange(scales.shape[0])).t()
    return Integers(shape, 4, lambda rows: columns(words, rows).t(), scales, zeros)


def _nvfp4(packed: Tensor, scales: Callable[[], Tensor]) -> Dequantised:
    def numbers() -> Tensor:
        codes, steps = torch.stack([packed & 15, packed >> 4], -1).flatten(-2), scales()
        return FP4[codes.long()] * steps.repeat_interleave(codes.shape[1] // steps.shape[1], 1)

    return Dequantised((packed.shape[0], 2 * packed.shape[1]), numbers)


def _modelopt(name: str, parts: Parts, config: Config) -> Dequantised:
    if "weight_scale_2" in parts:
        return _nvfp4(parts["weight"], lambda: parts["weight_scale"].float() * parts["weight_scale_2"].float())
    return _scaled(name, parts["weight"], parts["weight_scale"])


def _bitsandbytes(name: str, parts: Parts, config: Config) -> Integers | Dequantised:
    if "SCB" in parts:  # int8, each row to 127 of its largest
        return _signed(parts["weight"], parts["SCB"].float() / 127)
    if parts["weight"].dtype != torch.uint8:
        raise _refused(name, f"bnb_4bit_quant_storage {parts['weight'].dtype} of bitsandbytes", "uint8")
    state_name = next(end for end in parts if "quant_state" in end)
    state = json.loads(bytes(parts[state_name].tolist()))
    shape = tuple(int(size) for size in state["shape"])

    def numbers() -> Tensor:
        packed = parts["weight"].reshape(-1)
        codes = torch.stack([packed >> 4, packed & 15], -1).flatten()
        largest = parts["weight.absmax"]
        if "weight.nested_absmax" in parts:
            inner = parts["weight.nested_quant_map"][largest.long()].reshape(-1)
            nested = parts["weight.nested_absmax"].repeat_interleave(int(state["nested_blocksize"]))[: len(inner)]
            largest = inner * nested + float(state["nested_offset"])
        values = parts["weight.quant_map"].float()[codes.long()]
        whole = values * largest.float().repeat_interleave(int(state["blocksize"]))[: len(values)]
        return whole[: math.prod(shape)].reshape(shape)

    return Dequantised(shape, numbers)


def _as_it_is(name: str, parts: Parts, config: Config) -> Tensor:
    return parts["weight"]


METHODS: dict[str, Callable[[str, Parts, Config], Tensor | Integers | Dequantised]] = {
    "compressed-tensors": _compressed,
    "fp8": _fp8,
    "gptq": _gptq,
    "awq": _awq,
    "modelopt": _modelopt,
    "bitsandbytes": _bitsandbytes,
    "mxfp4": _as_it_is,  # experts are quantised alone
}


def method_of(config: Config | None) -> str:
    """The name under which a ``quantization_config`` is read here; "": it is not."""
    name = str((config or {}).get("quant_method", "")).replace("modelopt_fp4", "modelopt")
    if name == "" and (config or {}).get("quant_algo"):
        name = "modelopt"
    return name if name in METHODS else ""


def check(name: str, config: Config) -> None:
    """Raise ModelError for a layout that is not read."""
    transforms = (config.get("transform_config") or {}).get("config_groups", {}).values()
    if any(place.get("location") not in FOLDED for scheme in transforms for place in scheme.get("apply", ())):
        raise _refused(name, "rotations at run time in transform_config of compressed-tensors", "folded ones or none")
    if config.get("weight_scale_semantics") is not None:
        raise _refused(name, "weight_scale_semantics of GPTQModel's fp8", "FP8 of another tool")
    if config.get("quant_method") == "gptq" and config.get("checkpoint_format") not in GPTQ_FORMATS:
        raise _refused(name, f"checkpoint_format {config['checkpoint_format']} of GPTQModel", "gptq or gptq_v2")
    if config.get("quant_method") == "gptq" and config.get("dynamic"):
        raise _refused(name, "overrides by layer in dynamic of GPTQModel", "the same bits in all layers")
    if config.get("format") == "marlin-24" or config.get("sparsity_config", {}).get("format", "dense") != "dense":
        raise ModelError(f"the weights of {name} are sparse, which duoactor does not read; choose a dense checkpoint")
    if config.get("checkpoint_format") == "marlin" or config.get("is_marlin_format"):
        raise ModelError(
            f"the weights of {name} are packed for one GPU kernel (Marlin); choose a plain GPTQ checkpoint"
        )
    if config.get("quant_method") == "awq" and config.get("version", "gemm") != "gemm":
        raise ModelError(f"{name} is AWQ of version {config['version']}; choose one of version gemm")
    if config.get("quant_method") == "gptq" and int(config.get("bits", 4)) not in (2, 4, 8):
        raise ModelError(f"{name} is GPTQ of {config['bits']} bits; duoactor reads 2, 4 and 8")


def read_weights(tensors: Mapping[str, Tensor], config: Config) -> Iterator[tuple[str, Weight]]:
    """All weights of a checkpoint by the names of an unquantised one, those of quantised layers as they are stored."""
    make = METHODS[method_of(config)]
    layers: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name.endswith(".pre_quant_scale"):
            raise _refused(name, "a factor of the inputs (modelopt)", "no smoothing")
        if name.endswith("_scales") and (base := name.removesuffix("_scales")) + "_blocks" in tensors:
            yield base, Microscaled(tensors[base + "_blocks"], tensor, base.endswith("gate_up_proj"))
            continue
        if name.endswith("_blocks"):
            continue
        end = next((end for end in _ENDS if name.endswith(f".{end}")), None)
        if end is None:
            yield name, tensor
        else:
            layers.setdefault(name[: -len(end) - 1], {})[end] = tensor
    for layer, parts in layers.items():
        if parts.keys() <= {"weight", "input_scale"}:
            yield f"{layer}.weight", parts["weight"]
        elif parts.keys() & {"weight", "weight_packed", "qweight"}:
            yield f"{layer}.weight", make(layer, parts, config)


def dequantised(tensors: Mapping[str, Tensor], config: Config) -> Iterator[tuple[str, Tensor]]:
    """The same in numbers."""
    for name, weight in read_weights(tensors, config):
        yield name, weight if isinstance(weight, Tensor) else weight.values()
