"""What changes from one decode round to the next, packed on the host and copied to the device in one piece."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actors.engines.branches import BLOCK, View
from actors.engines.engine import Segment

EACH = (1, 4, 16, 64)  # rows of one request among several: few steps, since attention alone is computed for them
STEP = 256  # of spans ...
FINE = 1024  # ... up to here; they are powers of two beyond


def power_bucket(count: int) -> int:
    """Of rows and of requests."""
    return 1 << (count - 1).bit_length()


def span_bucket(span: int) -> int:
    if span <= FINE:
        return -(-span // STEP) * STEP
    return power_bucket(span)


def copies_bucket(rows: int, copies: int) -> int:
    """Blocks of copies for a window's branches. A branch needs two at most, since no window is as long as a block; most
    trees make do with half a block for a row."""
    return next(bucket for bucket in (0, -(-rows // 2), 2 * rows) if bucket >= copies)


class RoundShape(NamedTuple):
    """What is recorded: ``rows`` in a row, of ``streams`` requests. Attention alone is computed for ``each`` rows of
    every request, which look at ``span`` slots of the pool and ``copies`` blocks of copies."""

    rows: int
    streams: int
    each: int
    span: int
    copies: int

    @classmethod
    def of(cls, rows: int, segments: Sequence[Segment], looks: Sequence[View]) -> RoundShape:
        """The shape that segments with so many rows in all fit into."""
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
        """Lengths of the numbers: three of the rows, the requests' bases, for several of them the row of every place in
        the attention and the place of every row, and for copies their slots and every row's order of blocks."""
        apart = (self.streams * self.each, self.rows) if self.streams > 1 else (0, 0)
        order = self.streams * self.each * self.span // BLOCK if self.copies else 0
        return 3 * self.rows, self.streams, *apart, self.streams * self.copies * BLOCK, order

    @property
    def header(self) -> int:
        """Bytes of the numbers, which are int32."""
        return 4 * sum(self.parts)

    @property
    def bytes(self) -> int:
        return self.header + self.streams * self.each * self.seen // 8


class Unpacked(NamedTuple):
    """A round on its device; numbers are int64."""

    tokens: Tensor  # (rows,)
    positions: Tensor  # (rows,)
    slots: Tensor  # (rows,)
    bases: Tensor  # (streams,)
    apart: Tensor | None  # (streams * each,), the row that is there; None: of one request they are the rows
    places: Tensor | None  # (rows,), where in the attention a row is
    copies: Tensor  # (streams, copies * BLOCK), slots
    order: Tensor | None  # (streams, each, blocks of the span): see :func:`attend_folded`; None: as they lie
    sees: Tensor  # bool (streams, each, seen)


class Inbox:
    """int32 numbers (:attr:`RoundShape.parts`), then what each row sees, one bit per slot."""

    def __init__(self, size: int, device: torch.device) -> None:
        """``size``: bytes of the largest round."""
        self._pinned = torch.zeros(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
        self._host: NDArray[np.uint8] = self._pinned.numpy()
        self._device = torch.zeros(size, dtype=torch.uint8, device=device)
        self._bits = torch.tensor([1 << bit for bit in range(8)], dtype=torch.uint8, device=device)
        self._sent = torch.cuda.Event() if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    @property
    def size(self) -> int:
        return len(self._host)

    def send(
        self,
        shape: RoundShape,
        tokens: Sequence[int],
        positions: Sequence[int],
        slots: Sequence[int],
        segments: Sequence[Segment],
        looks: Sequence[View],
        spare: int,
    ) -> None:
        """Rows beyond the segments' repeat the last one, but write into slots ``spare ..``; requests beyond theirs
        repeat the last one too."""
        if self._sent is not None:
            self._sent.synchronize()  # the last round's copy may still be reading the pinned memory
        numbers = self._host[: shape.header].view(np.int32)
        of_rows, bases, apart, places, copies, order = np.split(numbers, np.cumsum(shape.parts)[:-1])
        count = sum(segment.rows for segment in segments)
        ids, turns, where = of_rows.reshape(3, shape.rows)
        ids[:count], ids[count:] = tokens[:count], tokens[count - 1]
        turns[:count], turns[count:] = positions[:count], positions[count - 1]
        where[:count], where[count:] = slots[:count], range(spare, spare + shape.rows - count)
        bases[: len(segments)], bases[len(segments) :] = [one.base for one in segments], segments[-1].base
        sees = self._host[shape.header : shape.bytes].reshape(shape.streams, shape.each, -1)
        sees[:] = 0
        copies, order = copies.reshape(shape.streams, -1), order.reshape(shape.streams, -1)
        first = 0
        for stream, (segment, look) in enumerate(zip(segments, looks, strict=True)):
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
            places[count:] = places[count - 1]
        self._device[: shape.bytes].copy_(self._pinned[: shape.bytes], non_blocking=True)
        if self._sent is not None:
            self._sent.record(torch.cuda.current_stream(self._device.device))

    def unpack(self, shape: RoundShape) -> Unpacked:
        numbers = self._device[: shape.header].view(torch.int32).long()
        of_rows, bases, apart, places, copies, order = torch.split(numbers, list(shape.parts))
        tokens, positions, slots = of_rows.view(3, shape.rows).unbind()
        several, apiece = shape.streams > 1, (shape.streams, shape.each)
        sees = self._device[shape.header : shape.bytes].view(-1, 1).bitwise_and(self._bits).ne(0)
        return Unpacked(
            tokens,
            positions,
            slots,
            bases,
            apart if several else None,
            places if several else None,
            copies.view(shape.streams, -1),
            order.view(*apiece, -1) if shape.copies else None,
            sees.view(*apiece, shape.seen),
        )


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
