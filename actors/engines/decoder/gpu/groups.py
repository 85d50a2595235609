"""Weights in small groups (:mod:`actors.engines.weights.formats`) on a GPU: words for integer dot products.

A thread reads the codes of one output and group in words, its neighbour those of the next output. What is multiplied is
a byte: codes less their offset, moved to its top (which :attr:`Groups.unit` takes back), codes without an offset, or
numbers of a table. Words lie so that few instructions take them apart: what finds no room in a word of its own is cut
into pieces, and stands in bits that other words leave.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from actors.cpus import on_all_cpus
from actors.engines.decoder.layout import DecoderWeights, changed
from actors.engines.weights.blocks import Blocks, Grouped
from actors.engines.weights.formats import GPU_FORMS, GROUP, SUPER, Codes, Form
from actors.engines.weights.matrix import Matrix

LEAST = 1e-36  # 127 divided by less overflows
LANES = 4  # groups that a program multiplies side by side: their number is a multiple of it
BLOCK = 64  # outputs that a program multiplies in float8
# Bits of a word of four numbers in float8: of the first two, as in bfloat16; of the others 4 places higher, and lower
TOP, LEFT, RIGHT = 0x87F087F0 - (1 << 32), 0x80F080F0 - (1 << 32), 0x07000700
PIECE = 16 << 20  # weights that are sent, or made numbers by torch, at a time
Piece = tuple[int, int, int, int]  # a stored word, its first bit in each byte, the code's, and how many bits
# By the bits of a code, the pieces of each of eight words. Word w has input 4w + i in byte i.
PIECES: dict[int, tuple[tuple[Piece, ...], ...]] = {
    4: (*(((word, 0, 0, 4),) for word in range(4)), *(((word, 4, 0, 4),) for word in range(4))),
    5: (
        *(((word, 0, 0, 5),) for word in range(5)),
        ((0, 5, 0, 3), (1, 5, 3, 2)),
        ((2, 5, 0, 3), (3, 5, 3, 2)),
        ((4, 5, 0, 3), (1, 7, 3, 1), (3, 7, 4, 1)),
    ),
    6: (
        *(((word, 0, 0, 6),) for word in (0, 1, 2)),
        ((0, 6, 0, 2), (1, 6, 2, 2), (2, 6, 4, 2)),
        *(((word, 0, 0, 6),) for word in (3, 4, 5)),
        ((3, 6, 0, 2), (4, 6, 2, 2), (5, 6, 4, 2)),
    ),
    8: tuple(((word, 0, 0, 8),) for word in range(8)),
}


def rounded(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows as the products read them: float32 integers ``(rows, groups, 32)``, and scales ``(rows, groups, 1)``.

    As on a CPU (:mod:`actors.engines.decoder.cpu.blocks`): each group is rounded to 1/127 of its largest number.
    """
    groups = x.float().view(*x.shape[:-1], -1, GROUP)
    largest = groups.abs().amax(-1, keepdim=True) + (groups * 0.0).sum(-1, keepdim=True)  # NaN unless all are finite
    inverse = torch.where(largest > LEAST, torch.full_like(largest, 127.0) / largest, 0.0)  # not by a reciprocal
    return (groups * inverse).round(), largest / 127.0


