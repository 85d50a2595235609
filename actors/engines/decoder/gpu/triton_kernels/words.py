"""Products of many rows with codes of 4 and 8 bits, which reach tensor cores in the registers that read them."""

from __future__ import annotations

import triton
import triton.language as tl

from actors.engines.decoder.gpu.triton_kernels.codes import (
    RECORD,
    halves,
    joined_lanes,
    parted,
    scales_of,
    times_whole,
)

_RECORD = tl.constexpr(RECORD)

# Bytes at the end of 1024, which is subtracted again; signed bytes have their highest bit flipped, which added 128
IN_HALVES = """{ .reg .b32 all;
prmt.b32 $0, $2, 0x64646464, 0x4240; prmt.b32 $1, $2, 0x64646464, 0x4341; mov.b32 all, $3;
sub.f16x2 $0, $0, all; sub.f16x2 $1, $1, all; }"""
_UNSIGNED, _SIGNED = (tl.constexpr(IN_HALVES.replace("$3", all_)) for all_ in ("0x64006400", "0x64806480"))


@triton.jit
def _in_tiles(word, SIGNED: tl.constexpr):
    """float16 ``(LANES, 8 n, 16)`` of the bytes of words ``(n, LANES, 8, 4)``, as threads give them to tensor cores."""
    first, second = tl.inline_asm_elementwise(
        _SIGNED if SIGNED else _UNSIGNED, "=&r,=&r,r", [word ^ -0x7F7F7F80 if SIGNED else word],
        dtype=(tl.int32, tl.int32), is_pure=True, pack=1,
    )  # fmt: skip
    made = tl.join(halves(first), halves(second)).to(tl.float16, bitcast=True)
    return tl.reshape(tl.permute(made, (1, 0, 2, 3, 5, 4)), [word.shape[1], 8 * word.shape[0], 16])


@triton.jit
def _of_outputs(read, ROWS: tl.constexpr):
    """Numbers ``(n, LANES, 8, 4)``, each from the thread that asks for it, for sums ``(LANES, 8 n, ROWS)``."""
    lanes: tl.constexpr = read.shape[1]
    columns: tl.constexpr = 8 * read.shape[0]
    found = tl.reshape(tl.permute(read, (1, 0, 2, 3)), [lanes, columns, 1, 4, 1])
    return tl.reshape(tl.broadcast_to(found, [lanes, columns, ROWS // 8, 4, 2]), [lanes, columns, ROWS])


@triton.jit
def _of_rows(words, COLUMNS: tl.constexpr):
    """float32 of pointers ``(n, LANES, 8, 4)`` to every second row, for sums ``(LANES, COLUMNS, 8 n)``."""
    lanes: tl.constexpr = words.shape[1]
    rows: tl.constexpr = 8 * words.shape[0]
    found = tl.join(tl.load(words), tl.load(words + _RECORD)).to(tl.float32, bitcast=True)
    found = tl.reshape(tl.permute(found, (1, 2, 0, 3, 4)), [lanes, 1, 8, rows])
    return tl.reshape(tl.broadcast_to(found, [lanes, COLUMNS // 8, 8, rows]), [lanes, COLUMNS, rows])


@triton.jit(do_not_specialize=["rows", "apart"])
def multiply_words(
    x, words, high, factors, scales, bias, out, rows, apart, outputs, whole, groups, reach,
    BITS: tl.constexpr, UP: tl.constexpr, TABLE: tl.constexpr, MINIMA: tl.constexpr, HALVES: tl.constexpr,
    WHOLE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, LANES: tl.constexpr,
    STEPS: tl.constexpr, BIASED: tl.constexpr,
):  # fmt: skip
    """The result of :func:`.groups._multiply` for many rows, for codes with all of a thread's numbers in one word.

    They are exact in float16, and the sums of 32 products in float32. The last block begins where it finds room."""
    first, split = tl.program_id(0) * ROWS, tl.program_id(2)
    start, begin = tl.minimum(tl.program_id(1) * COLUMNS, outputs - COLUMNS), split * reach
    planes: tl.constexpr = 2 if BITS == 8 else 1
    signed: tl.constexpr = UP > 0 or BITS == 8 or len(TABLE) > 0
    group = tl.reshape(begin + tl.arange(0, LANES), [1, LANES, 1, 1])
    thread, word = tl.reshape(tl.arange(0, 8), [1, 1, 8, 1]), tl.reshape(tl.arange(0, 4), [1, 1, 1, 4])
    word += apart >> 31  # zero, unknown to a compiler that would have a thread read words of its neighbours
    tile = tl.reshape(tl.arange(0, COLUMNS // 8) * 8, [COLUMNS // 8, 1, 1, 1])
    part = tl.reshape(tl.arange(0, ROWS // 8) * (8 * _RECORD), [ROWS // 8, 1, 1, 1])
    words += (group * (planes * outputs) + start + thread) * 4 + word
    factors += group * outputs + start + thread + word * 0
    record = x + (group * apart + first) * _RECORD
    inputs, pairs = record + (thread * _RECORD + word), record + (thread * 0 + word * (2 * _RECORD))
    sums = tl.zeros([LANES, COLUMNS, ROWS], tl.float32)
    for _ in tl.range(begin, tl.minimum(begin + reach, groups), LANES, loop_unroll_factor=STEPS):
        coded = tl.load(words + tile * 4)
        if BITS == 8:
            one, other = coded, tl.load(words + (tile + outputs) * 4)
        else:
            one, other = parted(coded, word >> 31, UP, TABLE)
        scale, second = scales_of(factors + tile, MINIMA or HALVES)
        scale, second = _of_outputs(scale, ROWS), _of_outputs(second, ROWS)
        unit = _of_rows(pairs + part + 8, COLUMNS)
        given = tl.permute(_in_tiles(tl.load(inputs + part), True), (0, 2, 1))
        total = tl.dot(_in_tiles(one, signed), given)
        given = tl.permute(_in_tiles(tl.load(inputs + part + 4), True), (0, 2, 1))
        if HALVES:
            more = tl.dot(_in_tiles(other, signed), given)
            sums = tl.fma(tl.fma(more, second, total * scale), unit, sums)
        else:
            sums = tl.fma(tl.dot(_in_tiles(other, signed), given, total) * unit, scale, sums)
        if MINIMA:
            sums = tl.fma(_of_rows(pairs + part + 9, COLUMNS), second, sums)
        words += LANES * planes * 4 * outputs
        factors += LANES * outputs
        inputs += LANES * _RECORD * apart
        pairs += LANES * _RECORD * apart
    column, row = start + tl.arange(0, COLUMNS), first + tl.arange(0, ROWS)
    total = tl.reshape(joined_lanes(tl.reshape(sums, [LANES, COLUMNS * ROWS]), UP), [COLUMNS, ROWS])
    total = times_whole(total, scales, column[:, None], WHOLE)
    if BIASED and split == 0:
        total += tl.load(bias + column).to(tl.float32)[:, None]
    place = (split * rows + row[None, :]).to(tl.int64) * whole + column[:, None]
    tl.store(out + place, total, mask=row[None, :] < rows)
