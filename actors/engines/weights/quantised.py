"""Quantised safetensors: what each published layout's numbers mean.

The ``weight`` of a linear layer is stored as several tensors, with the tool's own names and order of bits. Here
they become the matrix again, as that tool computes it; no quantisation library is needed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from actors.engines.weights.formats import GROUP, MXFP4, NUMBER, NVFP4, Codes, Form, half_powers, in_float16
from actors.engines.weights.matrices import FP4, Apart, Dequantised, Integers
from actors.engines.weights.quantisation import ALL, LayerForm, Scheme, refused
from actors.engines.weights.unneeded import OF_ACTIVATIONS
from protocols.errors import ModelError

Parts = Mapping[str, Tensor]  # one layer's tensors, by the end of their names
Weight = Tensor | Integers | Dequantised | Apart
PLAIN = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
AWQ_SHIFTS = 4 * torch.tensor([0, 4, 1, 5, 2, 6, 3, 7])  # shifts of the columns 0 to 7 of a word
_STATE = "weight.quant_state.bitsandbytes__"
ENDS = (
    "weight weight_packed weight_scale weight_zero_point weight_shape weight_g_idx weight_global_scale "
    "weight_scale_inv weight_scale_2 qweight qzeros scales g_idx SCB weight_format pre_quant_scale "
    f"weight.absmax weight.quant_map weight.nested_absmax weight.nested_quant_map {_STATE}nf4 {_STATE}fp4"
)
OF_INPUTS = (".input_scale", ".activation_scale", ".input_global_scale", ".input_zero_point")  # inputs are not rounded
_ENDS = sorted(ENDS.split(), key=len, reverse=True)


def _unpacked(words: Tensor, bits: int, count: int) -> Tensor:
    """Numbers without a sign along the last dimension of int32 words, the lowest bits first and without gaps."""
    wide = words.to(torch.int64) & 0xFFFFFFFF
    if 32 % bits == 0:
        return ((wide[..., None] >> torch.arange(0, 32, bits)) & ((1 << bits) - 1)).flatten(-2)[..., :count]
    first = torch.arange(count) * bits
    word, shift = first // 32, first % 32
    following = (word + 1).clamp(max=wide.shape[-1] - 1)
    return ((wide[..., word] >> shift) | (wide[..., following] << (32 - shift))) & ((1 << bits) - 1)


def _unpacked_with_gaps(words: Tensor, bits: int, count: int) -> Tensor:
    """The same with as many numbers as fit whole in a word: of compressed-tensors before 0.18."""
    shifts = torch.arange(32 // bits) * bits
    return (((words.to(torch.int64) & 0xFFFFFFFF)[..., None] >> shifts) & ((1 << bits) - 1)).flatten(-2)[..., :count]


def _broken(found: str) -> ModelError:
    """For what no other download would change: a file that is cut off is refused before it is read."""
    return ModelError(
        f"{found}: the tool that quantised the model wrote it so; choose another checkpoint, or quantise the model "
        "anew and leave this layer out"
    )


def _unpacker(name: str, words: int, bits: int, count: int) -> Callable[[Tensor, int, int], Tensor]:
    """By the number of words that hold ``count`` numbers. Raises ModelError."""
    if words == -(-count * bits // 32):
        return _unpacked
    if words == -(-count // (32 // bits)):
        return _unpacked_with_gaps
    raise _broken(f"{name} has {words} words in a row for {count} numbers of {bits} bits")


def _wanted(name: str, tensor: Tensor, *shapes: tuple[int, ...]) -> Tensor:
    """Raise ModelError unless a tensor has one of ``shapes``."""
    if tuple(tensor.shape) not in shapes:
        own, wanted = " x ".join(map(str, tensor.shape)) or "a single number", " x ".join(map(str, shapes[0]))
        raise _broken(f"{name} is {own}, and its quantization_config says {wanted}")
    return tensor


def _name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _part(name: str, parts: Parts, *ends: str) -> Tensor:
    """The first tensor by ``ends``. Raises ModelError where there is none."""
    for end in ends:
        if end in parts:
            return parts[end]
    raise _broken(f"{name}.{ends[0]} is in no file, beside its layer's {', '.join(sorted(parts))}")


def _typed(name: str, tensor: Tensor, *kinds: torch.dtype) -> Tensor:
    """Raise ModelError unless a tensor has one of these types: fractions would be cut off, and signs lost."""
    if tensor.dtype not in kinds:
        wanted = " or ".join(map(str, kinds)).replace("torch.", "")
        raise refused(name, f"numbers in {_name(tensor)}", f"{wanted} there")
    return tensor


def _blocks(shape: tuple[int, int], block: tuple[int, int]) -> tuple[int, int]:
    """How many scales a matrix has along its rows and inputs."""
    rows, inputs = (1 if size == ALL else -(-whole // size) for whole, size in zip(shape, block, strict=True))
    return rows, inputs


def _ordered(name: str, groups: Tensor | None, size: int, inputs: int) -> Tensor | None:
    """The group of each input, where they do not follow one another or the last has fewer inputs than ``size``. Raises
    ModelError for groups that there are not, or of another number of inputs."""
    plain = torch.arange(inputs) // size
    if groups is not None:
        _typed(name, _wanted(name, groups, (inputs,)), torch.int32, torch.int64)
    if groups is None or bool((groups < 0).any()) or torch.equal(groups.long(), plain):
        return plain if inputs % size else None
    if int(groups.max()) > (last := int(plain[-1])):
        raise _broken(f"{name} has an input of group {int(groups.max())} of {last + 1}")
    return groups.long()


def _coded(name: str, words: Tensor, scales: Tensor) -> None:
    """Raise ModelError unless codes are a matrix of int32 and scales are numbers."""
    if words.dtype != torch.int32 or words.ndim != 2 or scales.dtype not in PLAIN:
        found = f"codes of {words.ndim} dimensions in {_name(words)} with scales in {_name(scales)}"
        raise refused(name, found, "matrices of int32 and scales that are numbers")


def _packed(name: str, parts: Parts, form: LayerForm) -> Integers:
    """pack-quantized of compressed-tensors."""
    bits, scale, zero = form.bits, _part(name, parts, "weight_scale"), parts.get("weight_zero_point")
    packed = _part(name, parts, "weight_packed")
    _coded(name, packed, scale)
    size = _typed(f"{name}.weight_shape", _part(name, parts, "weight_shape"), torch.int32, torch.int64)
    rows, inputs = map(int, _wanted(f"{name}.weight_shape", size, (2,)))
    assert form.block is not None
    down, groups = _blocks((rows, inputs), form.block)
    _wanted(f"{name}.weight_packed", packed, (rows, packed.shape[-1]))
    unpacked = _unpacker(f"{name}.weight_packed", packed.shape[-1], bits, inputs)
    flat = [(down,)] if groups == 1 else []
    _wanted(f"{name}.weight_scale", scale, (down, groups), *flat)
    tall = form.block[0] or rows  # rows with one scale

    def of_rows(numbers: Tensor) -> Tensor:
        return _spread(numbers.reshape(down, groups), (tall, 1), (rows, groups))

    zeros: Tensor | float = 1 << (bits - 1)
    place = f"{name}.weight_zero_point"
    if zero is not None and zero.dtype == torch.int32:
        words = _wanted(place, zero, (zero.shape[0], groups)).t()
        zeros = of_rows(_unpacker(place, zero.shape[0], bits, down)(words, bits, down).t())
    elif zero is not None:
        own = _typed(place, _wanted(place, zero, (down, groups), *flat), torch.int8)
        zeros = of_rows(own.int()) + (1 << (bits - 1))
    each = form.block[1] or inputs
    order = _ordered(f"{name}.weight_g_idx", parts.get("weight_g_idx"), each, inputs)
    codes: Callable[[Tensor], Tensor] = lambda chosen: unpacked(packed[chosen], bits, inputs)  # noqa: E731
    return Integers((rows, inputs), bits, codes, of_rows(scale), zeros, order)


def _scaled(name: str, parts: Parts, form: LayerForm) -> Integers | Dequantised:
    """Numbers of 8 bits times the scale of a tensor, of each row, or of blocks of rows and inputs."""
    weight, zero = _part(name, parts, "weight"), parts.get("weight_zero_point")
    scale = _part(name, parts, "weight_scale_inv" if "weight_scale_inv" in parts else "weight_scale")
    stored = torch.int8 if form.numbers == "integers" else torch.float8_e4m3fn
    if weight.dtype != stored or weight.ndim != 2:
        found = f"a weight of {weight.ndim} dimensions in {_name(weight)}"
        raise refused(name, f"{found} where {form} are said", "matrices of them")
    if scale.dtype not in (*PLAIN, torch.float8_e8m0fnu):
        raise refused(name, f"scales in {_name(scale)}", "scales that are numbers")
    rows, inputs = int(weight.shape[0]), int(weight.shape[1])
    block = form.block if form.block is not None else (ALL, ALL) if scale.numel() == 1 else (1, ALL)
    down, across = _blocks((rows, inputs), block)
    flat = [(down,)] if across == 1 else []
    _wanted(f"{name}.weight_scale", scale, (down, across), *flat, *([()] if down == across == 1 else []))
    scale = scale.reshape(down, across)
    if zero is not None and bool(zero.any()):
        _wanted(f"{name}.weight_zero_point", zero, (down, across), *flat)
        zero = zero.reshape(down, across)
    else:
        zero = None
    if form.numbers == "integers" and across == 1 and zero is None:
        return _signed(weight, _spread(scale, (block[0] or rows, 1), (rows, 1)))
    if form.numbers != "integers":
        return _float8(weight, scale.float(), block)

    def numbers() -> Tensor:
        values = weight.float()
        if zero is not None:
            values = values - _spread(zero.float(), block, (rows, inputs))
        return values * _spread(scale.float(), block, (rows, inputs))

    return Dequantised((rows, inputs), numbers)


def _float8(weight: Tensor, scale: Tensor, block: tuple[int, int]) -> Dequantised:
    """float8_e4m3fn times float32 scales of blocks."""
    rows, inputs = shape = (weight.shape[0], weight.shape[1])
    bits, each = weight.view(torch.uint8), 0 if scale.shape[1] == 1 else block[1]
    held = each in (0, 128) and inputs % (each or inputs) == 0
    if each == GROUP:  # powers of two, which round no number of bfloat16
        held = inputs % GROUP == 0 and bool((scale.frexp().mantissa == 0.5).all())
    number = NUMBER[Form(8, float8=each)] if held and not bool((bits & 127 == 127).any()) else 0  # NaN is not held

    def codes(chosen: Tensor) -> Codes:
        steps = scale[chosen // (block[0] or rows)]
        return Codes(number, bits[chosen].numpy(), steps[:, :, None].numpy())

    return Dequantised(shape, lambda: weight.float() * _spread(scale, block, shape), number, codes)


def _spread(scales: Tensor, block: tuple[int, int], shape: tuple[int, int]) -> Tensor:
    """The scale of each number of a matrix."""
    for place, size in enumerate(block):
        if size > 1:
            scales = scales.repeat_interleave(size, place)
    return scales[: shape[0], : shape[1]]


def _signed(weight: Tensor, scale: Tensor) -> Integers:
    """int8 with a scale for each row."""
    shape = (weight.shape[0], weight.shape[1])
    return Integers(shape, 8, lambda rows: weight[rows].to(torch.int64) + 128, scale.reshape(-1, 1), 128)


def _mxfp8(name: str, parts: Parts, form: LayerForm) -> Dequantised:
    """FP8 with a power of two for each 32 inputs."""
    weight, scale = _part(name, parts, "weight"), _part(name, parts, "weight_scale")
    if weight.dtype != torch.float8_e4m3fn or weight.ndim != 2 or scale.dtype != torch.uint8:
        raise refused(name, f"MXFP8 in {_name(weight)} and {_name(scale)}", "float8_e4m3fn and uint8")
    rows, inputs = int(weight.shape[0]), int(weight.shape[1])
    _wanted(f"{name}.weight_scale", scale, _blocks((rows, inputs), (1, 32)))
    return _float8(weight, torch.exp2(scale.float() - 127), (1, 32))


def _fp4(
    name: str, packed: Tensor, scale: Tensor, steps: Callable[[], Tensor],
    number: int, held: Callable[[Tensor], tuple[Any, Any]],
) -> Dequantised:  # fmt: skip
    """Two codes of 4 bits in a byte, the even input's in its low half. ``held``: for the products, see :class:`Codes`,
    the scales of int64 rows, and of the whole rows."""
    if packed.dtype != torch.uint8 or packed.ndim != 2:
        raise refused(name, f"codes of 4 bits in {_name(packed)}", "codes in uint8")
    rows, inputs, size = int(packed.shape[0]), 2 * int(packed.shape[1]), 16 if number == NVFP4 else 32
    _wanted(f"{name}.weight_scale", scale, _blocks((rows, inputs), (1, size)))

    def fours(bytes_: Tensor) -> Tensor:
        return torch.stack([bytes_ & 15, bytes_ >> 4], -1).flatten(-2)

    def codes(chosen: Tensor) -> Codes:
        each, whole = held(chosen)
        return Codes(number, fours(packed[chosen]).numpy(), each, whole=whole)

    def numbers() -> Tensor:
        return FP4[fours(packed).long()] * _spread(steps(), (1, size), (rows, inputs))

    return Dequantised((rows, inputs), numbers, number, codes)


def _mxfp4(name: str, parts: Parts, form: LayerForm) -> Dequantised:
    return _powers_of_two(name, _part(name, parts, "weight_packed"), _part(name, parts, "weight_scale"))


def _powers_of_two(name: str, packed: Tensor, scale: Tensor) -> Dequantised:
    if scale.dtype != torch.uint8:
        raise refused(name, f"scales of MXFP4 in {_name(scale)}", "scales in uint8")
    powers = scale.numpy()
    number = MXFP4 if in_float16(powers) else 0
    return _fp4(
        name, packed, scale, lambda: torch.exp2(scale.float() - 127),
        number, lambda rows: (half_powers(powers[rows.numpy()])[:, :, None], None),
    )  # fmt: skip


def _nvfp4(name: str, parts: Parts, form: LayerForm) -> Dequantised:
    """A scale in 8 bits for each 16 inputs, and one for all: compressed-tensors divides by it."""
    packed, scale = _part(name, parts, "weight_packed", "weight"), _part(name, parts, "weight_scale")
    if scale.dtype != torch.float8_e4m3fn:
        raise refused(name, f"scales of NVFP4 in {_name(scale)}", "scales in float8_e4m3fn")
    divided = "weight_packed" in parts
    whole = _part(name, parts, "weight_global_scale" if divided else "weight_scale_2")
    _wanted(f"{name}.{'weight_global_scale' if divided else 'weight_scale_2'}", whole, (1,), ())
    factor = 1 / float(whole) if divided else float(whole)

    def held(rows: Tensor) -> tuple[Any, Any]:
        each = scale[rows].float() / 2  # the table's numbers are doubled
        return each.numpy().reshape(len(rows), -1, 2), np.full((len(rows), 1), factor, np.float32)

    def steps() -> Tensor:
        return scale.float() / whole.float() if divided else scale.float() * whole.float()

    return _fp4(name, packed, scale, steps, NVFP4, held)


def _awq_columns(words: Tensor, chosen: Tensor) -> Tensor:
    """The numbers of 4 bits in some columns of a matrix that AWQ has packed along its rows."""
    return (words[:, chosen // 8].to(torch.int64) & 0xFFFFFFFF) >> AWQ_SHIFTS[chosen % 8] & 15


def _by_inputs(name: str, parts: Parts, form: LayerForm) -> Integers:
    """GPTQ and AWQ: a stored row has the numbers of inputs, or of a group of them, for all outputs."""
    bits, words, awq = form.bits, _part(name, parts, "qweight"), form.kind == "awq"
    stored, packed = _part(name, parts, "scales"), _part(name, parts, "qzeros")
    for one in (words, packed):
        _coded(name, one, stored)
    inputs, outputs = int(words.shape[0]), int(words.shape[1])
    inputs, outputs = (inputs, outputs * 8) if awq else (inputs * 32 // bits, outputs)
    assert form.block is not None
    groups = _blocks((outputs, inputs), form.block)[1]
    _wanted(f"{name}.scales", stored, (groups, outputs))
    _wanted(f"{name}.qzeros", packed, (groups, -(-outputs * bits // 32)))
    order = _ordered(f"{name}.g_idx", parts.get("g_idx"), form.block[1] or inputs, inputs)
    if awq:
        zeros = _awq_columns(packed, torch.arange(outputs)).t()
        return Integers((outputs, inputs), bits, lambda rows: _awq_columns(words, rows).t(), stored.t(), zeros, order)
    zeros, middle = _unpacked(packed, bits, outputs).t() + (form.kind == "gptq"), 1 << (bits - 1)
    symmetric = bool((zeros == middle).all())  # products need no zeros
    if not (symmetric or form.zeros):
        raise _broken(
            f"{name}.qzeros are {zeros.min()} to {zeros.max()}, and its quantization_config says symmetric integers of "
            f"{bits} bits, whose zeros are {middle}"
        )
    zero = middle if symmetric else zeros
    return Integers(
        (outputs, inputs), bits, lambda rows: _unpacked(words[:, rows].t(), bits, inputs), stored.t(), zero, order
    )


def _bnb8(name: str, parts: Parts, form: LayerForm) -> Integers:
    """int8, each row to 127 of its largest."""
    weight, largest = _part(name, parts, "weight"), _typed(f"{name}.SCB", _part(name, parts, "SCB"), *PLAIN)
    if weight.dtype != torch.int8 or weight.ndim != 2:
        raise refused(name, f"int8 of bitsandbytes in {_name(weight)}", "int8")
    if bool(parts.get("weight_format", torch.zeros(1)).any()):  # rows are those of the matrix where it is 0
        raise refused(name, "int8 of bitsandbytes in the order of a GPU kernel", "weight_format 0")
    return _signed(weight, _wanted(f"{name}.SCB", largest, (weight.shape[0],)).float() / 127)


def _bnb4(name: str, parts: Parts, form: LayerForm) -> Dequantised:
    state_name = next((end for end in parts if end.startswith(_STATE)), "")
    state = _state(name, _part(name, parts, state_name or f"{_STATE}{form.numbers}"))
    if state_name != f"{_STATE}{form.numbers}" or state.get("quant_type", form.numbers) != form.numbers:
        raise refused(name, f"{state_name or 'no state'} where {form.numbers} is said", "one type of 4 bits")
    shape, size = tuple(int(one) for one in state["shape"]), int(state["blocksize"])
    packed = _part(name, parts, "weight").contiguous().reshape(-1).view(torch.uint8)  # stored as bytes or as floats
    largest, table = _part(name, parts, "weight.absmax"), _part(name, parts, "weight.quant_map")
    count = math.prod(shape)
    _wanted(f"{name}.weight", packed, ((count + 1) // 2,))
    _wanted(f"{name}.weight.absmax", largest, (-(-count // size),))
    _wanted(f"{name}.weight.quant_map", table, (16,))
    nested = parts.get("weight.nested_absmax")
    if nested is not None:
        _wanted(f"{name}.weight.nested_absmax", nested, (-(-len(largest) // int(state["nested_blocksize"])),))
        _wanted(f"{name}.weight.nested_quant_map", _part(name, parts, "weight.nested_quant_map"), (256,))
    if (nested is None) is (largest.dtype == torch.uint8):
        raise refused(name, f"absmax in {_name(largest)}", "absmax in float32, or nested in uint8")

    def numbers() -> Tensor:
        codes = torch.stack([packed >> 4, packed & 15], -1).flatten()[:count]
        each = largest.float()
        if nested is not None:
            inner = parts["weight.nested_quant_map"][largest.long()].reshape(-1)
            each = inner * nested.repeat_interleave(int(state["nested_blocksize"]))[: len(inner)]
            each = each + float(state["nested_offset"])
        return (table.float()[codes.long()] * each.repeat_interleave(size)[:count]).reshape(shape)

    return Dequantised(shape, numbers)


def _state(name: str, stored: Tensor) -> dict[str, Any]:
    """What bitsandbytes writes of a matrix as JSON in a tensor."""
    try:
        state = json.loads(bytes(stored.tolist()))
        assert all(int(one) > 0 for one in state["shape"]) and int(state["blocksize"]) > 0
        assert int(state.get("nested_blocksize", 1)) > 0 and float(state.get("nested_offset", 0)) is not None
    except (ValueError, TypeError, KeyError, AssertionError):
        raise _broken(f"the state of {name} by bitsandbytes cannot be read") from None
    return dict(state)


_GPTQ = {"qweight", "qzeros", "scales", "g_idx"}
READERS: dict[str, tuple[Callable[[str, Parts, LayerForm], Weight], set[str]]] = {  # and the tensors that each may use
    "packed": (_packed, {"weight_packed", "weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx"}),
    "scaled": (_scaled, {"weight", "weight_scale", "weight_scale_inv", "weight_zero_point"}),
    "mxfp8": (_mxfp8, {"weight", "weight_scale"}),
    "mxfp4": (_mxfp4, {"weight_packed", "weight_scale"}),
    "nvfp4": (_nvfp4, {"weight", "weight_packed", "weight_scale", "weight_scale_2", "weight_global_scale"}),
    "gptq": (_by_inputs, _GPTQ),
    "gptq_v2": (_by_inputs, _GPTQ),
    "awq": (_by_inputs, _GPTQ - {"g_idx"}),
    "bnb8": (_bnb8, {"weight", "SCB", "weight_format"}),
    "bnb4": (_bnb4, {end for end in _ENDS if end.startswith("weight.")} | {"weight"}),
}


def read_weights(tensors: Mapping[str, Tensor], scheme: Scheme) -> Iterator[tuple[str, Weight]]:
    """All weights of a checkpoint by the names of an unquantised one, those of quantised layers as they are stored."""
    layers: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name.endswith("_scales") and (base := name.removesuffix("_scales")) + "_blocks" in tensors:
            yield base, _experts(base, tensors[base + "_blocks"], tensor, scheme)
        elif (
            name.endswith(OF_INPUTS)
            or OF_ACTIVATIONS.fullmatch(name)
            or (name.endswith("_blocks") and name.removesuffix("_blocks") + "_scales" in tensors)
        ):
            continue
        elif (end := next((end for end in _ENDS if name.endswith(f".{end}")), None)) is None:
            yield name, _plain(name, tensor, scheme)
        else:
            layers.setdefault(name[: -len(end) - 1], {})[end] = tensor
    for layer, parts in layers.items():
        if parts.keys() == {"weight"} and parts["weight"].dtype in PLAIN:
            yield f"{layer}.weight", parts["weight"]
        else:
            yield f"{layer}.weight", _layer(layer, parts, scheme)


def _plain(name: str, tensor: Tensor, scheme: Scheme) -> Tensor:
    """A tensor of no quantised layer."""
    if tensor.is_floating_point() and tensor.dtype not in PLAIN:
        raise refused(name, f"numbers in {_name(tensor)} of {scheme.tool}", "plain numbers there")
    return tensor


def _layer(layer: str, parts: Parts, scheme: Scheme) -> Weight:
    """A quantised layer's matrix. Raises ModelError for parts that the config does not say."""
    if "pre_quant_scale" in parts:
        raise refused(layer, "pre_quant_scale, a factor of the inputs (modelopt)", "no smoothing")
    if (form := scheme.form(layer)) is None:
        found = f"quantised tensors ({', '.join(sorted(parts))}) where the quantization_config names none"
        raise refused(layer, f"{found} of {scheme.tool}", "both alike")
    read, used = READERS[form.kind]
    if unknown := sorted(parts.keys() - used):
        raise refused(layer, f"{', '.join(unknown)} beside {form} of {scheme.tool}", f"{', '.join(sorted(used))} alone")
    return read(layer, parts, form)


def _experts(name: str, blocks: Tensor, scales: Tensor, scheme: Scheme) -> Apart:
    """Those of gpt-oss, ``(experts, outputs, groups of 32, 16)``."""
    if scheme.tool != "mxfp4" or blocks.ndim != 4 or blocks.shape[3] != 16 or blocks.dtype != torch.uint8:
        raise refused(name, f"blocks of experts of {scheme.tool}", "those of gpt-oss")
    _wanted(f"{name}_scales", scales, tuple(blocks.shape[:3]))
    each = [_powers_of_two(name, *one) for one in zip(blocks.flatten(2), scales, strict=True)]
    in_half = [replace(one, make=lambda one=one: one.make().bfloat16()) for one in each]  # type: ignore[misc]
    return Apart([[one] for one in in_half], transposed=True, woven=name.endswith("gate_up_proj"))


def dequantised(tensors: Mapping[str, Tensor], scheme: Scheme) -> Iterator[tuple[str, Tensor]]:
    """The same in numbers."""
    for name, weight in read_weights(tensors, scheme):
        yield name, weight if isinstance(weight, Tensor) else weight.values()
