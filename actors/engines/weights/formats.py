"""The one table of formats: what the bytes of each kind of blocks mean, and the form in which products read them.

A file's blocks are ggml's (ggml-common.h of https://github.com/ggml-org/ggml), each of consecutive weights of a row. A
form codes ``GROUP`` inputs of an output in 4 to 8 bits. On a CPU a panel is ``PANEL`` outputs whose groups lie one
behind the other; within a group a word of 32 bits has the weights of one output for four inputs, a quad. Kinds without
a form of their own take the one that holds their numbers exactly in more bits; those that none holds are computed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

GROUP, PANEL = 32, 16
SUPER = 256 // GROUP  # groups that share the steps of their scales
IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)  # twice the numbers
_SHIFTS: Bytes = np.array([0, 4], np.uint8)
_NAMES = """
F32 F16 Q4_0 Q4_1 Q4_2 Q4_3 Q5_0 Q5_1 Q8_0 Q8_1 Q2_K Q3_K Q4_K Q5_K Q6_K Q8_K IQ2_XXS IQ2_XS IQ3_XXS IQ1_S IQ4_NL
IQ3_S IQ2_S IQ4_XS I8 I16 I32 I64 F64 IQ1_M BF16 Q4_0_4_4 Q4_0_4_8 Q4_0_8_8 TQ1_0 TQ2_0 IQ4_NL_4_4 IQ4_NL_4_8
IQ4_NL_8_8 MXFP4 NVFP4 Q1_0 Q2_0
"""
NAMES = _NAMES.split()


def kind_name(number: int) -> str:
    """ggml's name of the type with that number."""
    return NAMES[number] if number < len(NAMES) else f"number {number}"


