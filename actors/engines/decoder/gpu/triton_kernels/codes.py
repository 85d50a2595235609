"""Codes of weights as their words hold them, unpacked into bytes that ``dp4a`` multiplies, by as few instructions."""

from __future__ import annotations

import triton
import triton.language as tl

from actors.engines.weights.formats import GROUP

RECORD = GROUP // 4 + 4  # words of a group of a row: numbers, scale, scaled sum of them, and two that fill 16 bytes


@triton.jit
def dot(a, b, total):
    """``total`` and the products of the bytes of words, which have signs."""
    return tl.inline_asm_elementwise(
        "dp4a.s32.s32 $0, $1, $2, $3;", "=r,r,r,r", [a, b, total], dtype=tl.int32, is_pure=True, pack=1
    )


# Reads a word $4 with eight codes: see :func:`_listed`
LISTED = """{ .reg .b32 code, other;
xor.b32 code, $4, 0x88888888; prmt.b32 $0, $5, $6, code; prmt.b32 $2, $7, $8, $4;
shr.u32 code, code, 16; shr.u32 other, $4, 16;
prmt.b32 $1, $5, $6, code; prmt.b32 $3, $7, $8, other; }"""
_LISTED = tl.constexpr(LISTED)


@triton.jit
def _listed(codes, none, TABLE: tl.constexpr, FIRST: tl.constexpr):
    """Numbers above zero of the low and of the high half of words, and those below it, a byte each.

    Positive ones have codes from 8 on. With the selector's fourth bit, a permutation gives a byte's sign. So each finds
    the byte 0 or -1 where the code has the other sign: see :func:`.groups.tabled`."""
    return tl.inline_asm_elementwise(
        _LISTED, "=&r,=&r,=&r,=r,r,r,r,r,r",
        [codes, none + TABLE[FIRST], none + TABLE[FIRST + 1], none + TABLE[FIRST + 2], none + TABLE[FIRST + 3]],
        dtype=(tl.int32, tl.int32, tl.int32, tl.int32), is_pure=True, pack=1,
    )  # fmt: skip


@triton.jit
def _signed(above, below):
    """Bytes of words, of which each is 0 in one: below 128 nothing is borrowed from a neighbour."""
    return above | ((-0x7F7F7F80 - below) ^ -0x7F7F7F80)


@triton.jit
def four_words(words):
    """The four words that lie side by side, from pointers to them."""
    read = tl.load(words)
    even, odd = tl.split(tl.reshape(read, [read.shape[0], read.shape[1], 2, 2]))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, second, third, fourth


@triton.jit
def _taken(word, FROM: tl.constexpr, TO: tl.constexpr, COUNT: tl.constexpr, UP: tl.constexpr):
    """Bits of each byte of words, put where they belong."""
    shift: tl.constexpr = TO + UP - (FROM + UP) % 8
    mask: tl.constexpr = ((((1 << COUNT) - 1) << (TO + UP)) * 0x01010101 ^ (1 << 31)) - (1 << 31)
    if shift > 0:
        word = word << shift
    if shift < 0:
        word = word >> -shift
    return word & mask


@triton.jit
def halves(word):
    """int16 ``(.., 2)`` of words."""
    return tl.join(word.to(tl.int16), (word >> 16).to(tl.int16))


@triton.jit
def parted(word, none, UP: tl.constexpr, TABLE: tl.constexpr):
    """Words of four signed numbers, from input 4w and from input 4w + 16 on, of the stored word w of 4-bit codes."""
    if len(TABLE) > 0:
        found = _listed(word, none, TABLE, 0)
        one, other = _signed(found[0], found[2]), _signed(found[1], found[3])
    else:
        one, other = _taken(word, 0, 0, 4, UP), _taken(word, 4, 0, 4, UP)
    return one, other


