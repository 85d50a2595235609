"""Products with weights in small groups of 4, 5, 6 or 8 bits: integers times integers, with exact sums.

Inputs are rounded by groups of ``GROUP`` of a row, each to 1/127 of its largest: their bits depend on nothing but the
row. The products of a group are summed up as integers, then scaled and added in float32, group after group. So a row's
bits are its own, whatever instructions a processor has for it: those of AVX512-VNNI, AVX-VNNI and AVX2 are spellings of
one sum.

How weights lie in memory is said by :class:`actors.engines.weights.formats.Form`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import llvmlite.binding
import llvmlite.ir as ir
import numpy as np
from numba.core import types
from numba.extending import intrinsic

from actors.engines.decoder.cpu.atomics import array_at
from actors.engines.decoder.cpu.linking import linked
from actors.engines.decoder.cpu.pairs import FEATURES
from actors.engines.decoder.cpu.records import LANES
from actors.engines.decoder.cpu.simd import (
    VECTOR,
    Parts,
    address,
    asked,
    called,
    fma,
    for_each,
    highest,
    larger,
    load,
    multiplied,
    repeated,
    splat,
    splatted,
    total,
)
from actors.engines.decoder.cpu.tile import Sums
from actors.engines.weights.formats import FORMS, GROUP, PANEL, SUPER

QUADS = GROUP // 4
_MOST = np.float32(np.finfo(np.float32).max)
_LEAST = np.float32(1e-36)  # 127 divided by less overflows
# Of a row's group behind its quads: the bits of the scale; the sum of its bytes, negative, as a whole and of each half;
# the bits of scale times sum
SCALE, MINUS, MINUS_FIRST, MINUS_SECOND, SCALED_SUM = QUADS, QUADS + 1, QUADS + 2, QUADS + 3, QUADS + 4
WORDS_OF_GROUP = QUADS + 5
AHEAD = 24 << 10  # bytes between the weights of a pass and the prefetched ones

HAS_512 = "+avx512vnni" in FEATURES
HAS_VEX = not HAS_512 and "+avxvnni" in FEATURES
HAS_SHORTS = not HAS_512 and not HAS_VEX and "+avx2" in FEATURES
if HAS_512 or HAS_VEX:
    llvmlite.binding.initialize_native_asmparser()
WIDTH = 16 if HAS_512 else 8  # lanes of a register; a panel has one or two of them
ROWS = 8 if WIDTH == 16 else 4  # with sums in registers
POWERS = ROWS.bit_length()
_INT, _WORD, _BYTE = ir.IntType(64), ir.IntType(32), ir.IntType(8)
_POINTER = _BYTE.as_pointer()
WORDS, FLOATS = ir.VectorType(_WORD, WIDTH), ir.VectorType(ir.FloatType(), WIDTH)
_SHORTS, _BYTES = ir.VectorType(ir.IntType(16), 16), ir.VectorType(_BYTE, 32)


def _words(number):
    return ir.Constant(WORDS, [number] * WIDTH)


def _word_at(builder, row, place):
    """A word of a row for every lane."""
    return splatted(builder, builder.load(builder.gep(row, [_INT(place)])), WIDTH)


class _Sum:
    """The sum of quads' products, begun with ``begin``: unsigned weights times signed inputs."""

    def __init__(self, builder, begin, bits):
        self._builder, self._sums, self._bits = builder, begin, bits
        self._shorts, self._held = None, 0

    def add(self, weights, inputs):
        builder = self._builder
        if HAS_512 or HAS_VEX:
            kind = ir.FunctionType(WORDS, [WORDS] * 3)
            code = "vpdpbusd $3, $2, $0" if HAS_512 else "{vex} vpdpbusd $3, $2, $0"
            places = "=v,0,v,v" if HAS_512 else "=x,0,x,x"
            self._sums = builder.call(ir.InlineAsm(kind, code, places, False), [self._sums, weights, inputs])
        elif HAS_SHORTS:
            self._add_shorts(weights, inputs)
        else:
            for byte in range(4):
                one = builder.and_(builder.lshr(weights, _words(8 * byte)), _words(255))
                other = builder.ashr(builder.shl(inputs, _words(24 - 8 * byte)), _words(24))
                self._sums = builder.add(self._sums, builder.mul(one, other))

    def _add_shorts(self, weights, inputs):
        """Pairs in 16 bits, which hold as many sums as weights are narrow: 8 of 4 bits, 4 of 5, 2 of 6."""
        builder = self._builder
        one, other = builder.bitcast(weights, _BYTES), builder.bitcast(inputs, _BYTES)
        if self._bits == 8:  # their absolute values, with the signs at the inputs
            signed = builder.xor(one, ir.Constant(_BYTES, [128] * 32))
            other = called(builder, "llvm.x86.avx2.psign.b", _BYTES, other, signed)
            one = called(builder, "llvm.abs.v32i8", _BYTES, signed, ir.IntType(1)(0))
        pairs = called(builder, "llvm.x86.avx2.pmadd.ub.sw", _SHORTS, one, other)
        self._shorts = pairs if self._shorts is None else builder.add(self._shorts, pairs)
        self._held += 1
        if self._held == {4: 8, 5: 4, 6: 2, 8: 1}[self._bits]:
            self._widen()

    def _widen(self):
        if self._shorts is not None:
            ones = ir.Constant(_SHORTS, [1] * 16)
            words = called(self._builder, "llvm.x86.avx2.pmadd.wd", WORDS, self._shorts, ones)
            self._sums, self._shorts, self._held = self._builder.add(self._sums, words), None, 0

    def end(self):
        self._widen()
        return self._sums


