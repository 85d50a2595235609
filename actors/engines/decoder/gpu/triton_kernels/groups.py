"""Linear layers whose weights lie in small groups of 4 to 8 bits, for a GPU: integers times integers, with exact sums.

Rows are rounded to 8 bits by groups (:func:`round_rows`), as on a CPU. A thread multiplies the groups of one output by
``dp4a``, four products an instruction, and adds what they give in float32, one after another; ``LANES`` threads share
an output's groups, and their sums are added as a tree. So a row has the same bits in any company, whatever a program's
rows are, and one number in 32 weights is converted. The inner dimension is cut into splits as in :mod:`.linear`.

Of more than four rows tensor cores make the integers, for whole tiles: the same sums, added in the same order. Codes of
4 and 8 bits reach them in the registers of the threads that read them, those of 5 and 6 through shared memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from actors.engines.decoder.gpu.groups import LANES, LEAST, GroupedMatrix, moved_up, tabled
from actors.engines.decoder.gpu.triton_kernels.codes import (
    RECORD,
    dot,
    four_words,
    joined_lanes,
    scales_of,
    times_whole,
    unpacked,
)
from actors.engines.decoder.gpu.triton_kernels.words import multiply_words
from actors.engines.weights.formats import GPU_FORMS, GROUP

COLUMNS = 32  # outputs of a program: with the lanes a warp each
# By a program's rows: groups that a lane reads at once, of fewer than 8 bits and of 8. With more a thread takes over 64
# registers, and a multiprocessor holds fewer than 32 warps. Of one row NVFP4, with two scales, reads twice as many.
STEPS, STEPS_OF_8 = {1: 4, 2: 4, 4: 1}, {1: 2, 2: 1, 4: 1}
TILES = (8, 16, 32)  # rows of a program with tensor cores; with 64 a multiprocessor holds 12 warps
# Outputs of a program by those rows, where a word has whole numbers: as many as leave room for 16 warps
WIDE = {8: 64, 16: 64, 32: 32}
PROGRAMS, SPLITS = 1024, 4  # a matrix of fewer programs is split: some eight find room on each of 132 multiprocessors
MANY = 16  # groups that a program rounds, or outputs whose numbers it writes, at a time
_NEAREST = tl.constexpr(12582912.0)  # float32 from here on has no fractions: what is added to it is rounded to even
_LEAST = tl.constexpr(LEAST)
_RECORD = tl.constexpr(RECORD)


@triton.jit
def _summed(coded, more, given, HALF: tl.constexpr):
    """Sum of the products of the half of a group, from words and those of a row."""
    first: tl.constexpr = 4 * HALF
    total = coded[0] * 0
    for word in tl.static_range(4):
        total = dot(coded[first + word], given[word], total)
        if len(more) > 0:
            total = dot(more[first + word], given[word], total)
    return total


@triton.jit
def sums_of(
    x, words, high, factors, scales, own, first, begin, end, apart, outputs,
    BITS: tl.constexpr, UP: tl.constexpr, TABLE: tl.constexpr, MINIMA: tl.constexpr, HALVES: tl.constexpr,
    WHOLE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, LANES: tl.constexpr,
    STEPS: tl.constexpr,
):  # fmt: skip
    """Sums ``(COLUMNS,)`` of each of ``ROWS`` rows with outputs ``own``, over the groups from ``begin`` to ``end``.

    ``x``: records ``(groups, apart, RECORD)``, see :func:`round_rows`; ``first``: of the rows."""
    planes: tl.constexpr = 2 if BITS == 8 else 1
    bits: tl.constexpr = 0 if BITS == 8 else BITS - 4
    group, word = begin + tl.arange(0, LANES)[:, None], tl.arange(0, 4)[None, None, :]
    words += tl.expand_dims(group * (planes * outputs) + own[None, :], 2) * 4 + word
    high += group * (bits * outputs) + own[None, :]
    factors += group * outputs + own[None, :]
    record = (group * apart + first) * _RECORD + tl.zeros([1, COLUMNS], tl.int32)  # each thread reads it for itself
    x, inputs = x + record, x + tl.expand_dims(record, 2) + word
    sums = (tl.zeros([LANES, COLUMNS], tl.float32),) * ROWS
    for _ in tl.range(begin, end, LANES, loop_unroll_factor=STEPS):
        # a table's numbers with signs are two instructions more, and a product less for each row
        coded, more = unpacked(words, high, own[None, :] >> 31, outputs, BITS, UP, TABLE, ROWS > 1)
        scale, second = scales_of(factors, MINIMA or HALVES)
        grown = ()
        for row in tl.static_range(ROWS):
            total = _summed(coded, more, four_words(inputs + _RECORD * row), 0)
            other = _summed(coded, more, four_words(inputs + (_RECORD * row + 4)), 1)
            unit = tl.load(x + (_RECORD * row + 8)).to(tl.float32, bitcast=True)
            if HALVES:
                both = tl.fma(other.to(tl.float32), second, total.to(tl.float32) * scale)
                added = tl.fma(both, unit, sums[row])
            else:
                added = tl.fma((total + other).to(tl.float32) * unit, scale, sums[row])
            if MINIMA:
                added = tl.fma(tl.load(x + (_RECORD * row + 9)).to(tl.float32, bitcast=True), second, added)
            grown += (added,)  # type: ignore[assignment]
        sums = grown
        words += LANES * planes * 4 * outputs
        high += LANES * bits * outputs
        factors += LANES * outputs
        inputs += LANES * _RECORD * apart
        x += LANES * _RECORD * apart
    joined = ()
    for row in tl.static_range(ROWS):
        joined += (times_whole(joined_lanes(sums[row], UP), scales, own, WHOLE),)  # type: ignore[assignment]
    return joined


@triton.jit(do_not_specialize=["rows", "apart"])
def _multiply(
    x, words, high, factors, scales, bias, out, rows, apart, outputs, whole, groups, reach,
    BITS: tl.constexpr, UP: tl.constexpr, TABLE: tl.constexpr, MINIMA: tl.constexpr, HALVES: tl.constexpr,
    WHOLE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, LANES: tl.constexpr,
    STEPS: tl.constexpr, BIASED: tl.constexpr,
):  # fmt: skip
    """Some rows and outputs of ``x W^T + b``, over one split of the inner dimension, of ``whole`` outputs a row."""
    first, split = tl.program_id(0) * ROWS, tl.program_id(2)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    own = tl.minimum(column, outputs - 1)
    begin = split * reach
    sums = sums_of(
        x, words, high, factors, scales, own, first, begin, tl.minimum(begin + reach, groups), apart, outputs,
        BITS, UP, TABLE, MINIMA, HALVES, WHOLE, ROWS, COLUMNS, LANES, STEPS,
    )  # fmt: skip
    for row in tl.static_range(ROWS):
        total = sums[row]
        if BIASED and split == 0:
            total += tl.load(bias + own).to(tl.float32)
        place = (split * rows + first + row).to(tl.int64) * whole + column
        tl.store(out + place, total, mask=(first + row < rows) & (column < outputs))


@triton.jit
def _side_by_side(coded):
    """int8 ``(.., .., 32)`` of eight words."""
    even = tl.join(tl.join(coded[0], coded[4]), tl.join(coded[2], coded[6]))
    odd = tl.join(tl.join(coded[1], coded[5]), tl.join(coded[3], coded[7]))
    words = tl.reshape(tl.join(even, odd), [coded[0].shape[0], coded[0].shape[1], 8])
    found = tl.join(tl.join(words, words >> 16), tl.join(words >> 8, words >> 24)).to(tl.int8)
    return tl.reshape(found, [coded[0].shape[0], coded[0].shape[1], 32])


@triton.jit(do_not_specialize=["rows", "apart"])
def _multiply_tile(
    x, words, high, factors, scales, bias, out, rows, apart, outputs, whole, groups, reach,
    BITS: tl.constexpr, UP: tl.constexpr, TABLE: tl.constexpr, MINIMA: tl.constexpr, HALVES: tl.constexpr,
    WHOLE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, LANES: tl.constexpr,
    STEPS: tl.constexpr, BIASED: tl.constexpr,
):  # fmt: skip
    """What :func:`_multiply` gives, for many rows."""
    row, split = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.program_id(2)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    own = tl.minimum(column, outputs - 1)
    begin = split * reach
    planes: tl.constexpr = 2 if BITS == 8 else 1
    bits: tl.constexpr = 0 if BITS == 8 else BITS - 4
    group, byte = begin + tl.arange(0, LANES)[:, None], tl.arange(0, 32)[None, None, :]
    words += tl.expand_dims(group * (planes * outputs) + own[None, :], 2) * 4 + tl.arange(0, 4)[None, None, :]
    high += group * (bits * outputs) + own[None, :]
    factors += group * outputs + own[None, :]
    record = (group * apart + row[None, :]) * _RECORD
    numbers = x.to(tl.pointer_type(tl.int8)) + (tl.expand_dims(record, 2) * 4 + byte)
    x += record
    asked = tl.zeros([LANES, ROWS, 1], tl.int32) == 0
    sums = tl.zeros([LANES, COLUMNS, ROWS], tl.float32)
    for _ in tl.range(begin, tl.minimum(begin + reach, groups), LANES, loop_unroll_factor=STEPS):
        coded, _ = unpacked(words, high, own[None, :] >> 31, outputs, BITS, UP, TABLE, True)
        scale, second = scales_of(factors, MINIMA or HALVES)
        scale, second = tl.expand_dims(scale, 2), tl.expand_dims(second, 2)
        weights = _side_by_side(coded)
        unit = tl.expand_dims(tl.load(x + 8).to(tl.float32, bitcast=True), 1)
        if HALVES:
            half = tl.load(numbers, mask=(byte < 16) & asked, other=0)
            total = tl.dot(weights, tl.permute(half, (0, 2, 1)), out_dtype=tl.int32)
            half = tl.load(numbers, mask=(byte >= 16) & asked, other=0)
            other = tl.dot(weights, tl.permute(half, (0, 2, 1)), out_dtype=tl.int32)
            sums = tl.fma(tl.fma(other.to(tl.float32), second, total.to(tl.float32) * scale), unit, sums)
        else:
            total = tl.dot(weights, tl.permute(tl.load(numbers), (0, 2, 1)), out_dtype=tl.int32)
            sums = tl.fma(total.to(tl.float32) * unit, scale, sums)
        if MINIMA:
            sums = tl.fma(tl.expand_dims(tl.load(x + 9).to(tl.float32, bitcast=True), 1), second, sums)
        words += LANES * planes * 4 * outputs
        high += LANES * bits * outputs
        factors += LANES * outputs
        numbers += 4 * LANES * _RECORD * apart
        x += LANES * _RECORD * apart
    total = tl.reshape(joined_lanes(tl.reshape(sums, [LANES, COLUMNS * ROWS]), UP), [COLUMNS, ROWS])
    total = times_whole(total, scales, own[:, None], WHOLE)
    if BIASED and split == 0:
        total += tl.load(bias + own).to(tl.float32)[:, None]
    place = (split * rows + row[None, :]).to(tl.int64) * whole + column[:, None]
    tl.store(out + place, total, mask=(row[None, :] < rows) & (column[:, None] < outputs))


@triton.jit
def write_record(value, out, row, first, apart, groups, MANY: tl.constexpr):
    """Round float32 numbers ``(32 MANY,)``, the groups of a row from ``first`` on. Those behind its end are zeros."""
    value, group = tl.reshape(value, [MANY, 32]), first + tl.arange(0, MANY)
    largest = tl.max(tl.abs(value), 1) + tl.sum(value * 0.0, 1)  # NaN unless all are finite
    inverse = tl.where(largest > _LEAST, tl.div_rn(127.0, tl.maximum(largest, _LEAST)), 0.0)
    whole = ((value * inverse[:, None] + _NEAREST) - _NEAREST).to(tl.int32)
    bytes_ = tl.reshape(whole & 255, [MANY, 8, 4]) << (8 * tl.arange(0, 4))[None, None, :]
    scale = tl.div_rn(largest, 127.0)
    total = scale * tl.sum(whole, 1).to(tl.float32)
    to, inside = out + (group * apart + row) * _RECORD, group < groups
    tl.store(to[:, None] + tl.arange(0, 8)[None, :], tl.sum(bytes_, 2), mask=inside[:, None])
    tl.store(to + 8, scale.to(tl.int32, bitcast=True), mask=inside)
    tl.store(to + 9, total.to(tl.int32, bitcast=True), mask=inside)


@triton.jit(do_not_specialize=["rows", "apart"])
def _round(x, out, rows, apart, depth, groups, MANY: tl.constexpr):
    """Some groups of a row; of the last one for those that fill a program."""
    row, first = tl.program_id(0), tl.program_id(1) * MANY
    at = first * 32 + tl.arange(0, 32 * MANY)
    value = tl.load(x + tl.minimum(row, rows - 1).to(tl.int64) * depth + at, mask=at < depth, other=0.0)
    write_record(value.to(tl.float32), out, row, first, apart, groups, MANY)


@triton.jit
def _numbered(word, scale, least):
    """``(1, n, 4)`` of a word: what its bytes stand for."""
    each = (tl.expand_dims(word, 2) << (24 - 8 * tl.arange(0, 4))) >> 24
    return each.to(tl.float32) * tl.expand_dims(scale, 2) + tl.expand_dims(least, 2)


@triton.jit(do_not_specialize=["count"])
def _write(
    words, high, factors, scales, chosen, out, count, outputs, depth,
    BITS: tl.constexpr, UP: tl.constexpr, TABLE: tl.constexpr, MINIMA: tl.constexpr, HALVES: tl.constexpr,
    WHOLE: tl.constexpr, MANY: tl.constexpr,
):  # fmt: skip
    """The numbers of a group of the ``chosen`` outputs."""
    place = tl.program_id(1) * MANY + tl.arange(0, MANY)
    own = tl.load(chosen + tl.minimum(place, count - 1)).to(tl.int32)
    group = tl.program_id(0)
    planes: tl.constexpr = 2 if BITS == 8 else 1
    bits: tl.constexpr = 0 if BITS == 8 else BITS - 4
    own = own[None, :]
    at = tl.expand_dims(group * (planes * outputs) + own, 2) * 4 + tl.arange(0, 4)
    coded, _ = unpacked(words + at, high + (group * (bits * outputs) + own), own >> 31, outputs, BITS, UP, TABLE, True)
    scale, second = scales_of(factors + group * outputs + own, MINIMA or HALVES)
    least = second if MINIMA else second * 0.0
    within = group * 32 + tl.arange(0, 4)[None, None, :]
    asked = tl.expand_dims((place < count)[None, :], 2)
    to = out + tl.expand_dims(place[None, :].to(tl.int64), 2) * depth + within
    for word in tl.static_range(8):
        unit = (second if HALVES and word > 3 else scale) * (1.0 / (1 << UP))
        value = times_whole(_numbered(coded[word], unit, least), scales, tl.expand_dims(own, 2), WHOLE)
        tl.store(to + 4 * word, value.to(out.dtype.element_ty), mask=asked & (within + 4 * word < depth))


def form_options(number: int) -> dict[str, Any]:
    """What of a form is compiled in."""
    form = GPU_FORMS[number - 1]
    return {
        "BITS": form.bits,
        "UP": moved_up(form),
        "TABLE": tabled(form),
        "MINIMA": form.minima,
        "HALVES": form.halves,
        "WHOLE": form.whole,
    }


def product_options(number: int, rows: int) -> dict[str, Any]:
    """What is compiled into a product of ``rows`` rows a program."""
    form = GPU_FORMS[number - 1]
    steps = (STEPS_OF_8 if form.bits == 8 else STEPS).get(rows, 1) * (
        2 if form.table and form.halves and rows == 1 else 1
    )
    return form_options(number) | {"ROWS": rows, "COLUMNS": COLUMNS, "LANES": LANES, "STEPS": steps}


def product_of(number: int, rows: int, outputs: int) -> tuple[Any, dict[str, Any]]:
    """A kernel for so many rows a program, and what is compiled into it."""
    options = product_options(number, rows)
    if rows not in TILES:
        return _multiply, options
    if options["BITS"] in (5, 6) or outputs < WIDE[rows]:
        return _multiply_tile, options
    # without stages, in which what is read would go through shared memory
    return multiply_words, options | {"COLUMNS": WIDE[rows], "num_stages": 1}


@dataclass(frozen=True, slots=True)
class RoundedRows:
    """Rows in 8 bits: int32 records ``(groups, rows and those that fill a program, RECORD)``."""

    records: Tensor
    rows: int

    @property
    def tile(self) -> int:
        """Rows of a program."""
        return _tile(self.rows)


def _tile(rows: int) -> int:
    return next((size for size in (*STEPS, *TILES) if size >= rows), TILES[-1])


def records_of(rounded: RoundedRows | None, other: Tensor) -> tuple[Tensor, int, int]:
    """The arguments of :func:`write_record`: memory, the number of rows with those that fill up, and of groups."""
    return (other, 0, 0) if rounded is None else (rounded.records, *rounded.records.shape[1::-1])


def room(x: Tensor, depth: int) -> RoundedRows | None:
    """Memory for rows of so many numbers; None: they are no groups."""
    rows, groups, tile = len(x), -(-depth // (GROUP * LANES)) * LANES, _tile(len(x))
    records = x.new_empty((groups, -(-rows // tile) * tile, RECORD), dtype=torch.int32)
    return RoundedRows(records, rows) if depth % GROUP == 0 else None


def round_rows(x: Tensor) -> RoundedRows:
    """Rows ``(rows, in)`` for the products."""
    (rows, depth), made = x.shape, room(x, x.shape[1])
    assert x.is_contiguous() and made is not None
    records, groups = made.records, len(made.records)
    with torch.cuda.device_of(x):  # Triton launches on the current device
        _round[(records.shape[1], -(-groups // MANY))](x, records, rows, records.shape[1], depth, groups, MANY=MANY)
    return made


def cut_of(outputs: int, groups: int, columns: int = COLUMNS) -> tuple[int, int]:
    """Splits of the inner dimension, and groups of each: not by the rows, for bits depend on them."""
    splits, most = 1, SPLITS * columns // COLUMNS
    while splits < most and -(-outputs // columns) * splits < PROGRAMS and groups >= 8 * splits * LANES:
        splits *= 2
    return splits, -(-groups // (splits * LANES)) * LANES


def multiply(x: Tensor, matrix: GroupedMatrix, rounded: RoundedRows | None = None) -> Tensor:
    """float32 ``(splits, rows, out)``; its sum over the splits is ``x W^T + b``, from x ``(rows, in)``, which may be
    ``rounded`` already."""
    rounded, columns, first = rounded or round_rows(x), len(matrix.weight), 0
    groups, apart, _ = rounded.records.shape
    splits, reach = cut_of(columns, groups)
    out = x.new_empty((splits, len(x), columns), dtype=torch.float32)
    for part in matrix.parts:
        own = slice(first, first + part.outputs)
        bias = part.factors if matrix.bias is None else matrix.bias[own]
        product, options = product_of(part.number, rounded.tile, part.outputs)
        with torch.cuda.device_of(x):
            product[(apart // rounded.tile, -(-part.outputs // options["COLUMNS"]), splits)](
                rounded.records, part.words, part.high, part.factors, part.whole, bias, out[..., own],
                len(x), apart, part.outputs, columns, groups, reach,
                **options, BIASED=matrix.bias is not None,
            )  # fmt: skip
        first += part.outputs
    return out


def rows_of(matrix: GroupedMatrix, ids: Tensor, dtype: torch.dtype) -> Tensor:
    """``(*ids, inputs)``: rows of an embedding."""
    (part,) = matrix.parts
    out = torch.empty((ids.numel(), part.inputs), dtype=dtype, device=ids.device)
    with torch.cuda.device_of(out):
        _write[(part.inputs // GROUP, -(-len(out) // MANY))](
            part.words, part.high, part.factors, part.whole, ids.reshape(-1), out,
            len(out), part.outputs, part.inputs, **form_options(part.number), MANY=MANY,
        )  # fmt: skip
    return out.view(*ids.shape, part.inputs)