@dataclass(frozen=True, slots=True)
class Form:
    """How a group of weights is coded, and lies in a panel: scales, minima, then words of each output.

    ``scaled`` groups have scales of 8 bits times steps of float16 that ``SUPER`` groups share, which lie before them;
    others one float16. Of ``halves`` each 16 inputs have a scale. A weight is ``scale * (code - offset) + minimum``, or
    with a ``table`` of 16 numbers ``scale * table[code]``. On a GPU alone: ``whole`` outputs have a float32 scale, too;
    ``float8``: codes are the bits of float8_e4m3fn, and as many inputs (0: all) have a scale, which is a float32.
    """

    bits: int
    offset: int = 0  # a power of two, or 0
    minima: bool = False
    scaled: bool = False
    halves: bool = False
    table: tuple[int, ...] = ()
    whole: bool = False
    float8: int | None = None

    @property
    def wide(self) -> int:
        """Bits of what is multiplied: codes, or numbers of the table and the offset."""
        return (max(self.table) + self.offset).bit_length() if self.table else self.bits

    @property
    def steps(self) -> int:
        """Bytes before ``SUPER`` groups."""
        return 2 * PANEL * (1 + self.minima) if self.scaled else 0

    @property
    def scales(self) -> int:
        """Bytes before the codes of a group."""
        return PANEL * ((2 if self.halves else 1) + self.minima) if self.scaled else 2 * PANEL * (1 + self.minima)

    @property
    def group(self) -> int:
        """Bytes of a group."""
        return self.scales + PANEL * GROUP * self.bits // 8

    @property
    def weight(self) -> float:
        """Bytes of a weight, scales included."""
        return (self.group + self.steps / SUPER) / (PANEL * GROUP)

    def output_on_gpu(self, inputs: int) -> float:
        """Bytes of an output on a GPU: one or two numbers of float16 a group, of which four stand together."""
        if self.float8 is not None:
            filled = -(-inputs // (4 * GROUP)) * 4 * GROUP
            return filled + 4 * filled / (self.float8 or filled)
        each = self.bits / 8 + (4 if self.minima or self.halves else 2) / GROUP
        return -(-inputs // (4 * GROUP)) * 4 * GROUP * each + (4 if self.whole else 0)


@dataclass(frozen=True, slots=True)
class Codes:
    """Weights ``(rows, inputs)`` as small integers without a sign, and their scales."""

    form: int  # number in :data:`FORMS`, counted from 1
    codes: Bytes
    steps: NDArray[Any]  # float16 (rows, groups of 256 or 32, 1 or 2): scales, and minima
    scales: Bytes | None = None  # 8 bits (rows, groups of 32, 1 or 2): scales, and minima or those of second halves
    whole: Floats | None = None  # (rows, 1)

    def values(self) -> Floats:
        """The numbers that they stand for, as :class:`Form` says."""
        form, rows = GPU_FORMS[self.form - 1], len(self.codes)
        table = np.array(form.table, np.float32)
        numbers = table[self.codes] if form.table else self.codes.astype(np.float32) - form.offset
        if form.float8 is not None:  # moved into float16, whose exponents are 8 larger
            moved = ((self.codes & 128).astype(np.uint16) << 1 | self.codes & 127) << 7
            numbers = np.ldexp(moved.view(np.float16).astype(np.float32), 8)
        steps, minima = self.steps.astype(np.float32), form.minima
        if self.scales is not None:
            steps = np.repeat(steps, self.scales.shape[1] // steps.shape[1], 1)
            steps = steps * (self.scales if minima else self.scales.view(np.int8))
        factors = steps[:, :, :1] if minima else steps.reshape(rows, -1, 1)
        numbers = numbers.reshape(rows, factors.shape[1], -1)
        numbers *= factors
        if minima:
            numbers += steps[:, :, 1:]
        numbers = numbers.reshape(rows, -1)
        return numbers if self.whole is None else numbers * self.whole


@dataclass(frozen=True, slots=True)
class BlockKind:
    """How a type lies in memory."""

    name: str
    elements: int  # weights in a block
    bytes: int  # size of a block
    floats: tuple[int, int]  # bytes of a block with its scales in float16, or with the exponent of its only weight
    form: int  # number of the form that holds the same numbers; 0: there is none
    read: Callable[[Bytes], Any]  # (blocks, bytes) -> each block's codes and small scales; without a form its numbers

    def bytes_of(self, count: int) -> int:
        """Bytes of a number of weights, a multiple of ``elements``."""
        return count // self.elements * self.bytes

    def codes(self, rows: Bytes) -> Codes:
        """The codes in the bytes ``(rows, bytes of a row)``."""
        blocks = np.ascontiguousarray(rows).reshape(-1, self.bytes)
        codes, *scales = self.read(blocks)
        steps = _halves(blocks[:, slice(*self.floats)]) if self.floats[1] else half_powers(blocks[:, :1])
        if self.name in ("Q4_K", "Q5_K"):  # their minima are taken away
            steps = (steps.view("<u2") ^ np.array([0, 0x8000], "<u2")).view("<f2")
        found = (part.reshape(len(rows), -1, part.shape[-1]) for part in (steps, *scales))
        return Codes(self.form, codes.astype(np.uint8, copy=False).reshape(len(rows), -1), *found)

    def dequantise(self, rows: Bytes) -> Floats:
        """float32 ``(rows, weights)`` of the bytes ``(rows, bytes of a row)``."""
        if self.form:
            return self.codes(rows).values()
        values: Floats = self.read(np.ascontiguousarray(rows).reshape(-1, self.bytes))
        return values.reshape(len(rows), -1)

    def is_finite(self, data: Bytes) -> bool:
        """Whether blocks have neither NaN nor infinity. Codes never have."""
        words = _halves(data.reshape(-1, self.bytes)[:, slice(*self.floats)]).view("<u2")
        exponent = 0x7F80 if self.name in ("F32", "BF16") else 0x7C00
        return not bool((words & exponent == exponent).any())


def _halves(part: Bytes) -> NDArray[np.float16]:
    """float16 numbers ``(blocks, n)``."""
    return np.ascontiguousarray(part).view("<f2")


def _parted(part: Bytes, width: int, bits: int) -> Bytes:
    """Numbers of that many bits in their order: every ``width`` bytes of a block hold ``8 / bits`` times as many, the
    lowest bits of all those bytes first."""
    whole, shifts = part.reshape(len(part), -1, width), range(0, 8, bits)
    out = np.empty((*whole.shape[:2], len(shifts), width), np.uint8)
    for at, shift in enumerate(shifts):
        np.right_shift(whole, shift, out=out[:, :, at])
    out &= (1 << bits) - 1
    return out.reshape(len(part), -1)


def _nibbles(part: Bytes) -> Bytes:
    """``(blocks, 2n)``: all low nibbles, then all high ones."""
    return _parted(part, part.shape[1], 4)


def _fifth_bits(part: Bytes) -> NDArray[Any]:
    """Bit i of 32 is the fifth of weight i, here as 0 or 16."""
    return np.unpackbits(part, axis=1, bitorder="little") << 4


def _bfloat16(b: Bytes) -> Floats:
    wide: Floats = (b.view("<u2").astype(np.uint32) << 16).view(np.float32)
    return wide


def _q2_k(b: Bytes) -> Floats:
    scales, whole = b[:, :16], _parted(b[:, 16:80], 32, 2).reshape(-1, 16, 16)
    step, least = (_halves(b[:, place : place + 2]).astype(np.float32) for place in (80, 82))
    found: Floats = (step * (scales & 15))[:, :, None] * whole.astype(np.float32) - (least * (scales >> 4))[:, :, None]
    return found


def _q3_k(b: Bytes) -> tuple[NDArray[Any], ...]:
    low = _nibbles(b[:, 96:104])
    top = (b[:, 104:108, None] >> np.array([0, 2, 4, 6], np.uint8)) & 3  # (blocks, 4 bytes, 4 shifts)
    scales = (low | (top.transpose(0, 2, 1).reshape(len(b), 16) << 4)).astype(np.int8) - np.int8(32)
    missing = _parted(b[:, :32], 32, 1) ^ 1
    codes = 32 + _parted(b[:, 32:96], 32, 2) - 4 * missing
    return codes, scales.view(np.uint8).reshape(len(b), -1, 2)


def _k(b: Bytes, codes: NDArray[Any]) -> tuple[NDArray[Any], ...]:
    """Q4_K and Q5_K: 12 bytes hold scales and minima of 6 bits, eight each."""
    first, second, rest = np.ascontiguousarray(b[:, 4:16].T).reshape(3, 4, -1)  # one loop of all blocks, not of four
    scales = np.concatenate([first & 63, (rest & 15) | (first >> 6) << 4])
    minima = np.concatenate([second & 63, (rest >> 4) | (second >> 6) << 4])
    return codes, np.stack([scales.T, minima.T], 2)


def _q5_k(b: Bytes) -> tuple[NDArray[Any], ...]:
    return _k(b, _parted(b[:, 48:], 32, 4) | _parted(b[:, 16:48], 32, 1) << 4)


def _q6_k(b: Bytes) -> tuple[NDArray[Any], ...]:
    codes = _parted(b[:, :128], 64, 4) | _parted(b[:, 128:192], 32, 2) << 4
    return codes, b[:, 192:208].reshape(len(b), -1, 2)


def _iq4_xs(b: Bytes) -> tuple[NDArray[Any], ...]:
    high = np.ascontiguousarray(b[:, 2:4]).view("<u2") >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    low = (b[:, 4:8, None] >> _SHIFTS & 15).reshape(len(b), 8)
    scales = (low | high << 4).astype(np.int8) - np.int8(32)
    return _nibbles(b[:, 8:].reshape(-1, 16)), scales.view(np.uint8)[:, :, None]


def half_powers(exponents: Bytes) -> Floats:
    """Halves of MXFP4's powers of two, as its numbers are doubled in the table."""
    return np.ldexp(np.float32(1), exponents.astype(np.int32) - 128)


def in_float16(exponents: Bytes) -> bool:
    """Whether halves of the powers of two are numbers of float16."""
    return int(exponents.min(initial=128)) >= 104 and int(exponents.max(initial=128)) <= 143


_SIX = Form(6, 32, scaled=True, halves=True)
_TABLE: tuple[tuple[str, int, int, tuple[int, int], Form | None, Callable[[Bytes], Any]], ...] = (
    ("F32", 1, 4, (2, 4), None, lambda b: b.view("<f4").astype(np.float32)),
    ("F16", 1, 2, (0, 2), None, lambda b: _halves(b).astype(np.float32)),
    ("BF16", 1, 2, (0, 2), None, _bfloat16),
    ("Q4_0", 32, 18, (0, 2), Form(4, 8), lambda b: (_nibbles(b[:, 2:]),)),
    ("Q4_1", 32, 20, (0, 4), Form(4, minima=True), lambda b: (_nibbles(b[:, 4:]),)),
    ("Q5_0", 32, 22, (0, 2), Form(5, 16), lambda b: (_nibbles(b[:, 6:]) | _fifth_bits(b[:, 2:6]),)),
    ("Q5_1", 32, 24, (0, 4), Form(5, minima=True), lambda b: (_nibbles(b[:, 8:]) | _fifth_bits(b[:, 4:8]),)),
    ("Q8_0", 32, 34, (0, 2), Form(8, 128), lambda b: (b[:, 2:] ^ 128,)),
    ("Q2_K", 256, 84, (80, 84), None, _q2_k),
    ("Q3_K", 256, 110, (108, 110), _SIX, _q3_k),
    ("Q4_K", 256, 144, (0, 4), Form(4, minima=True, scaled=True), lambda b: _k(b, _parted(b[:, 16:], 32, 4))),
    ("Q5_K", 256, 176, (0, 4), Form(5, minima=True, scaled=True), _q5_k),
    ("Q6_K", 256, 210, (208, 210), _SIX, _q6_k),
    ("IQ4_NL", 32, 18, (0, 2), Form(4, 128, table=IQ4), lambda b: (_nibbles(b[:, 2:]),)),
    ("IQ4_XS", 256, 136, (0, 2), Form(4, 128, scaled=True, table=IQ4), _iq4_xs),
    ("MXFP4", 32, 17, (0, 0), Form(4, 16, table=E2M1), lambda b: (_nibbles(b[:, 1:]),)),
)
FORMS = tuple(dict.fromkeys(form for *_, form, _ in _TABLE if form is not None))
# Those that a GPU reads: NVFP4's scales are numbers of 8 bits, as they are, with a float32 beside them
GPU_FORMS = (
    *FORMS,
    Form(4, 16, halves=True, table=E2M1, whole=True),
    *(Form(8, float8=inputs) for inputs in (0, 128, GROUP)),
)
NUMBER = {form: number for number, form in enumerate(GPU_FORMS, 1)}
NVFP4 = len(FORMS) + 1
MXFP4 = NUMBER[Form(4, 16, table=E2M1)]
KINDS: dict[int, BlockKind] = {
    NAMES.index(name): BlockKind(name, elements, size, floats, 0 if form is None else NUMBER[form], read)
    for name, elements, size, floats, form, read in _TABLE
}
