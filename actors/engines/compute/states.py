"""The states of recurrent layers in memory that stays where it is, and the indices by which a forward finds them.

A text has a slot with its state, and a row that a verdict may accept a place with its record. The next forward takes
accepted records into the slot before its own rows go on. So a text is a few numbers on the host, and a recorded round
serves any: which slots and places it reads and writes is data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actors.engines.cache.memory import MAX_REQUESTS, state_room, zeros
from actors.engines.cache.snapshots import BORDER
from actors.engines.decoder.spec import DELTA, SCAN, SELECTIVE, Recurrent
from actors.engines.flat_batch import Segment

TRASH, ZEROS, FIRST = 0, 1, 2  # slots that nobody reads, and of a text before its first token; the first of texts
BESIDE = FIRST + 3  # slots beyond the limit: one is written while its text still has another, two are dropped at once
MAX_STATES = 2 * MAX_REQUESTS  # slots of open requests, and of texts that are kept for later prompts
PLACES = 128  # records at first: of a model of 27B, whose states have 151 MB each, 450 MB
LISTED = 512  # accepted records that a recorded round takes in, at most
ROOMS = 64  # states of a recorded round from which branches go on, at most
GO_ON, TEXT = -1, -2  # a row goes on from the row before it, or from its text; else from a room
FIELDS = 7  # numbers of a text: see ``Indices``
Numbers = NDArray[np.int32]


def record_parts(mixer: Recurrent) -> list[int]:
    """Numbers of a record's keys, values, rates and decays; :data:`SELECTIVE` decays by weights."""
    shared, heads, inner = mixer.groups * mixer.keys, mixer.heads, mixer.inner
    if mixer.kind in (DELTA, SCAN):
        return [shared, inner, heads, heads]
    return [shared, inner, inner, 0] if mixer.kind == SELECTIVE else [0, 0, 0, 0]


class Claim:
    """A number that is taken from the free ones, and free again once nobody holds the claim."""

    __slots__ = ("_free", "number")

    def __init__(self, free: list[int]) -> None:
        self._free, self.number = free, free.pop()

    def __del__(self) -> None:
        self._free.append(self.number)


class Indices(NamedTuple):
    """Numbers (int32) of the slots, records and inputs that a forward reads and writes.

    Inputs are counted through all slots, then through all records; ``-1 - row`` is the input of a row."""

    texts: Any  # (texts, FIELDS): slot read, slot written, its rows, first row, rows, first of ``pending``, how many
    sources: Any  # (rows,): GO_ON, TEXT, or the room of a state
    rooms: Any  # (rows,): the room that keeps the state behind a row; -1: none
    places: Any  # (rows,) of records
    taps: Any  # (rows, kernel - 1): inputs before a row
    past: Any  # (texts, kernel - 1): inputs that the slot written keeps
    pending: Any  # places of accepted records
    host: Indices | None = None  # the same in the host's memory, where it is known

    def to(self, device: torch.device) -> Indices:
        """Copy it from the host's memory."""
        return Indices._make([*(torch.from_numpy(part).to(device) for part in self[:-1]), self])

    def fit(self, rows: int) -> bool:
        """Whether a recorded round of so many rows has room for them."""
        return len(self.pending) <= LISTED and int(self.rooms.max(initial=-1)) < rooms_of(rows)


class TorchState:
    """See :class:`actors.engines.flat_batch.RecurrentState`."""

    back = 0

    def __init__(
        self, memory: StateMemory, slot: Claim | None = None, pending: Sequence[Claim] = (), borrowed: bool = False
    ) -> None:
        self.slot = slot  # None: it has no state yet
        self.pending = [*pending]  # records of accepted rows that the slot does not have yet
        self.borrowed = borrowed  # the slot is another's
        self.ahead: Claim | None = None  # the slot behind the last piece of a prompt
        self.rows: list[Claim] = []  # records of the last forward's rows
        self._memory = memory

    def keep(self, path: Sequence[int]) -> None:
        if self.ahead is None:
            self.pending = [self.rows[row] for row in path]
        else:
            self.slot, self.ahead, self.pending = self.ahead, None, []
        self.rows = []

    def advance(self) -> None:
        """The slot has what was pending, unless the forward was a piece of a prompt or the slot is another's."""
        if self.rows and not self.borrowed:
            self.slot, self.ahead, self.pending = self.ahead or self.slot, None, []

    def copy(self, back: int = 0) -> TorchState:
        return TorchState(self._memory, None if self.slot is None else self._memory.copy(self.slot), self.pending)

    def record(self, row: int) -> Claim:
        return self.rows[row]

    def extend(self, records: Sequence[Claim]) -> None:
        self.pending += records

    def after(self, records: Sequence[Claim]) -> TorchState:
        return TorchState(self._memory, self.slot, [*self.pending, *records], borrowed=True)


