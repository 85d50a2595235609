"""A round's attention in torch's own operations: what its rows look at is copied out of the pool first.

A view that moves from round to round can be no part of a recording; slots that are looked up can. Of several
requests the linear layers take the rows as they come; attention takes as many rows of each, which look at as many
slots, in one call. For a GPU without Triton, and where a recorded round is compared with a usual one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actors.engines.decoder.gpu.folded_attention import attend_folded
from actors.engines.decoder.gpu.round_buffer import MAX_ROWS, RoundShape, power_bucket
from actors.engines.decoder.torch.attention import MAX_ROUND as MAX_WINDOW
from actors.engines.decoder.torch.attention import attend
from actors.engines.decoder.torch.body import Look, TorchBody
from actors.engines.decoder.torch.branches import BLOCK, View, view
from actors.engines.flat_batch import Segment

EACH = (1, 4, 16, 64)  # rows of one request among several: few steps, since attention alone is computed for them
STEP = 256  # of spans ...
FINE = 1024  # ... up to here; they are powers of two beyond
# Slots of several requests that a layer's attention copies, and places times slots that it scores: at 8 heads of 128 in
# 16 bits 268 MB, and at 32 query heads 134 MB in float32. Rounds beyond are launched as usual.
MAX_GATHERED = 1 << 16
MAX_SCORED = 1 << 20


def span_bucket(span: int) -> int:
    if span <= FINE:
        return -(-span // STEP) * STEP
    return power_bucket(span)


def copies_bucket(rows: int, copies: int) -> int:
    """Blocks of copies for a window's branches. A branch needs two at most, since no window is as long as a block; most
    trees make do with half a block for a row."""
    return next(bucket for bucket in (0, -(-rows // 2), 2 * rows) if bucket >= copies)


class GatheredShape(NamedTuple):
    """What is recorded: ``rows`` in a row, of ``streams`` requests. Attention alone is computed for ``each`` rows of
    every request, which look at ``span`` slots of the pool and ``copies`` blocks of copies."""

    rows: int
    streams: int
    each: int
    span: int
    copies: int

    @classmethod
    def of(cls, rows: int, segments: Sequence[Segment], looks: Sequence[View]) -> GatheredShape:
        """The shape that fits segments with this many rows in all."""
        most = max(segment.rows for segment in segments)
        each = rows if len(segments) == 1 else next(bucket for bucket in EACH if bucket >= most)
        span = span_bucket(max(segment.span for segment in segments))
        copies = copies_bucket(each, max(look.copies.size // BLOCK for look in looks))
        return cls(rows, power_bucket(len(segments)), each, span, copies)

    @property
    def seen(self) -> int:
        """Slots and copies that a row looks at."""
        return self.span + self.copies * BLOCK

    @property
    def parts(self) -> tuple[int, ...]:
        """Lengths of the numbers: the requests' bases, for several of them the row of every place in the attention and
        the place of every row, and for copies their slots and every row's order of blocks."""
        apart = (self.streams * self.each, self.rows) if self.streams > 1 else (0, 0)
        order = self.streams * self.each * self.span // BLOCK if self.copies else 0
        return self.streams, *apart, self.streams * self.copies * BLOCK, order

    @property
    def header(self) -> int:
        """Bytes of the numbers, which are int32."""
        return 4 * sum(self.parts)

    @property
    def bytes(self) -> int:
        return self.header + self.streams * self.each * self.seen // 8


class _GatheredPlan(NamedTuple):
    shape: GatheredShape
    segments: Sequence[Segment]
    looks: Sequence[View]

    @property
    def bytes(self) -> int:
        return self.shape.bytes

    def pack(self, host: NDArray[np.uint8]) -> None:
        """int32 numbers (:attr:`GatheredShape.parts`), then what each row sees, one bit per slot. Requests beyond the
        segments repeat the last one."""
        shape, segments = self.shape, self.segments
        numbers = host[: shape.header].view(np.int32)
        bases, apart, places, copies, order = np.split(numbers, np.cumsum(shape.parts)[:-1])
        bases[: len(segments)], bases[len(segments) :] = [one.base for one in segments], segments[-1].base
        sees = host[shape.header : shape.bytes].reshape(shape.streams, shape.each, -1)
        sees[:] = 0
        copies, order = copies.reshape(shape.streams, -1), order.reshape(shape.streams, -1)
        first = 0
        for stream, (segment, look) in enumerate(zip(segments, self.looks, strict=True)):
            if shape.streams > 1:
                rows = first + np.minimum(np.arange(shape.each), segment.rows - 1)
                apart[stream * shape.each :][: shape.each] = rows
                places[first : first + segment.rows] = stream * shape.each + np.arange(segment.rows)
                first += segment.rows
            if shape.copies:
                _copied(copies[stream], order[stream].reshape(shape.each, -1), segment, look)
            _seen(sees[stream], shape.span, segment, look)
        for part in (apart.reshape(shape.streams, -1), copies, order, sees):
            part[len(segments) :] = part[len(segments) - 1]
        if shape.streams > 1:
            places[first:] = places[first - 1]


