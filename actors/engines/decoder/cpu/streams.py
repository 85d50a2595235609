"""The states of recurrent layers for each text, as compiled code reads them: one, and a record of each row behind it.

numba compiles nothing of this file.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actors.engines.cache.snapshots import BORDER
from actors.engines.decoder.cpu.records import LANES, STREAM, WALK
from actors.engines.flat_batch import Segment

Array = NDArray[np.float32]


class FusedState:
    """See :class:`actors.engines.flat_batch.RecurrentState`."""

    def __init__(self, numbers: Array, pending: Array) -> None:
        self.numbers = numbers  # numbers of all layers
        self.pending = pending  # (layers, rows, width): inputs of the accepted rows that are not in the states yet
        self.records = pending  # the same for all rows of the last window
        self.ahead: Array | None = None  # states after the last piece of a prompt
        self.borrowed = False  # ``numbers`` belong to another state
        self.back = 0

    def copy(self, back: int = 0) -> FusedState:
        return FusedState(self.numbers.copy(), self.pending)

    def record(self, row: int) -> Array:
        return np.ascontiguousarray(self.records[:, row : row + 1])

    def extend(self, records: Sequence[Array]) -> None:
        self.pending = np.concatenate([self.pending, *records], 1)

    def after(self, records: Sequence[Array]) -> FusedState:
        other = FusedState(self.numbers, self.pending)
        other.extend(records)
        other.borrowed = True
        return other

    def keep(self, path: Sequence[int]) -> None:
        if self.ahead is None:
            self.pending = np.ascontiguousarray(self.records[:, list(path)])
            return
        self.numbers, self.ahead, self.pending = self.ahead, None, self.pending[:, :0]


def numbers_of(mixer: NDArray[Any]) -> int:
    """Numbers of a text's state in a recurrent layer and those before it."""
    at, past, heads, keys, values = (int(mixer[name][0]) for name in ("at", "past", "heads", "keys", "values"))
    return at + past + heads * keys * values


class FusedRecurrence:
    """A :class:`actors.engines.engine.Recurrence`."""

    pieces_agree = True
    border, fine = BORDER, 1

    def __init__(self, mixers: Sequence[NDArray[Any]], width: int) -> None:
        """``mixers``: of the recurrent layers; ``width``: of what a row puts in."""
        self._layers, self._numbers, self._width = len(mixers), numbers_of(mixers[-1]), width
        self.limit = sys.maxsize  # set by whoever builds the engine
        self._past = int(mixers[0]["kernel"][0]) - 1
        names = ("channels", "heads", "timed", "chosen", "rank")
        channels, heads, timed, *selected = (max(int(mixer[name][0]) for mixer in mixers) for name in names)
        self._parts = (channels, heads, max(heads, timed), *selected)  # numbers of a row of work
        self.rows = 0  # computed in the forward that is laid out, pending ones included
        self.tile = max(int(mixer["keys"][0]) for mixer in mixers) * LANES
        self._walk: NDArray[Any] = np.zeros(1, WALK)
        self._rows: NDArray[np.int64] = np.empty((3, 0), np.int64)  # parents, rows before rows, and places
        self._streams: NDArray[Any] = np.zeros(0, STREAM)
        self._raw: Array = np.empty(0, np.float32)
        self._work: Array = np.empty(0, np.float32)
        self._states: list[FusedState] = []  # states of the last forward

    @property
    def stream_bytes(self) -> int:
        return 4 * self._numbers

    def new(self) -> FusedState:
        nothing = np.empty((self._layers, 0, self._width), np.float32)
        return FusedState(np.zeros(self._numbers, np.float32), nothing)

    def lay_out(self, segments: Sequence[Segment]) -> int:
        """Lay out a forward for compiled code; the address of its ``WALK``."""
        self._states = []
        for segment in segments:
            state = segment.state or self.new()
            assert isinstance(state, FusedState)
            self._states.append(state)
        rows, pending = sum(segment.rows for segment in segments), sum(s.pending.shape[1] for s in self._states)
        total = rows + pending + self._past * len(segments)
        parents: list[int] = []
        for segment in segments:
            parents += segment.parents or range(-1, segment.rows - 1)
        self.rows = rows + pending
        self._make_room(parents, total)
        raw = self._raw[: self._layers * total * self._width].reshape(self._layers, total, self._width)
        first, pending_at, past_at = 0, rows, rows + pending
        self._streams = np.zeros(len(segments), STREAM)
        for segment, state, stream in zip(segments, self._states, self._streams, strict=True):
            count = state.pending.shape[1]
            stream["first"], stream["rows"], stream["pending"] = first, segment.rows, count
            stream["pending_at"], stream["past_at"], stream["borrowed"] = pending_at, past_at, state.borrowed
            stream["state"], stream["records"] = state.numbers.ctypes.data, state.pending.ctypes.data
            state.ahead = np.empty(self._numbers, np.float32) if segment.prompt else None
            stream["ahead"] = 0 if state.ahead is None else state.ahead.ctypes.data
            state.records = raw[:, first : first + segment.rows]
            first, pending_at, past_at = first + segment.rows, pending_at + count, past_at + self._past
        walk = self._walk
        walk["streams"], walk["count"] = self._streams.ctypes.data, len(segments)
        walk["rows"], walk["pending"], walk["total"] = rows, pending, total
        walk["past"], walk["width"] = self._past, self._width
        return int(walk.ctypes.data)

    def computed(self) -> None:
        """Finish the forward that was laid out: pending rows are in the states now."""
        for state in self._states:
            if state.ahead is None:
                state.pending = state.pending[:, :0]
        self._states = []

    def _make_room(self, parents: list[int], total: int) -> None:
        walk = self._walk
        if self._rows.shape[1] < total:
            self._rows = np.empty((3, total), np.int64)
            walk["parents"], walk["before"], walk["places"] = (row.ctypes.data for row in self._rows)
        self._rows[0, : len(parents)] = parents
        if len(self._raw) < (size := self._layers * total * self._width):
            self._raw = np.empty(size, np.float32)
            walk["raw"] = self._raw.ctypes.data
        if len(self._work) < (size := self.rows * sum(self._parts)):
            self._work = np.empty(size, np.float32)
        at = 0
        for name, part in zip(("mixed", "decays", "rates", "chosen", "low"), self._parts, strict=True):
            walk[name] = self._work.ctypes.data + 4 * at
            at += self.rows * part