class LayerMemory(NamedTuple):
    """What a recurrent layer remembers of texts. float32."""

    states: Tensor  # (slots, heads, keys, values)
    inputs: Tensor  # (numbers of inputs, channels)
    records: Tensor  # (places, numbers of a record)
    first: int  # number of the first place's inputs


class StateMemory:
    """Slots and places of all recurrent layers."""

    def __init__(self, mixers: Sequence[Recurrent], slots: int, device: torch.device) -> None:
        def empty(*sizes: int) -> Tensor:
            return zeros(sizes, torch.float32, device)[0]

        self.past = mixers[0].kernel - 1
        self.first = slots * self.past
        self.layers = [
            LayerMemory(
                empty(slots, one.heads, one.keys, one.values),
                empty(self.first + PLACES, one.channels),
                empty(PLACES, sum(record_parts(one))),
                self.first,
            )
            for one in mixers
        ]
        self.slots, self.places = [*range(slots - 1, ZEROS, -1)], [*range(PLACES - 1, TRASH, -1)]
        self.count = PLACES

    def place(self) -> Claim:
        if not self.places:
            self._grow()
        return Claim(self.places)

    def _grow(self) -> None:
        """Rounds must be recorded anew."""
        for place, layer in enumerate(self.layers):
            inputs, records = (
                torch.cat([part, part.new_zeros(self.count, part.shape[1])]) for part in (layer.inputs, layer.records)
            )
            self.layers[place] = layer._replace(inputs=inputs, records=records)
        self.places += range(2 * self.count - 1, self.count - 1, -1)
        self.count *= 2

    @torch.inference_mode()
    def copy(self, slot: Claim) -> Claim:
        other = Claim(self.slots)
        for layer in self.layers:
            past = layer.inputs[: layer.first].view(len(layer.states), self.past, -1)
            for part in (layer.states, past):
                part[other.number] = part[slot.number]
        return other


def stream_bytes(mixers: Sequence[Recurrent]) -> int:
    """Memory of a text's state."""
    return 4 * sum((one.kernel - 1) * one.channels + one.heads * one.keys * one.values for one in mixers)


def place_bytes(mixers: Sequence[Recurrent]) -> int:
    """Memory of a record."""
    return 4 * sum(one.channels + sum(record_parts(one)) for one in mixers)


@dataclass
class TorchRecurrence:
    """The :class:`actors.engines.engine.Recurrence` of a description."""

    mixers: Sequence[Recurrent]
    limit: int  # texts that there is room for
    device: torch.device
    pieces_agree = False
    border, fine = BORDER, 1

    def __post_init__(self) -> None:
        self.memory = StateMemory(self.mixers, self.limit + BESIDE, self.device)
        self._states: list[TorchState] = []  # those of the last forward

    @property
    def stream_bytes(self) -> int:
        return stream_bytes(self.mixers)

    def new(self) -> TorchState:
        return TorchState(self.memory)

    def index(self, segments: Sequence[Segment]) -> Indices:
        """Indices of the forward of ``segments``, whose rows get places for their records."""
        indexing = _Indexing(self.memory)
        self._states = [indexing.add(segment) for segment in segments]
        return indexing.indices()

    def computed(self) -> None:
        """What was pending in the last indexed forward is in the slots now."""
        for state in self._states:
            state.advance()
        self._states = []

    def words(self, rows: int) -> tuple[int, ...]:
        """Lengths of the indices of a recorded round of so many rows, one after the other."""
        past = rows * self.memory.past
        return rows * FIELDS, rows, rows, rows, past, past, LISTED

    def pack(self, indices: Indices, rows: int) -> Numbers:
        """For a recorded round. Texts and rows that it has beyond the indexed ones are nobody's."""
        words = self.words(rows)
        packed = np.zeros(sum(words), np.int32)
        for part, given in zip(np.split(packed, np.cumsum(words)[:-1]), indices[:-1], strict=True):
            part[: given.size] = given.ravel()
        return packed

    def unpack(self, rows: int, numbers: Tensor) -> Indices:
        texts, sources, rooms, places, taps, past, pending = torch.split(numbers, list(self.words(rows)))
        each = self.memory.past
        return Indices(
            texts.view(-1, FIELDS), sources, rooms, places, taps.view(-1, each), past.view(-1, each), pending
        )


