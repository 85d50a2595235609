"""Layers with sliding windows keep a ring of each text's last tokens, in place of the whole text.

The token at position p lies in the ring's slot ``p % length``. A window's nodes follow the text, in the order in which
they are listed, and accepted ones are copied to their positions. numba compiles nothing of this file.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence

import torch

from actors.engines.cache.kv_cache import SHARED
from actors.engines.cache.pool import KVPool, KVShape
from actors.engines.cache.snapshots import BORDER
from actors.engines.decoder.spec import Attention, DecoderSpec
from actors.engines.flat_batch import SPAN, Segment, align

MOST_ROWS = 256  # rows of one text in a forward
BESIDE = 3  # rings beyond the limit: one for rows without a text, two for states that are dropped at once


def ring_slots(spec: DecoderSpec, max_context: int) -> int:
    """Slots of a ring; 0: no layer has one. Attention reads up to a block of masked slots before a row's window; a span
    holds that block."""
    windows = {attention.window for attention in spec.attentions if attention.window}
    shared = [(one.window, spec.layers[one.shares].attention) for one in spec.attentions if one.shares is not None]
    alike = all(other is not None and other.window == window for window, other in shared)
    if len(windows) != 1 or spec.recurrent or not alike:
        return 0
    slots = align(max(windows) + SPAN + MOST_ROWS)
    return slots if slots < max_context else 0


def kv_shapes(spec: DecoderSpec, rings: bool) -> tuple[KVShape, KVShape]:
    """The shapes of layers with whole texts and of layers with rings."""
    own = [attention for attention in spec.attentions if attention.shares is None]
    return _shape(one for one in own if not (rings and one.window)), _shape(one for one in own if rings and one.window)


def _shape(attentions: Iterable[Attention]) -> KVShape:
    return KVShape(tuple((attention.kv_heads, attention.width) for attention in attentions))


class RingState:
    """A :class:`actors.engines.flat_batch.TextState`."""

    def __init__(self, rings: Rings) -> None:
        ring = rings.free.pop()
        rings.had.add(ring)
        self.start: int = ring * rings.length  # the ring's first slot
        self._rings = rings
        self._length = 0  # the text's length
        self._first = 0  # first position that is not overwritten
        weakref.finalize(self, rings.free.append, ring)

    @property
    def back(self) -> int:
        return self._length - self._first - self._rings.read if self._first else self._length

    def computing(self, rows: int) -> None:
        """Prepare for a forward that writes rows after the text."""
        assert rows <= MOST_ROWS
        self._first = max(self._first, self._length + rows - self._rings.length)

    def keep(self, path: Sequence[int]) -> None:
        moved = [(row, depth) for depth, row in enumerate(path) if row != depth]
        if moved:
            self._rings.pool.copy(*([self._slot(row) for row in rows] for rows in zip(*moved, strict=True)))
        self._length += len(path)

    def copy(self, back: int = 0) -> RingState:
        other, length = RingState(self._rings), self._rings.length
        self._rings.pool.duplicate(self.start, other.start, length if self._first else min(length, self._length))
        other._length, other._first = self._length - back, self._first
        return other

    def _slot(self, row: int) -> int:
        """The slot of a row of the last forward."""
        return self.start + (self._length + row) % self._rings.length


class Rings:
    """A :class:`actors.engines.engine.Recurrence`."""

    pieces_agree = True
    border = 16 * BORDER  # a snapshot takes as much as a window, or more
    fine = SHARED

    def __init__(self, spec: DecoderSpec, length: int, limit: int, dtype: torch.dtype) -> None:
        """``length``: slots of a ring; ``limit``: texts that have one."""
        shape, self.length, self.limit = kv_shapes(spec, True)[1], length, limit
        self.pool = KVPool(shape, (limit + BESIDE) * length, dtype, "cpu")
        self.read = max(attention.window for attention in spec.attentions) + SPAN
        self.free = [*range(1, limit + BESIDE)]
        self.had = set[int]()  # rings that texts have had since they were given back
        self.stream_bytes = length * shape.slot_bytes(dtype)

    def give_back(self) -> None:
        """Give the system the memory of rings that no text has."""
        for ring in self.had.intersection(self.free):
            self.pool.give_back(ring * self.length, self.length)
            self.had.remove(ring)

    def new(self) -> RingState:
        return RingState(self)

    def begin(self, segment: Segment) -> int:
        """First slot of the ring of a forward's rows; rows of padding have no text."""
        if segment.state is None:
            return 0
        assert isinstance(segment.state, RingState)
        segment.state.computing(segment.rows)
        return segment.state.start
