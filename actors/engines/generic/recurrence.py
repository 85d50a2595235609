"""Recurrent and convolutional layers of transformers' models (Qwen3-Next, LFM2, Mamba, Falcon-H1 ...): the state that
they keep of each request, and how they run the rows of a window.

Such a layer has no slot for each token but one state, which every token changes irreversibly. So a request has a state
beside its slots, and a window leaves a record of each row behind: what the layers' projections have made of it. After
the walk the state behind the root becomes the request's, and the next forward replays the accepted rows from their
records.

A piece of a prompt runs as transformers runs it, in parallel over its tokens. The rows of a window run one after the
other along their paths, each from its parent's state as in plain decoding, and in a batch with all rows of the same
depth. So a row's state has the bits of plain decoding, on every branch. Only the projections at a layer's entrance and
exit, which hold most of its weights, are computed for all rows of the forward at once.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from actors.engines.cache.snapshots import BORDER
from actors.engines.flat_batch import Segment

# layer types, as transformers' configurations name them; hybrid ones have attention as well
RECURRENT_LAYERS = {"linear_attention", "conv", "hybrid", "hybrid_sliding"}

Key = tuple[str, int]  # "conv" or "recurrent", and the index among a layer's states of this kind
Memory = dict[Key, Tensor]  # the states of one layer, each (requests, ...)


@dataclass(frozen=True, slots=True)
class LayerInput:
    """What rows put into a layer."""

    hidden: Tensor  # (rows, width): its input
    projected: list[Tensor]  # the entrances' output for it

    @staticmethod
    def joined(records: Sequence[LayerInput]) -> LayerInput:
        parts = zip(*(record.projected for record in records), strict=True)
        return LayerInput(torch.cat([record.hidden for record in records]), [torch.cat(part) for part in parts])

    def of(self, rows: Sequence[int]) -> LayerInput:
        return LayerInput(self.hidden[rows], [part[rows] for part in self.projected])


class GenericState:
    """A :class:`~actors.engines.flat_batch.RecurrentState`, empty before the first token. Parts are by layer."""

    back = 0

    def __init__(self) -> None:
        self.now: dict[int, Memory] = {}
        self.pending: dict[int, LayerInput] = {}  # inputs of the rows that the text has behind ``now``
        self.rows = 0  # pending rows
        self.ahead: dict[int, Memory] = {}  # behind the root of the last forward, or behind a prompt's piece
        self.records: dict[int, LayerInput] = {}  # inputs of all its rows, if it was a window

    def keep(self, path: Sequence[int]) -> None:
        """Until then the forward may be repeated."""
        self.now = {layer: {key: _own(part) for key, part in parts.items()} for layer, parts in self.ahead.items()}
        rest = list(path[1:]) if self.records else []
        self.pending = {layer: record.of(rest) for layer, record in self.records.items()} if rest else {}
        self.rows, self.ahead, self.records = len(rest), {}, {}

    def copy(self, back: int = 0) -> GenericState:
        other = GenericState()
        other.now, other.pending, other.rows = dict(self.now), dict(self.pending), self.rows
        return other

    def record(self, row: int) -> dict[int, LayerInput]:
        return {layer: record.of([row]) for layer, record in self.records.items()}

    def extend(self, records: Sequence[dict[int, LayerInput]]) -> None:
        for layer in records[0] if records else ():
            parts = [*([self.pending[layer]] if self.rows else []), *(record[layer] for record in records)]
            self.pending[layer] = LayerInput.joined(parts)
        self.rows += len(records)

    def behind(self, records: Sequence[dict[int, LayerInput]]) -> GenericState:
        other = self.copy()
        other.extend(records)
        return other

    @property
    def bytes(self) -> int:
        return sum(part.nbytes for parts in self.now.values() for part in parts.values())


def _own(part: Tensor) -> Tensor:
    """A copy of a state that was computed in a batch, of which a view would keep all the memory."""
    return part if part.untyped_storage().nbytes() == part.nbytes else part.clone()


class StateCache(Cache):  # type: ignore[misc]
    """The cache that transformers' layers read and write. It holds one layer's states during a call, which
    :class:`GenericRecurrence` puts in before it and takes out after it."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.memory: Memory = {}

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        return self.memory.get(("conv", state_idx))

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        return self.memory.get(("recurrent", state_idx))

    def update_conv_state(
        self,
        conv_states: Tensor,
        layer_idx: int,
        state_idx: int = 0,
        conv_kernel_size: int | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Keep the last inputs ``(requests, channels, kernel)``, and return the convolution's inputs."""
        kernel = conv_kernel_size or conv_states.shape[-1]
        before = self.memory.get(("conv", state_idx))
        if before is not None:
            conv_states = torch.cat([before, conv_states], dim=-1)
        elif conv_states.shape[-1] < kernel:
            conv_states = nn.functional.pad(conv_states, (kernel - conv_states.shape[-1], 0))
        self.memory["conv", state_idx] = conv_states[..., -kernel:]
        return conv_states

    def update_recurrent_state(
        self, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0, **kwargs: Any
    ) -> Tensor:
        self.memory["recurrent", state_idx] = recurrent_states
        return recurrent_states

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int | None = None) -> bool:
        return bool(self.memory)

    def is_recording_past(self, layer_idx: int) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class Level:
    """Rows of equal depth, numbered in the forward and then among pending ones."""

    rows: Tensor
    parents: Tensor  # their places in the level above; in the first one those of states
    kept: list[tuple[int, GenericState]]  # rows, by their places, behind which states are kept

    def parts(self, whole: bool) -> list[tuple[Tensor, Tensor]]:
        """Rows and parents that are computed together: all, or one at a time."""
        return (
            [(self.rows, self.parents)]
            if whole
            else [*zip(torch.split(self.rows, 1), torch.split(self.parents, 1), strict=True)]
        )