@triton.jit
def unpacked(
    words, high, none, outputs, BITS: tl.constexpr, UP: tl.constexpr, TABLE: tl.constexpr, SIGNED: tl.constexpr,
):  # fmt: skip
    """What is multiplied of groups: eight words of four inputs, and of a table, unless they are ``SIGNED``, eight more.

    As :data:`actors.engines.decoder.gpu.groups.PIECES` says. ``none``: zeros that a compiler does not know for such, so
    that it keeps a table in registers of each thread, which permutations read. ``words``: pointers ``(.., .., 4)``."""
    one, two, three, four = four_words(words)
    more = ()
    if BITS == 4 and (SIGNED or len(TABLE) == 0):
        one, two, three, four = (
            parted(one, none, UP, TABLE),
            parted(two, none, UP, TABLE),
            parted(three, none, UP, TABLE),
            parted(four, none, UP, TABLE),
        )
        coded = one[0], two[0], three[0], four[0], one[1], two[1], three[1], four[1]
    elif BITS == 4:
        one, two = _listed(one, none, TABLE, 4), _listed(two, none, TABLE, 4)
        three, four = _listed(three, none, TABLE, 4), _listed(four, none, TABLE, 4)
        coded = one[0], two[0], three[0], four[0], one[1], two[1], three[1], four[1]
        more = one[2], two[2], three[2], four[2], one[3], two[3], three[3], four[3]  # type: ignore[assignment]
    elif BITS == 5:
        five = tl.load(high)
        coded = (
            _taken(one, 0, 0, 5, UP), _taken(two, 0, 0, 5, UP), _taken(three, 0, 0, 5, UP), _taken(four, 0, 0, 5, UP),
            _taken(five, 0, 0, 5, UP),
            _taken(one, 5, 0, 3, UP) | _taken(two, 5, 3, 2, UP),
            _taken(three, 5, 0, 3, UP) | _taken(four, 5, 3, 2, UP),
            _taken(five, 5, 0, 3, UP) | _taken(two, 7, 3, 1, UP) | _taken(four, 7, 4, 1, UP),
        )  # fmt: skip
    elif BITS == 6:
        five, six = tl.load(high), tl.load(high + outputs)
        coded = (
            _taken(one, 0, 0, 6, UP), _taken(two, 0, 0, 6, UP), _taken(three, 0, 0, 6, UP),
            _taken(one, 6, 0, 2, UP) | _taken(two, 6, 2, 2, UP) | _taken(three, 6, 4, 2, UP),
            _taken(four, 0, 0, 6, UP), _taken(five, 0, 0, 6, UP), _taken(six, 0, 0, 6, UP),
            _taken(four, 6, 0, 2, UP) | _taken(five, 6, 2, 2, UP) | _taken(six, 6, 4, 2, UP),
        )  # fmt: skip
    else:
        five, six, seven, eight = four_words(words + 4 * outputs)
        coded = one, two, three, four, five, six, seven, eight
    return coded, more


@triton.jit
def scales_of(factors, PAIRED: tl.constexpr):
    """Two numbers of a group: its scale, and the second number of a paired form."""
    if PAIRED:
        first, second = tl.inline_asm_elementwise(
            "{ .reg .b16 a, b; mov.b32 {a, b}, $2; cvt.f32.f16 $0, a; cvt.f32.f16 $1, b; }",
            "=f,=f,r", [tl.load(factors)], dtype=(tl.float32, tl.float32), is_pure=True, pack=1,
        )  # fmt: skip
    else:
        first = tl.load(factors).to(tl.float32)
        second = first
    return first, second


@triton.jit
def joined_lanes(sums, UP: tl.constexpr):
    """Add up what four lanes give, as a tree. ``sums``: ``(LANES, ..)``."""
    one, other = tl.split(tl.permute(tl.reshape(sums, [2, 2, sums.shape[1]]), (1, 2, 0)))
    one, other = tl.split(tl.permute(one + other, (1, 0)))
    return (one + other) * (1.0 / (1 << UP))


@triton.jit
def times_whole(total, scales, own, WHOLE: tl.constexpr):
    return total * tl.load(scales + own) if WHOLE else total
