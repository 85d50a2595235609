"""Linear layers of few rows whose weights lie in small groups of 4 to 8 bits, for a GPU.

A program makes numbers of the weights that it reads, in float32, rounds them to the type of the rows and multiplies
them on the matrix units. So a product is that of the numbers that the file stands for, in that type. The inner
dimension is cut as in :mod:`.linear`: a row has the same bits in any company.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from actors.engines.decoder.cpu.forms import FORMS
from actors.engines.decoder.gpu.groups import CHUNK, GroupedMatrix, Groups
from actors.engines.decoder.gpu.triton_kernels.gpu import Gpu
from actors.engines.decoder.gpu.triton_kernels.linear import COLUMNS, Cut, cut_of


@triton.jit
def _numbered(
    code, high, factors, table, column, group, outputs,
    BITS: tl.constexpr, OFFSET: tl.constexpr, MINIMA: tl.constexpr, HALVES: tl.constexpr, LISTED: tl.constexpr,
):  # fmt: skip
    """float32 ``(columns, 32)``: what the codes of a group stand for, given their low bits."""
    within = tl.arange(0, 32)
    code = code.to(tl.int32)
    if BITS < 8:
        for place in tl.static_range(BITS - 4):
            word = tl.load(high + (group * (BITS - 4) + place) * outputs + column)
            code |= ((word[:, None] >> within[None, :]) & 1) << (4 + place)
    number = tl.load(table + code) if LISTED else (code - OFFSET).to(tl.float32)
    pair = tl.load(factors + group * outputs + column)
    first = (pair & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    if HALVES:
        second = (pair >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
        number = number * tl.where(within[None, :] < 16, first[:, None], second[:, None])
    elif MINIMA:
        second = (pair >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
        number = number * first[:, None] + second[:, None]
    else:
        number = number * first[:, None]
    return number


@triton.jit
def _chunk(
    low, high, factors, table, column, chunk, outputs,
    BITS: tl.constexpr, OFFSET: tl.constexpr, MINIMA: tl.constexpr, HALVES: tl.constexpr, LISTED: tl.constexpr,
):  # fmt: skip
    """The numbers of a chunk's two groups."""
    within = tl.arange(0, 32)
    place = chunk.to(tl.int64) * outputs + column
    if BITS == 8:
        first = tl.load(low + place[:, None] * 64 + within[None, :], eviction_policy="evict_first")
        second = tl.load(low + place[:, None] * 64 + 32 + within[None, :], eviction_policy="evict_first")
    else:
        both = tl.load(low + place[:, None] * 32 + within[None, :], eviction_policy="evict_first")
        first, second = both & 15, both >> 4
    return (
        _numbered(
            first, high, factors, table, column, 2 * chunk, outputs,
            BITS, OFFSET, MINIMA, HALVES, LISTED,
        ),
        _numbered(
            second, high, factors, table, column, 2 * chunk + 1, outputs,
            BITS, OFFSET, MINIMA, HALVES, LISTED,
        ),
    )  # fmt: skip


@triton.jit(do_not_specialize=["rows"])
def _multiply(
    x, low, high, factors, low_2, high_2, factors_2, table, bias, bias_2, out, rows, outputs, whole,
    depth, reach,
    BITS: tl.constexpr, OFFSET: tl.constexpr, MINIMA: tl.constexpr, HALVES: tl.constexpr, LISTED: tl.constexpr,
    BIASED: tl.constexpr, GATED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    CHUNKS: tl.constexpr,
):  # fmt: skip
    """One tile of ``x W^T + b``, over one split of the inner dimension, of ``whole`` outputs a row. ``GATED``: of
    ``silu(x G^T) * (x U^T)``, U being the second matrix."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    split = tl.program_id(2)
    within = tl.arange(0, 32)
    own = tl.minimum(column, outputs - 1)
    asked = row[:, None] < rows
    begin = split * reach
    end = tl.minimum(begin + reach, depth)
    total = tl.zeros([COLUMNS, ROWS], tl.float32)
    second = tl.zeros([COLUMNS, ROWS], tl.float32)
    for here in range(begin, end, 64 * CHUNKS):
        for part in tl.static_range(CHUNKS):
            at = here + 64 * part
            chunk = tl.minimum(at, depth - 1) // 64  # behind the last one: its inputs are zeros
            given = x + row[:, None] * depth + at + within[None, :]
            left = tl.trans(tl.load(given, mask=asked & (at + within[None, :] < end), other=0.0))
            right = tl.trans(tl.load(given + 32, mask=asked & (at + 32 + within[None, :] < end), other=0.0))
            one, two = _chunk(low, high, factors, table, own, chunk, outputs, BITS, OFFSET, MINIMA, HALVES, LISTED)
            total = tl.dot(one.to(left.dtype), left, total, input_precision="ieee")
            total = tl.dot(two.to(left.dtype), right, total, input_precision="ieee")
            if GATED:
                one, two = _chunk(
                    low_2, high_2, factors_2, table, own, chunk, outputs,
                    BITS, OFFSET, MINIMA, HALVES, LISTED,
                )  # fmt: skip
                second = tl.dot(one.to(left.dtype), left, second, input_precision="ieee")
                second = tl.dot(two.to(left.dtype), right, second, input_precision="ieee")
    if BIASED:
        if split == 0:
            total += tl.load(bias + own).to(tl.float32)[:, None]
        if GATED:
            second += tl.load(bias_2 + own).to(tl.float32)[:, None]
    if GATED:
        total = total / (1.0 + tl.exp(-total)) * second
    place = (split * rows + row[None, :]).to(tl.int64) * whole + column[:, None]
    tl.store(out + place, total.to(out.dtype.element_ty), mask=(row[None, :] < rows) & (column[:, None] < outputs))


@triton.jit(do_not_specialize=["count"])
def _write(
    low, high, factors, table, chosen, out, count, outputs, depth,
    BITS: tl.constexpr, OFFSET: tl.constexpr, MINIMA: tl.constexpr, HALVES: tl.constexpr, LISTED: tl.constexpr,
    CHOSEN: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The numbers of a chunk of some outputs."""
    place = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    own = tl.minimum(place, count - 1)
    if CHOSEN:
        own = tl.load(chosen + own).to(tl.int32)
    chunk = tl.program_id(0)
    first, second = _chunk(low, high, factors, table, own, chunk, outputs, BITS, OFFSET, MINIMA, HALVES, LISTED)
    inside = chunk * 64 + tl.arange(0, 32)[None, :]
    at = out + place.to(tl.int64)[:, None] * depth + inside
    asked = (place < count)[:, None]
    tl.store(at, first.to(out.dtype.element_ty), mask=asked & (inside < depth))
    tl.store(at + 32, second.to(out.dtype.element_ty), mask=asked & (inside + 32 < depth))