# (row, its parent's place, the state to keep behind it)
_Entry = tuple[int, int, GenericState | None]


class GenericRecurrence:
    """The recurrent layers of one model; it replaces their ``forward``."""

    pieces_agree = False
    border, fine = BORDER, 1

    def __init__(self, layers: Sequence[nn.Module], width: int, cache: StateCache) -> None:
        """``width``: of the layers' input. From now on each layer runs the rows of a forward as :meth:`begin` has laid
        them out."""
        self.cache = cache
        self.continues = True  # whether a piece of a prompt may start from a state; Mamba's parallel scan cannot
        self.rows_agree = True  # whether a level's rows have the bits that they have alone; not with Mamba 1's products
        self.stream_bytes = 0  # size of a request's two states
        self.limit = sys.maxsize  # requests that there is room for; set by whoever builds the engine
        self.inner: set[nn.Module] = set()  # linear layers that must stay as they are: Mamba reads their weights
        self._whole: GenericState | None = None  # state of the request with a prompt in this forward
        self._states: list[GenericState] = []  # all requests' states
        self._windows: list[tuple[GenericState, range]] = []  # windows' states and their rows
        self._levels: list[Level] = []
        for layer in layers:
            self._adopt(layer, width)

    def new(self) -> GenericState:
        """The state of a request before its first token."""
        return GenericState()

    def begin(self, segments: Sequence[Segment], device: torch.device) -> None:
        """Lay out the rows of a forward. Called before it."""
        self._whole, self._states, self._windows, self._levels = None, [], [], []
        first = segments[0].state
        assert isinstance(first, GenericState)
        if segments[0].prompt and (self.continues or not first.now):
            assert len(segments) == 1, "a prompt is computed alone"
            self._whole = first
            return
        count = sum(segment.rows for segment in segments)
        levels: list[list[_Entry]] = []
        start, pending = 0, count
        for segment in segments:
            if not segment.padding:
                state = segment.state
                assert isinstance(state, GenericState)
                self._states.append(state)
                kept, above = segment.rows - 1, len(self._states) - 1
                if not segment.prompt:
                    kept = 0
                    self._windows.append((state, range(start, start + segment.rows)))
                for depth in range(state.rows):
                    above = _placed(levels, depth, (pending + depth, above, None))
                pending += state.rows
                places: list[tuple[int, int]] = []  # depth and place of each row
                for row, parent in enumerate(segment.parents or range(-1, segment.rows - 1)):
                    depth, place = places[parent] if parent >= 0 else (state.rows - 1, above)
                    entry = (start + row, place, state if row == kept else None)
                    places.append((depth + 1, _placed(levels, depth + 1, entry)))
            start += segment.rows
        for level in levels:
            rows, parents, states = zip(*level, strict=True)
            found = [(place, state) for place, state in enumerate(states) if state is not None]
            self._levels.append(Level(torch.tensor(rows, device=device), torch.tensor(parents, device=device), found))

    def _adopt(self, layer: nn.Module, width: int) -> None:
        plain = layer.forward
        adopted = _Adopted(int(layer.layer_idx), *_shared(layer, width))  # type: ignore[arg-type]
        self.inner |= {each for each in layer.children() if type(each) is nn.Linear}
        owner = weakref.ref(self)

        def forward(hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            recurrence = owner()
            assert recurrence is not None, "the engine outlives its model"
            kwargs["attention_mask"] = None  # the layer would take it for a mask of padding
            run = recurrence._run_whole if recurrence._whole is not None else recurrence._run_levels
            return run(adopted, lambda rows: plain(rows, *args, **kwargs), hidden_states)

        layer.forward = forward

    def _run_whole(self, layer: _Adopted, plain: Callable[[Tensor], Tensor], hidden: Tensor) -> Tensor:
        assert self._whole is not None
        self.cache.memory = {key: part.clone() for key, part in self._whole.now.get(layer.number, {}).items()}
        out = plain(hidden)
        self._whole.ahead[layer.number] = self.cache.memory
        return out

    def _run_levels(self, layer: _Adopted, plain: Callable[[Tensor], Tensor], hidden: Tensor) -> Tensor:
        """Run the rows of ``hidden`` ``(1, rows, width)`` level by level. Padding rows stay zero until the exit."""
        number, entrances, leaving, count = layer.number, layer.entrances, layer.leaving, hidden.shape[1]
        memory = _beside([state.now[number] for state in self._states])
        every = LayerInput(hidden[0], [each.project(plain, hidden)[0] for each in entrances])
        for state, rows in self._windows:
            state.records[number] = every.of(rows)
        before = [state.pending[number] for state in self._states if state.rows]
        if before:
            every = LayerInput.joined([every, *before])
        outs: list[Tensor] = []
        if leaving is not None:
            leaving.passing = True
        try:
            for level in self._levels:
                made: list[Memory] = []
                for members, parents in level.parts(self.rows_agree):
                    for entrance, all_rows in zip(entrances, every.projected, strict=True):
                        entrance.given = all_rows[members][:, None]
                    # copied, because some layers overwrite their states
                    self.cache.memory = {key: part[parents] for key, part in memory.items()}
                    outs.append(plain(every.hidden[members][:, None])[:, 0])
                    made.append(self.cache.memory)
                memory = _beside(made)
                for place, state in level.kept:
                    state.ahead[number] = {key: part[place : place + 1] for key, part in memory.items()}
        finally:
            for entrance in entrances:
                entrance.given = None
            if leaving is not None:
                leaving.passing = False
        out = outs[0].new_zeros(len(every.hidden), outs[0].shape[1])
        out.index_copy_(0, torch.cat([level.rows for level in self._levels]), torch.cat(outs))
        return out[None, :count] if leaving is None else leaving.linear(out[None, :count])


def _placed(levels: list[list[_Entry]], depth: int, entry: _Entry) -> int:
    """The place of a row that is added to the level of its depth."""
    if depth == len(levels):
        levels.append([])
    levels[depth].append(entry)
    return len(levels[depth]) - 1


def _beside(memories: Sequence[Memory]) -> Memory:
    if len(memories) == 1:
        return memories[0]
    return {key: torch.cat([memory[key] for memory in memories]) for key in memories[0]}


class _Reached(Exception):
    """A layer has reached its first projection; the argument is its input."""


class _Shared(nn.Module):
    """A projection of a layer that is computed for all rows at once, outside of the layer's ``forward``."""

    def __init__(self, linear: nn.Linear, direct: bool = True) -> None:
        """``direct``: its input is the layer's input (Falcon-H1's is a multiple)."""
        super().__init__()
        self.linear: Callable[[Tensor], Tensor] = linear
        self.direct = direct
        self.looking = False  # ``forward`` is to raise its input
        self.given: Tensor | None = None  # ``forward`` is to return this: its result for the rows of this step
        self.passing = False  # ``forward`` is to return its input, from which the result is computed later

    def project(self, layer: Callable[[Tensor], Tensor], hidden: Tensor) -> Tensor:
        """Its result for all rows of the layer's input ``hidden``."""
        if self.direct:
            return self.linear(hidden)
        self.looking = True
        try:
            layer(hidden)
        except _Reached as reached:
            return self.linear(reached.args[0])
        finally:
            self.looking = False
        raise AssertionError("the layer has an entrance")

    def forward(self, x: Tensor) -> Tensor:
        if self.looking:
            raise _Reached(x)
        if self.given is not None:
            return self.given
        return x if self.passing else self.linear(x)


@dataclass(frozen=True, slots=True)
class _Adopted:
    """A layer that :class:`GenericRecurrence` runs."""

    number: int  # transformers' layer_idx
    entrances: Sequence[_Shared]  # projections of its input
    leaving: _Shared | None  # the projection that gives the layer's result, if any


@torch.inference_mode()
def _shared(layer: nn.Module, width: int) -> tuple[list[_Shared], _Shared | None]:
    """Replace a layer's projections by :class:`_Shared`: the readers of the layer's input (else the first one), and
    the projection that gives its result. They are found by running the layer on two rows."""
    linears = {name: each for name, each in layer.named_children() if type(each) is nn.Linear}
    seen: dict[str, tuple[Tensor, Tensor]] = {}
    hooks = [
        each.register_forward_hook(lambda _, args, out, name=name: seen.update({name: (args[0], out)}))
        for name, each in linears.items()
    ]
    weight = next(layer.parameters())
    rows = torch.zeros(1, 2, width, dtype=weight.dtype, device=weight.device)
    result = layer(rows)
    for hook in hooks:
        hook.remove()
    reading = [name for name, (read, _) in seen.items() if read is rows]
    entrances = [_Shared(linears[name], bool(reading)) for name in reading or list(seen)[:1]]
    for name, shared in zip(reading or seen, entrances, strict=False):
        setattr(layer, name, shared)
    leaving = None
    for name, (_, written) in seen.items():
        if written is result:
            setattr(layer, name, leaving := _Shared(linears[name]))
    return entrances, leaving


def recurrent_layers(model: nn.Module) -> list[nn.Module]:
    """The layers of a model that mix tokens by a causal convolution, with or without a recurrence behind it."""
    return [
        module
        for module in model.modules()
        if hasattr(module, "layer_idx") and any(isinstance(child, nn.Conv1d) for child in module.children())
    ]