class Told(NamedTuple):
    """A round's attention on its device; numbers are int64."""

    bases: Tensor  # (streams,)
    apart: Tensor | None  # (streams * each,), the row that is there; None: of one request they are the rows
    places: Tensor | None  # (rows,), where in the attention a row is
    copies: Tensor  # (streams, copies * BLOCK), slots
    order: Tensor | None  # (streams, each, blocks of the span): see :func:`attend_folded`; None: as they lie
    sees: Tensor  # bool (streams, each, seen)


class Gathered:
    """:class:`actors.engines.decoder.gpu.round_buffer.Layout`."""

    def __init__(self, body: TorchBody) -> None:
        self.attention = attend_folded if body.device.type == "cuda" else attend_as_eager
        self._pool, self._scale, self._exact = body.pool, body.shape.width**-0.5, body.exact
        device = body.device
        self._longest = span_bucket(self._pool.slots)
        self._offsets = torch.arange(self._longest, device=device)
        self._seen = torch.zeros((), dtype=body.dtype, device=device)
        self._unseen = torch.full((), float("-inf"), dtype=body.dtype, device=device)
        self._bits = torch.tensor([1 << bit for bit in range(8)], dtype=torch.uint8, device=device)

    @property
    def bytes(self) -> int:
        """One request with as many rows and branches as there can be, or several."""
        alone = GatheredShape(MAX_WINDOW, 1, MAX_WINDOW, self._longest, 2 * MAX_WINDOW).bytes
        numbers = 3 * MAX_ROWS + MAX_SCORED // STEP + MAX_GATHERED + MAX_SCORED // BLOCK
        return max(alone, 4 * numbers + MAX_SCORED // 8)

    @property
    def usual(self) -> Sequence[RoundShape]:
        return ()

    @property
    def prompt_rows(self) -> Sequence[int]:
        return ()

    def plan(self, rows: int, segments: Sequence[Segment]) -> _GatheredPlan | None:
        looks = [view(one) if self._exact else View(one.visible) for one in segments]
        shape = GatheredShape.of(rows, segments, looks)
        if shape.streams > 1 and not (
            shape.streams * shape.seen <= MAX_GATHERED and shape.streams * shape.each * shape.seen <= MAX_SCORED
        ):
            return None
        return _GatheredPlan(shape, segments, looks)

    def look(self, shape: RoundShape, told: Tensor) -> Look:
        assert isinstance(shape, GatheredShape)
        here = self.unpack(shape, told)
        mask = torch.where(here.sees, self._seen, self._unseen)
        window = (self._offsets[: shape.span] + here.bases[:, None]).clamp_(max=self._pool.slots - 1)
        if shape.copies:
            window = torch.cat([window, here.copies], 1)
        window = window.flatten()

        def look(layer: int, queries: Tensor) -> Tensor:
            keys, values = self._pool.gather(layer, window)
            keys, values = (part.view(len(part), shape.streams, shape.seen, -1) for part in (keys, values))
            apart = queries[None] if here.apart is None else _of_streams(queries, here.apart, shape)
            seen = self.attention(apart.transpose(1, 2), keys, values, mask, self._scale, here.order)
            rows = seen.transpose(1, 2).reshape(shape.streams * shape.each, -1)
            return rows if here.places is None else rows.index_select(0, here.places)

        return look

    def unpack(self, shape: GatheredShape, told: Tensor) -> Told:
        numbers = told[: shape.header].view(torch.int32).long()
        bases, apart, places, copies, order = torch.split(numbers, list(shape.parts))
        several, apiece = shape.streams > 1, (shape.streams, shape.each)
        sees = told[shape.header : shape.bytes].view(-1, 1).bitwise_and(self._bits).ne(0)
        return Told(
            bases,
            apart if several else None,
            places if several else None,
            copies.view(shape.streams, -1),
            order.view(*apiece, -1) if shape.copies else None,
            sees.view(*apiece, shape.seen),
        )


def attend_as_eager(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float, order: Tensor | None = None
) -> Tensor:
    """On a CPU blocks are added one after the other, whichever a row sees of them."""
    streams = zip(query.unbind(), keys.unbind(1), values.unbind(1), mask.unbind(), strict=True)
    return torch.stack([attend(*stream, scale) for stream in streams])


def _of_streams(queries: Tensor, apart: Tensor, shape: GatheredShape) -> Tensor:
    return queries.index_select(0, apart).view(shape.streams, shape.each, *queries.shape[1:])


def _copied(copies: NDArray[np.int32], order: NDArray[np.int32], segment: Segment, look: View) -> None:
    """One request's copies, and of each of its rows which blocks stand for the text."""
    blocks = order.shape[1]
    copies[:] = segment.base
    copies[: look.copies.size] = look.copies.ravel()
    order[:] = np.arange(blocks)
    if look.branch is None:
        return
    size = look.copies.shape[1] // BLOCK
    for row in np.flatnonzero(look.branch >= 0):
        order[row, look.first : look.first + size] = blocks + look.branch[row] * size + np.arange(size)
    order[segment.rows :] = order[segment.rows - 1]


def _seen(sees: NDArray[np.uint8], span: int, segment: Segment, look: View) -> None:
    """One request's bits."""
    for at, part in ((0, look.visible[:, : segment.span]), (span, look.visible[:, segment.span :])):
        packed = np.packbits(part, axis=1, bitorder="little")
        sees[: segment.rows, at // 8 : at // 8 + packed.shape[1]] = packed
    sees[segment.rows :] = sees[segment.rows - 1]