def recurrence_of(mixers: Sequence[Recurrent], device: torch.device, reserved: int = 0) -> TorchRecurrence | None:
    """For a model with these recurrent layers. ``reserved``: bytes that its rounds will take."""
    if not mixers:
        return None
    room = state_room(stream_bytes(mixers), device, reserved + PLACES * place_bytes(mixers))
    return TorchRecurrence(mixers, max(1, min(MAX_STATES, room - BESIDE)), device)


def rooms_of(rows: int) -> int:
    """States that a recorded round of so many rows keeps: a branch takes two rows and the one that both go on from."""
    return min(ROOMS, rows // 2)


class _Indexing:
    """The indices of a forward, text by text."""

    def __init__(self, memory: StateMemory) -> None:
        self._memory = memory
        self._texts: list[tuple[int, ...]] = []
        self._parts: tuple[list[int], ...] = ([], [], [], [])  # sources, rooms, places, pending
        self._taps: list[list[int]] = []
        self._past: list[list[int]] = []

    def indices(self) -> Indices:
        sources, rooms, places, pending = (np.array(part, np.int32) for part in self._parts)
        tables = ((self._texts, FIELDS), (self._taps, self._memory.past), (self._past, self._memory.past))
        texts, taps, past = (np.array(part, np.int32).reshape(-1, size) for part, size in tables)
        return Indices(texts, sources, rooms, places, taps, past, pending)

    def add(self, segment: Segment) -> TorchState:
        state, memory, rows = segment.state, self._memory, segment.rows
        if state is None:
            state = TorchState(memory, borrowed=True)
        assert isinstance(state, TorchState)
        sources, _, places, pending = self._parts
        first, slot = len(sources), ZEROS if state.slot is None else state.slot.number
        kept, count = rows if segment.prompt else 0, len(state.pending)
        self._texts.append((slot, self._written(state, segment.prompt), kept, first, rows, len(pending), count))
        pending += [each.number for each in state.pending]
        parents = segment.parents or range(-1, rows - 1)
        before = [slot * memory.past + at for at in range(memory.past)]
        before += [memory.first + each.number for each in state.pending]
        self._past.append([*before, *range(-1 - first, -1 - first - kept, -1)][kept + count :])
        self._before(before[count:], first, parents)
        self._go_on(parents, first)
        state.rows = [] if segment.prompt else [memory.place() for _ in range(rows)]
        places += [each.number for each in state.rows] or [TRASH] * rows
        return state

    def _written(self, state: TorchState, prompt: bool) -> int:
        """The slot that a forward writes."""
        state.ahead = None
        if prompt or (state.slot is None and state.pending and not state.borrowed):
            state.ahead = Claim(self._memory.slots)
            return state.ahead.number
        return TRASH if state.slot is None or state.borrowed or not state.pending else state.slot.number

    def _before(self, past: list[int], first: int, parents: Sequence[int]) -> None:
        """The inputs before each row; ``past``: those before the text's first row."""
        start = len(self._taps)
        for parent in parents:
            last = past if parent < 0 else [*self._taps[start + parent], -1 - first - parent]
            self._taps.append(last[len(last) - self._memory.past :])

    def _go_on(self, parents: Sequence[int], first: int) -> None:
        sources, rooms, *_ = self._parts
        rooms += [-1] * len(parents)
        for row, parent in enumerate(parents):
            if parent == row - 1:
                sources.append(GO_ON)
            elif parent < 0:
                sources.append(TEXT)
            else:
                if rooms[first + parent] < 0:
                    rooms[first + parent] = max(rooms) + 1
                sources.append(rooms[first + parent])