class _GroupCode:
    """The code of one group of a panel's part of ``WIDTH`` outputs."""

    def __init__(self, builder, form, place, steps, part):
        self._builder, self._form, self._steps = builder, form, steps
        self._place, self._part = place, part
        self._words = {}

    def _at(self, byte, kind, place=None):
        pointer = self._builder.gep(self._place if place is None else place, [_INT(byte)])
        return self._builder.load(self._builder.bitcast(pointer, kind.as_pointer()), align=1)

    def _float16(self, index, place=None):
        halves = self._at(2 * (PANEL * index + WIDTH * self._part), ir.VectorType(ir.HalfType(), WIDTH), place)
        return self._builder.fpext(halves, FLOATS)

    def _small(self, index, signed):
        numbers = self._at(PANEL * index + WIDTH * self._part, ir.VectorType(_BYTE, WIDTH))
        wide = self._builder.sext(numbers, WORDS) if signed else self._builder.zext(numbers, WORDS)
        return self._builder.sitofp(wide, FLOATS)

    def scale(self, half):
        """The scale of the group, or of its half."""
        if not self._form.scaled:
            return self._float16(0)
        signed = not self._form.minima
        return self._builder.fmul(self._float16(0, self._steps), self._small(half, signed))

    def minimum(self):
        if not self._form.scaled:
            return self._float16(1)
        return self._builder.fmul(self._float16(1, self._steps), self._small(1, False))

    def _word(self, index):
        if index not in self._words:
            self._words[index] = self._at(self._form.scales + 4 * (PANEL * index + WIDTH * self._part), WORDS)
        return self._words[index]

    def _moved(self, word, by):
        builder = self._builder
        if by == 0:
            return word
        return builder.shl(word, _words(by)) if by > 0 else builder.lshr(word, _words(-by))

    def quad(self, index):
        """The codes of quad ``index``, or the numbers that they stand for, a byte each."""
        codes, form = self._codes(index), self._form
        return _looked_up(self._builder, codes, [n + form.offset for n in form.table]) if form.table else codes

    def _codes(self, index):
        builder, bits = self._builder, self._form.bits
        if bits == 8:
            return self._word(index)
        low = self._word(index % 4)
        low = builder.and_(self._moved(low, -4 if index >= 4 else 0), _words(0x0F0F0F0F))
        if bits == 5:
            return builder.or_(low, builder.and_(self._moved(self._word(4), 4 - index), _words(0x10101010)))
        if bits == 6:
            high = self._moved(self._word(4 + index // 4), 4 - 2 * (index % 4))
            return builder.or_(low, builder.and_(high, _words(0x30303030)))
        return low


def _looked_up(builder, codes, table):
    """The numbers of a table of 16 bytes at codes of a byte each."""
    size = 4 * WIDTH
    kind = ir.VectorType(_BYTE, size)
    codes = builder.bitcast(codes, kind)
    if HAS_512 or HAS_VEX or HAS_SHORTS:
        numbers = ir.Constant(kind, table * (size // 16))
        name = "llvm.x86.avx512.pshuf.b.512" if WIDTH == 16 else "llvm.x86.avx2.pshuf.b"
        return builder.bitcast(called(builder, name, kind, numbers, codes), WORDS)
    found = ir.Constant(kind, table[:1] * size)
    for code, number in enumerate(table[1:], 1):
        here = builder.icmp_unsigned("==", codes, ir.Constant(kind, [code] * size))
        found = builder.select(here, ir.Constant(kind, [number] * size), found)
    return builder.bitcast(found, WORDS)


def _begin(builder, form, row, place):
    """What the sum of a group begins with, so that the offset of its codes is taken away."""
    if form.offset == 0 or (form.wide == 8 and HAS_SHORTS):
        return _words(0)
    return builder.shl(_word_at(builder, row, place), _words(form.offset.bit_length() - 1))


def _float_at(builder, row, place):
    return builder.bitcast(_word_at(builder, row, place), FLOATS)


def _add_group(builder, group, form, rows, sums):
    """``sums`` of each row and what a group adds to them. ``rows``: pointers to their words of the group."""
    for half in range(2 if form.halves else 1):
        quads = range(4 * half, 4 * half + 4) if form.halves else range(QUADS)
        minus = (MINUS_FIRST, MINUS_SECOND)[half] if form.halves else MINUS
        whole = [_Sum(builder, _begin(builder, form, row, minus), form.wide) for row in rows]
        for quad in quads:
            weights = group.quad(quad)
            for row, added in zip(rows, whole, strict=True):
                added.add(weights, _word_at(builder, row, quad))
        scale = group.scale(half)
        for index, (row, added) in enumerate(zip(rows, whole, strict=True)):
            scaled = builder.fmul(builder.sitofp(added.end(), FLOATS), _float_at(builder, row, SCALE))
            sums[index] = multiplied(builder, scaled, scale, sums[index])
    if form.minima:
        minimum = group.minimum()
        for index, row in enumerate(rows):
            sums[index] = multiplied(builder, minimum, _float_at(builder, row, SCALED_SUM), sums[index])
    return sums


class GroupedRows(NamedTuple):
    """The address of rows ``apart`` words from each other, see :func:`quantize_groups`."""

    address: Any
    apart: Any


class BlockPanel(NamedTuple):
    """The address of a panel of ``groups`` groups in the form ``FORMS[form - 1]``."""

    address: Any
    form: Any
    groups: Any


@intrinsic
def multiply_panel(typing, power, inputs, panel, sums):
    """The product of ``2 ** (power - 1)`` rows, up to ``ROWS``, with a panel, into ``sums``."""

    def generate(context, builder, signature, arguments):
        given = [*zip(signature.args, arguments, strict=True)][1:]
        inputs, panel, sums = (Parts(context, builder, kind, value) for kind, value in given)
        words = builder.inttoptr(inputs["address"], _WORD.as_pointer())
        begin, zero = builder.inttoptr(panel["address"], _POINTER), ir.Constant(FLOATS, [0.0] * WIDTH)

        def multiply(form, count, part):
            places = []
            for row in range(count):
                at = builder.add(sums["to"], builder.add(builder.mul(sums["columns"], _INT(row)), _INT(WIDTH * part)))
                places.append(builder.bitcast(sums.place("out", at), FLOATS.as_pointer()))

            def grow(k, state):
                place, row, steps, *grown = state
                if form.scaled:  # the steps lie before a fixed number of groups
                    first = builder.icmp_signed("==", builder.and_(k, _INT(SUPER - 1)), _INT(0))
                    steps = builder.select(first, place, steps)
                    place = builder.gep(place, [builder.select(first, _INT(form.steps), _INT(0))])
                for line in range(0, form.group, 64):
                    if part == 0:
                        asked(builder, builder.gep(place, [_INT(AHEAD + line)]))
                rows = [builder.gep(row, [builder.mul(inputs["apart"], _INT(index))]) for index in range(count)]
                grown = _add_group(builder, _GroupCode(builder, form, place, steps, part), form, rows, grown)
                return [builder.gep(place, [_INT(form.group)]), builder.gep(row, [_INT(WORDS_OF_GROUP)]), steps, *grown]

            grown = repeated(builder, 1, panel["groups"], [begin, words, begin, *[zero] * count], grow)[3:]
            for place, value in zip(places, grown, strict=True):
                builder.store(value, place, align=4)

        def of_form(number):
            def of_rows(power):
                for part in range(PANEL // WIDTH):
                    multiply(FORMS[number - 1], 1 << (power - 1), part)

            for_each(builder, arguments[0], POWERS, of_rows)

        for_each(builder, panel["form"], len(FORMS), of_form)
        return context.get_dummy_value()

    return types.void(types.intp, inputs, panel, sums), generate


@intrinsic
def _store_rounded(typing, words, at, vector):
    """A vector of float32 from -127 to 127 into the words from ``at`` on, a byte each: the nearest, ties to even. The
    rounded numbers."""

    def generate(context, builder, signature, arguments):
        rounded = called(builder, "llvm.rint.v16f32", VECTOR, arguments[2])
        bytes_ = ir.VectorType(_BYTE, LANES)
        numbers = builder.trunc(builder.fptosi(rounded, ir.VectorType(_WORD, LANES)), bytes_)
        place = address(context, builder, signature.args[0], *arguments[:2], count=LANES // 4)
        builder.store(numbers, builder.bitcast(place, bytes_.as_pointer()), align=4)
        return rounded

    return vector(words, types.intp, vector), generate


@linked
def grouped_words(size):
    """Words of a row of ``size`` inputs, a multiple of ``GROUP``."""
    return size // GROUP * WORDS_OF_GROUP


@linked
def quantize_groups(x, rows, size, words):
    """Rows of ``size`` numbers in groups: see :func:`grouped_words`."""
    zero, minus, at = splat(np.float32(0)), splat(np.float32(-1)), 0
    scales = array_at(words.ctypes.data, len(words), np.float32)
    for begin in range(0, rows * size, GROUP):
        first, second = load(x, begin), load(x, begin + LANES)
        most = larger(larger(first, fma(first, minus, zero)), larger(second, fma(second, minus, zero)))
        largest = highest(most) + total(fma(first, zero, fma(second, zero, zero)))  # NaN unless all are finite
        scale, known = largest / np.float32(127), largest <= _MOST
        if not known:  # infinite, or not a number, which the products are to be as well
            scale, first, second = np.float32(np.nan), zero, zero
        inverse = splat(np.float32(127) / largest if known and largest > _LEAST else np.float32(0))
        one = total(_store_rounded(words, at, fma(first, inverse, zero)))
        other = total(_store_rounded(words, at + LANES // 4, fma(second, inverse, zero)))
        scales[at + SCALE] = scale
        words[at + MINUS] = -np.int32(one + other)
        words[at + MINUS_FIRST], words[at + MINUS_SECOND] = -np.int32(one), -np.int32(other)
        scales[at + SCALED_SUM] = scale * (one + other)
        at += WORDS_OF_GROUP


@linked
def multiply_blocks(rows, inputs, panel, sums):
    """:func:`multiply_panel` for any number of rows."""
    row = 0
    for power in range(POWERS, 0, -1):
        count = 1 << (power - 1)
        while rows - row >= count:
            here = GroupedRows(inputs.address + 4 * row * inputs.apart, inputs.apart)
            multiply_panel(power, here, panel, Sums(sums.out, sums.to + row * sums.columns, sums.columns, False))
            row += count


# Rows as numbers, for embeddings

_BITS = np.array([form.bits for form in FORMS])
_OFFSETS = np.array([form.offset for form in FORMS])
_MINIMA = np.array([form.minima for form in FORMS])
_SCALED = np.array([form.scaled for form in FORMS])
_HALVES = np.array([form.halves for form in FORMS])
_STEPS = np.array([form.steps for form in FORMS])
_SCALES = np.array([form.scales for form in FORMS])
_GROUPS = np.array([form.group for form in FORMS])
# What each code stands for, with the offset
_NUMBERS = np.array([[n + form.offset for n in form.table or range(-form.offset, 16 - form.offset)] for form in FORMS])
_LISTED = np.array([bool(form.table) for form in FORMS])


@linked
def panel_bytes(form, groups):
    """Bytes of a panel."""
    return groups * _GROUPS[form - 1] + groups // SUPER * _STEPS[form - 1]


@intrinsic
def _float16_at(typing, place):
    """The number at an address."""

    def generate(context, builder, signature, arguments):
        half = builder.inttoptr(arguments[0], ir.HalfType().as_pointer())
        return builder.fpext(builder.load(half, align=1), ir.FloatType())

    return types.float32(types.int64), generate


@linked
def _code(words, bits, lane, i):
    """The code of input ``i`` of a group."""
    quad, byte = i // 4, i % 4
    if bits == 8:
        return np.int32(words[4 * (PANEL * quad + lane) + byte])
    low = np.int32(words[4 * (PANEL * (quad % 4) + lane) + byte]) >> (4 if quad >= 4 else 0) & 15
    if bits == 5:
        return low | (np.int32(words[4 * (PANEL * 4 + lane) + byte]) >> quad & 1) << 4
    if bits == 6:
        return low | (np.int32(words[4 * (PANEL * (4 + quad // 4) + lane) + byte]) >> 2 * (quad % 4) & 3) << 4
    return low


@linked
def embed_blocks(tokens, job, size, out):
    """The rows ``tokens`` of a job's matrix, of ``size`` numbers each."""
    f, groups = job.form - 1, size // GROUP
    for row in range(len(tokens)):
        panel = min(tokens[row] // PANEL, job.panels - 1)
        lane = tokens[row] - min(panel * PANEL, job.own - PANEL)
        place = job.weights + panel * panel_bytes(job.form, groups)
        steps = place
        for g in range(groups):
            if _SCALED[f] and g % SUPER == 0:
                steps, place = place, place + _STEPS[f]
            small = array_at(place, _SCALES[f], np.uint8)
            words = array_at(place + _SCALES[f], _GROUPS[f] - _SCALES[f], np.uint8)
            minimum = np.float32(0)
            for half in range(2):
                if not _SCALED[f]:
                    scale = _float16_at(place + 2 * lane)
                    if _MINIMA[f]:
                        minimum = _float16_at(place + 2 * (PANEL + lane))
                else:
                    step = np.int32(small[(PANEL * half if _HALVES[f] else 0) + lane])
                    if not _MINIMA[f] and step > 127:
                        step -= 256
                    scale = _float16_at(steps + 2 * lane) * np.float32(step)
                    if _MINIMA[f]:
                        minimum = _float16_at(steps + 2 * (PANEL + lane)) * np.float32(small[PANEL + lane])
                for i in range(16 * half, 16 * half + 16):
                    code = _code(words, _BITS[f], lane, i)
                    number = np.float32((_NUMBERS[f, code] if _LISTED[f] else code) - _OFFSETS[f])
                    out[row * size + g * GROUP + i] = scale * number + minimum
            place += _GROUPS[f]