def form_options(number: int) -> dict[str, Any]:
    """What of a form is compiled in."""
    form = FORMS[number - 1]
    return {
        "BITS": form.bits,
        "OFFSET": form.offset,
        "MINIMA": form.minima,
        "HALVES": form.halves,
        "LISTED": bool(form.table),
    }


def _pointers(part: Groups) -> tuple[Tensor, Tensor, Tensor]:
    return part.low, part.high, part.factors


def _launch(
    x: Tensor, part: Groups, second: Groups | None, biases: tuple[Tensor | None, Tensor | None], out: Tensor, cut: Cut
) -> None:
    """``out``: the columns of ``(splits, rows, outputs of all parts)`` that are the part's."""
    rows, depth = x.shape
    assert x.is_contiguous() and depth == part.inputs and cut.depth % CHUNK == 0
    bias, bias_2 = (part.factors if each is None else each for each in biases)
    with torch.cuda.device_of(x):  # Triton launches on the current device
        _multiply[(-(-rows // cut.rows), -(-part.outputs // COLUMNS), cut.splits)](
            x, *_pointers(part), *_pointers(second or part), part.table, bias, bias_2, out,
            rows, part.outputs, out.stride(-2), depth, cut.reach,
            **form_options(part.number), BIASED=biases[0] is not None, GATED=second is not None,
            ROWS=cut.rows, COLUMNS=COLUMNS, CHUNKS=cut.depth // CHUNK, num_stages=cut.stages,
        )  # fmt: skip


def multiply(x: Tensor, matrix: GroupedMatrix, gpu: Gpu) -> Tensor:
    """float32 ``(splits, rows, out)``; its sum over the splits is ``x W^T + b``, from x ``(rows, in)``."""
    columns, first = len(matrix.weight), 0
    cut = cut_of(len(x), columns, x.shape[1], x.element_size(), False, gpu.shared)
    out = x.new_empty((cut.splits, len(x), columns), dtype=torch.float32)
    for part in matrix.parts:
        own = slice(first, first + part.outputs)
        _launch(x, part, None, (None if matrix.bias is None else matrix.bias[own], None), out[..., own], cut)
        first += part.outputs
    return out


def multiply_gated(x: Tensor, matrix: GroupedMatrix, gpu: Gpu) -> Tensor:
    """``silu(x G^T) * (x U^T)`` ``(rows, inner)`` in x's type, W ``(2 * inner, in)`` being G above U."""
    inner = len(matrix.weight) // 2
    bias = (None, None) if matrix.bias is None else (matrix.bias[:inner], matrix.bias[inner:])
    first, last = matrix.parts[0], matrix.parts[-1]
    if len(matrix.parts) == 2 and first.number == last.number and first.outputs == last.outputs:
        out = x.new_empty((len(x), inner))
        cut = cut_of(len(x), inner, x.shape[1], x.element_size(), True, gpu.shared)
        _launch(x, first, last, bias, out, cut)
        return out
    gate, up = multiply(x, matrix, gpu).sum(0).chunk(2, 1)
    return functional.silu(gate).mul_(up).to(x.dtype)


def write(part: Groups, chosen: Tensor | None, out: Tensor) -> None:
    """The numbers of outputs, of all or of those ``chosen``, into ``out`` ``(count, inputs)``."""
    count = len(out)
    with torch.cuda.device_of(out):
        _write[(-(-part.inputs // CHUNK), -(-count // COLUMNS))](
            *_pointers(part), part.table, part.factors if chosen is None else chosen, out,
            count, part.outputs, part.inputs,
            **form_options(part.number), CHOSEN=chosen is not None, COLUMNS=COLUMNS,
        )  # fmt: skip


def numbers(matrix: GroupedMatrix, dtype: torch.dtype) -> Tensor:
    """The whole matrix, for as many rows as make that cheaper than reading its groups again."""
    device = matrix.parts[0].low.device
    out, first = torch.empty(matrix.weight.shape, dtype=dtype, device=device), 0
    for part in matrix.parts:
        write(part, None, out[first : first + part.outputs])
        first += part.outputs
    return out


def rows_of(matrix: GroupedMatrix, ids: Tensor, dtype: torch.dtype) -> Tensor:
    """``(*ids, inputs)``: rows of an embedding."""
    (part,) = matrix.parts
    out = torch.empty((ids.numel(), part.inputs), dtype=dtype, device=ids.device)
    write(part, ids.reshape(-1), out)
    return out.view(*ids.shape, part.inputs)
