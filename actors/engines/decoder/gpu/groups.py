"""Weights in small groups (:mod:`actors.engines.decoder.cpu.forms`) on a GPU: the bits of their file in an order for
its threads, and their numbers by torch's operations.

What neighbouring outputs have of the same inputs lies side by side, so that one read takes it all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from actors.cpus import on_all_cpus
from actors.engines.decoder.cpu.forms import FORMS, GROUP, SUPER, Form
from actors.engines.decoder.layout import DecoderWeights
from actors.engines.weights.blocks import Codes
from actors.engines.weights.grouped import Blocks, Grouped
from actors.engines.weights.layers import Matrix

CHUNK = 2 * GROUP  # inputs whose low bits share bytes
PIECE = 16 << 20  # weights that are sent, or made numbers by torch, at a time


@dataclass(frozen=True, slots=True)
class Groups:
    """A matrix ``(outputs, inputs)``. Inputs that fill a chunk up have scales of zero.

    ``low``: uint8 ``(chunks, outputs, 32)``, four bits of an input of the first group, and above them four of the
    second's; of forms of 8 bits ``(chunks, outputs, 64)``, their codes. ``high``: int32 ``(groups, n, outputs)``, a
    word for each bit above the fourth. ``factors``: int32 ``(groups, outputs)``, two numbers of float16: a group's
    scale and minimum, or the scales of its halves. (Reads of fewer than four bytes are not sent ahead.)
    """

    number: int  # number of its form, from 1
    inputs: int
    low: Tensor
    high: Tensor
    factors: Tensor
    table: Tensor  # float32 (16,): what codes stand for; empty: themselves

    @classmethod
    def of(cls, part: Grouped, order: NDArray[np.int64] | None, device: torch.device) -> Groups:
        """``order``: of its rows."""
        rows, inputs = np.arange(part.shape[0]) if order is None else order, part.shape[1]
        each, form = max(1, PIECE // inputs), FORMS[part.form - 1]
        pieces = on_all_cpus(part.codes, [rows[begin : begin + each] for begin in range(0, len(rows), each)])
        low, high, factors = zip(*(_laid_out(piece, form, device) for piece in pieces), strict=True)
        table = torch.tensor(form.table, dtype=torch.float32, device=device)
        return cls(part.form, inputs, torch.cat(low, 1), torch.cat(high, 2), torch.cat(factors, 1), table)

    def above(self, other: Groups) -> Groups:
        """One above another of the same form: one launch multiplies both."""
        low, high = torch.cat([self.low, other.low], 1), torch.cat([self.high, other.high], 2)
        return replace(self, low=low, high=high, factors=torch.cat([self.factors, other.factors], 1))

    @property
    def form(self) -> Form:
        return FORMS[self.number - 1]

    @property
    def outputs(self) -> int:
        return self.low.shape[1]

    @property
    def nbytes(self) -> int:
        return self.low.nbytes + self.high.nbytes + self.factors.nbytes

    def values(self, rows: slice | Tensor) -> Tensor:
        """float32 ``(rows, inputs)``: the numbers of those."""
        form, low = self.form, self.low[:, rows]
        codes = (
            low.view(*low.shape[:2], 2, GROUP).int() if form.bits == 8 else torch.stack([low & 15, low >> 4], 2).int()
        )
        codes = codes.transpose(1, 2).flatten(0, 1)  # (groups, rows, 32)
        bit = torch.arange(GROUP, dtype=torch.int32, device=low.device)
        for place in range(self.high.shape[1]):
            codes = codes | ((self.high[:, place, rows][:, :, None] >> bit) & 1) << (4 + place)
        numbers = self.table[codes.long()] if form.table else (codes - form.offset).float()
        factors = self.factors[:, rows].contiguous().view(torch.float16).float()
        first, second = factors.view(len(factors), -1, 2).unbind(2)
        if form.halves:
            numbers = numbers * torch.stack([first, second], 2).repeat_interleave(GROUP // 2, 2)
        else:
            numbers = numbers * first[:, :, None]
            if form.minima:
                numbers = numbers + second[:, :, None]
        return numbers.transpose(0, 1).flatten(1)[:, : self.inputs]


def _laid_out(piece: Codes, form: Form, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """``low``, ``high`` and ``factors`` of some rows."""
    rows, inputs = piece.codes.shape
    chunks = -(-inputs // CHUNK)
    codes = torch.from_numpy(np.ascontiguousarray(piece.codes)).to(device)
    codes = functional.pad(codes, (0, chunks * CHUNK - inputs)).view(rows, chunks, 2, GROUP).transpose(0, 1)
    low = codes.flatten(2) if form.bits == 8 else codes[:, :, 0] & 15 | codes[:, :, 1] << 4
    words = codes.transpose(1, 2).flatten(0, 1)  # (groups, rows, 32)
    bit = torch.arange(GROUP, device=device)
    bits = range(0) if form.bits == 8 else range(4, form.bits)
    high = [(((words >> place & 1).long() << bit).sum(2)).to(torch.int32) for place in bits]
    none = torch.zeros((2 * chunks, 0, rows), dtype=torch.int32, device=device)
    factors = torch.from_numpy(np.ascontiguousarray(piece.steps, np.float32)).to(device)  # (rows, groups, 1 or 2)
    if piece.scales is not None:
        scales = torch.from_numpy(np.ascontiguousarray(piece.scales)).to(device)
        factors = factors.repeat_interleave(SUPER, 1) * (scales if form.minima else scales.view(torch.int8))
    missing = (0, 2 - factors.shape[2], 0, 2 * chunks - factors.shape[1])  # room for groups that fill up
    pairs = functional.pad(factors, missing).half().contiguous().view(torch.int32)[:, :, 0]
    return low.contiguous(), torch.stack(high, 1) if high else none, pairs.t().contiguous()


@dataclass(slots=True)
class GroupedMatrix(Matrix):
    """A matrix of parts one below the other; ``weight`` is a shape."""

    parts: tuple[Groups, ...] = ()

    @classmethod
    def of(cls, blocks: Blocks, bias: Tensor | None, device: torch.device, joined: bool = True) -> GroupedMatrix:
        """``joined``: neighbours of one form become one part."""
        parts: list[Groups] = []
        for part, order in blocks.parts:
            made = Groups.of(part, order, device)
            if joined and parts and parts[-1].number == made.number:
                made = parts.pop().above(made)
            parts.append(made)
        return cls(torch.empty(blocks.shape, device="meta"), bias, None, tuple(parts))

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    def rows(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        (part,) = self.parts
        return part.values(ids).to(dtype)

    def multiply(self, x: Tensor) -> Tensor:
        """Piece by piece, because the numbers of a whole matrix may find no room."""
        found = []
        for part in self.parts:
            each = max(1, PIECE // part.inputs)
            for first in range(0, part.outputs, each):
                found.append(functional.linear(x, part.values(slice(first, first + each)).to(x.dtype)))
        whole = torch.cat(found, -1)
        return whole if self.bias is None else whole + self.bias


def send(weights: DecoderWeights, device: torch.device) -> None:
    """Put matrices with blocks on the device."""
    tied = weights.head is weights.embedding
    for layer in weights.layers:
        layer.qkv, layer.out = _sent(layer.qkv, device), _sent(layer.out, device)
        if layer.up is not None and layer.down is not None:
            layer.up, layer.down = _sent(layer.up, device, halves=True), _sent(layer.down, device)
        if (experts := layer.experts) is not None:
            experts.router = _sent(experts.router, device)
            experts.each = [(_sent(up, device), _sent(down, device)) for up, down in experts.each]
        if layer.beside is not None:
            layer.beside.gate, layer.beside.out = _sent(layer.beside.gate, device), _sent(layer.beside.out, device)
    if weights.inputs is not None:
        weights.inputs.table = _sent(weights.inputs.table, device)
        weights.inputs.matrix = _sent(weights.inputs.matrix, device)
    if weights.positions is not None:
        weights.positions = _sent(weights.positions, device)
    weights.embedding = _sent(weights.embedding, device)
    weights.head = weights.embedding if tied else _sent(weights.head, device)


def _sent(matrix: Matrix, device: torch.device, halves: bool = False) -> Matrix:
    """``halves``: its first and its second half are parts of their own."""
    if (blocks := matrix.blocks) is None:
        matrix.weight = matrix.weight.contiguous()  # kernels read it by its address
        return matrix
    if halves and len(blocks.parts) == 1:
        half = len(blocks) // 2
        blocks = Blocks.joined([blocks.in_order(np.arange(half) + first) for first in (0, half)])
    return GroupedMatrix.of(blocks, matrix.bias, device, joined=not halves)