@dataclass(frozen=True, slots=True)
class Groups:
    """A matrix ``(outputs, inputs)``. Groups that fill ``LANES`` up have scales of zero.

    ``words``: int32 ``(groups, outputs, 4)``, the first four stored ones of :data:`PIECES`, whose bytes are turned
    left by as many bits as codes are moved up; forms of 8 bits have ``(groups, 2, outputs, 4)``. ``high``: int32
    ``(groups, n, outputs)``, the others. With a table bits 4i of a word are input 4w + i, and bits 16 + 4i the one 16
    behind it. ``factors``: ``(groups, outputs)``, a float16; of forms with minima or scales of halves two in an int32.
    ``whole``: float32 ``(outputs,)``, of forms that say so, else none.
    """

    number: int  # number of its form, from 1
    inputs: int
    words: Tensor
    high: Tensor
    factors: Tensor
    whole: Tensor

    @classmethod
    def of(cls, part: Grouped, order: NDArray[np.int64] | None, device: torch.device) -> Groups:
        """``order``: of its rows."""
        rows, inputs = np.arange(part.shape[0]) if order is None else order, part.shape[1]
        each, form = max(1, PIECE // inputs), GPU_FORMS[part.form - 1]
        pieces = on_all_cpus(part.codes, [rows[begin : begin + each] for begin in range(0, len(rows), each)])
        words, *rest = zip(*(_laid_out(piece, form, device) for piece in pieces), strict=True)
        return cls(part.form, inputs, torch.cat(words, -2), *(torch.cat(each, -1) for each in rest))

    def above(self, other: Groups) -> Groups:
        """One above another of the same form: one launch multiplies both."""
        words, high = torch.cat([self.words, other.words], -2), torch.cat([self.high, other.high], -1)
        factors, whole = torch.cat([self.factors, other.factors], -1), torch.cat([self.whole, other.whole])
        return replace(self, words=words, high=high, factors=factors, whole=whole)

    @property
    def form(self) -> Form:
        return GPU_FORMS[self.number - 1]

    @property
    def unit(self) -> float:
        """Factor of the bytes that are multiplied."""
        return 2.0 ** -moved_up(self.form)

    @property
    def outputs(self) -> int:
        return self.words.shape[-2]

    @property
    def nbytes(self) -> int:
        return self.words.nbytes + self.high.nbytes + self.factors.nbytes + self.whole.nbytes

    def values(self, rows: slice | Tensor) -> Tensor:
        """float32 ``(rows, inputs)``: the numbers of those."""
        form = self.form
        bytes_ = _bytes(self.words[..., rows, :], self.high[..., rows], form)
        numbers, factors = bytes_ * self.unit, self.factors[:, rows].t().contiguous()
        if not paired(form):
            numbers = numbers * factors[:, :, None, None]
        else:
            first, second = factors[..., None].view(torch.float16).float().chunk(2, 2)
            scales = torch.cat([first, second if form.halves else first], 2)
            numbers = numbers * scales[..., None] + (second[..., None] if form.minima else 0.0)
        found = numbers.flatten(1)[:, : self.inputs]
        return found * self.whole[rows, None] if form.whole else found


def moved_up(form: Form) -> int:
    """Zero bits below the codes in the bytes that are multiplied."""
    return 8 - form.bits if form.offset and not form.table else 0


def paired(form: Form) -> bool:
    return form.minima or form.halves


def _flipped(form: Form) -> int:
    """What is changed in codes of a table so that positive numbers have those from 8 on."""
    return 8 if min(form.table[8:]) < 0 else 0


def tabled(form: Form) -> tuple[int, ...]:
    """Four words of numbers without signs, a byte each: the positive ones, and the others; and four of summands.

    A summand is one more than the positive number where the code is of such, and where it is not the number itself: the
    other permutation gives 0 there, or -1. Empty: the form has no table."""
    if not form.table:
        return ()
    places = [code ^ _flipped(form) for code in (*range(8, 16), *range(8))]
    found = np.array(form.table, np.int8)[places]
    found[8:] -= found[8:] == 0  # a second zero, which no code asks for: it must give the sign of the others
    summands = np.concatenate([found[:8] + 1, found[8:]]).astype(np.int8)
    return tuple(np.concatenate([np.abs(found), summands]).view("<i4").tolist())


def _laid_out(piece: Codes, form: Form, device: torch.device) -> tuple[Tensor, ...]:
    """``words``, ``high``, ``factors`` and ``whole`` of some rows."""
    rows, inputs = piece.codes.shape
    groups = -(-inputs // (LANES * GROUP)) * LANES
    codes = torch.from_numpy(np.ascontiguousarray(piece.codes)).to(device)
    if form.table[8:9] == (0,):
        codes = codes.masked_fill(codes == 8, 0)  # see :func:`tabled`
    codes = codes ^ (_flipped(form) if form.table else form.offset)  # the kernel subtracts it from signed numbers
    codes = functional.pad(codes, (0, groups * GROUP - inputs)).view(rows, groups, 8, 4)
    if form.table:
        nibbles = codes.long() << 4 * torch.arange(4, device=device)
        stored = list((nibbles[:, :, :4] | nibbles[:, :, 4:] << 16).sum(-1).to(torch.int32).unbind(2))
    else:
        bytes_ = [torch.zeros_like(codes[:, :, 0]) for _ in range(form.bits)]
        for word, pieces in enumerate(PIECES[form.bits]):
            for at, begin, to, count in pieces:
                bytes_[at] |= (codes[:, :, word] >> to & (1 << count) - 1) << begin
        up = moved_up(form)
        stored = [(each << up | each >> 8 - up).view(torch.int32)[..., 0] for each in bytes_]
    words = torch.stack([torch.stack(stored[at : at + 4], -1) for at in (0, 4)[: 1 + form.bits // 8]]).permute(
        2, 0, 1, 3
    )
    high = torch.zeros((groups, 0, rows), dtype=torch.int32, device=device)
    if form.bits in (5, 6):
        high = torch.stack(stored[4:]).permute(2, 0, 1)
    factors = torch.from_numpy(np.ascontiguousarray(piece.steps, np.float32)).to(device)  # (rows, groups, 1 or 2)
    if piece.scales is not None:
        scales = torch.from_numpy(np.ascontiguousarray(piece.scales)).to(device)
        factors = factors.repeat_interleave(SUPER, 1) * (scales if form.minima else scales.view(torch.int8))
    halves = functional.pad(factors, (0, 0, 0, groups - factors.shape[1])).half().contiguous()
    pairs = halves.view(torch.int32) if paired(form) else halves
    words = words if form.bits == 8 else words[:, 0]
    whole = torch.zeros(0, device=device) if piece.whole is None else torch.from_numpy(piece.whole[:, 0]).to(device)
    return words.contiguous(), high.contiguous(), pairs[:, :, 0].t().contiguous(), whole


def _bytes(words: Tensor, high: Tensor, form: Form) -> Tensor:
    """float32 ``(rows, groups, 2, 16)``: what is multiplied."""
    first = words if form.bits == 8 else words[:, None]
    stored = [word.t() for word in (*first.permute(1, 3, 0, 2).flatten(0, 1), *high.unbind(1))]  # (rows, groups) each
    if form.table:
        codes = torch.stack(stored, 2)[..., None] >> 4 * torch.arange(4, device=words.device)
        table = torch.tensor(form.table, device=words.device, dtype=torch.float32)
        return table[torch.stack([codes & 15, codes >> 16 & 15], 2) ^ _flipped(form)].flatten(3)
    up, found = moved_up(form), []
    bytes_ = [word.contiguous().view(torch.uint8).view(*word.shape, 4) for word in stored]
    bytes_ = [each >> up | each << 8 - up for each in bytes_]
    for pieces in PIECES[form.bits]:
        parts = [(bytes_[at] >> begin & (1 << count) - 1) << to for at, begin, to, count in pieces]
        found.append(torch.stack(parts).sum(0).to(torch.uint8) << up)
    moved = torch.stack(found, 2)
    signed = moved.view(torch.int8) if form.offset else moved
    return signed.float().view(*moved.shape[:2], 2, 16)


@dataclass(slots=True)
class GroupedMatrix(Matrix):
    """A matrix of parts one below the other; ``weight`` is a shape."""

    parts: tuple[Groups, ...] = ()

    @classmethod
    def of(cls, blocks: Blocks, bias: Tensor | None, device: torch.device) -> GroupedMatrix:
        """Neighbours of one form become one part."""
        parts: list[Groups] = []
        for part, order in blocks.parts:
            made = Groups.of(part, order, device)
            if parts and parts[-1].number == made.number:
                made = parts.pop().above(made)
            parts.append(made)
        return cls(torch.empty(blocks.shape, device="meta"), bias, None, tuple(parts))

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    def rows(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        (part,) = self.parts
        return part.values(ids).to(dtype)

    def inputs(self, x: Tensor) -> Tensor:
        whole, scales = rounded(x)
        return (whole * scales).view_as(x).to(x.dtype)

    def multiply(self, x: Tensor) -> Tensor:
        """Piece by piece, because the numbers of a whole matrix may find no room."""
        found = []
        for part in self.parts:
            each = max(1, PIECE // part.inputs)
            for first in range(0, part.outputs, each):
                found.append(functional.linear(x, part.values(slice(first, first + each)).to(x.dtype)))
        whole = torch.cat(found, -1)
        return whole if self.bias is None else whole + self.bias


@dataclass(slots=True)
class Float8Matrix(Matrix):
    """A matrix in float8_e4m3fn; ``weight`` is a shape. Outputs that fill a block up have scales of zero.

    ``words``: int32 ``(blocks, groups, 4, 8, 4, 4)``. Word 2r + q of thread (g, t) in tile m has four inputs from
    8t + 4q of output 16m + 8r + g: the first two in those bits of its halves that they have in bfloat16
    (:data:`TOP`), the others in the bits between. ``scales``: float32 ``(n, blocks, 8, 8)``, of inputs side by side,
    that of output 8j + g at (g, j).
    """

    words: Tensor = field(default_factory=lambda: torch.zeros(0))
    scales: Tensor = field(default_factory=lambda: torch.zeros(0))
    span: int = 0  # groups that have a scale; 0: all

    @classmethod
    def of(cls, blocks: Blocks, bias: Tensor | None, device: torch.device) -> Float8Matrix:
        found = [part.codes(np.arange(part.shape[0]) if rows is None else rows) for part, rows in blocks.parts]
        most, (outputs, inputs) = max(each.steps.shape[1] for each in found), blocks.shape
        steps = np.concatenate([np.repeat(each.steps[:, :, 0], most // each.steps.shape[1], 1) for each in found])
        span = 0 if most == 1 else inputs // most // GROUP
        many, groups = -(-outputs // BLOCK), -(-inputs // (GROUP * LANES)) * LANES
        codes = torch.from_numpy(np.concatenate([each.codes for each in found])).to(device)
        codes = functional.pad(codes, (0, groups * GROUP - inputs, 0, many * BLOCK - outputs))
        step = max(1, PIECE // codes.shape[1] // BLOCK) * BLOCK
        words = torch.cat([_in_tiles(piece) for piece in torch.split(codes, step)])
        scales = functional.pad(torch.from_numpy(steps).to(device), (0, groups // span - most if span else 0))
        scales = functional.pad(scales.t(), (0, many * BLOCK - outputs)).reshape(-1, many, 8, 8).transpose(2, 3)
        meta = torch.empty(blocks.shape, device="meta")
        return cls(meta, bias, None, words, scales.contiguous(), span)

    @property
    def nbytes(self) -> int:
        return self.words.nbytes + self.scales.nbytes

    def rows(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        block, m, r, g = ids // BLOCK, ids // 16 % 4, ids // 8 % 2, ids % 8
        words = self.words.view(*self.words.shape[:-1], 2, 2)[block, :, m, g, :, r]  # (ids, groups, t, q)
        second = (words << 4 & LEFT) | (words >> 4 & RIGHT)
        found = torch.stack([words & TOP, second], -1).view(torch.bfloat16).flatten(1).float() * 2.0**120
        scales = self.scales[:, block, g, 2 * m + r].t()
        numbers = found.view(len(ids), scales.shape[1], -1) * scales[..., None]
        return numbers.flatten(1)[:, : self.weight.shape[1]].to(dtype)

    def multiply(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.rows(torch.arange(len(self.weight), device=x.device), x.dtype), self.bias)


def _in_tiles(codes: Tensor) -> Tensor:
    """``words`` of whole blocks."""
    # blocks, m, r, g, groups, t, q, and two pairs
    parted = codes.view(-1, 4, 2, 8, codes.shape[1] // GROUP, 4, 2, 2, 2).permute(0, 4, 1, 3, 5, 2, 6, 7, 8)
    pairs = parted[..., 0].to(torch.int32) | parted[..., 1].to(torch.int32) << 16
    signs, rest = pairs & 0x800080, pairs & 0x7F007F
    first, second = signs << 8 | rest << 4, signs << 4 | rest & 0xF000F | (rest & 0x700070) << 8
    return (first[..., 0] | second[..., 1]).flatten(-2)


def send(weights: DecoderWeights, device: torch.device) -> DecoderWeights:
    """The weights with matrices as kernels read them; those with blocks are on the device."""
    made: dict[int, Matrix] = {}  # a head may be the embedding

    def change(part: Any) -> Matrix | None:
        if isinstance(part, Matrix) and id(part) not in made:
            made[id(part)] = _sent(part, device)
        return made.get(id(part))

    sent: DecoderWeights = changed(weights, change)
    return sent


def _sent(matrix: Matrix, device: torch.device) -> Matrix:
    if matrix.blocks is not None:
        made = Float8Matrix if matrix.blocks.in_float8 else GroupedMatrix
        return made.of(matrix.blocks, matrix.bias, device)
    matrix.weight = matrix.weight.contiguous()  # kernels read it by its address
    return matrix
