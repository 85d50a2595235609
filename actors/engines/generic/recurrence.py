"""Recurrent and convolutional layers of transformers' models (Qwen3-Next, LFM2, Mamba, Falcon-H1 ...): the state that
they keep of each request, and how they run the rows of a window.

Such a layer has no slot for each token but one state, which every token changes irreversibly. So a request has a state
beside its slots. A window starts from it and leaves a state behind each of its rows; after the walk, the one behind the
last accepted row becomes the request's. Windows are chains: a branch would need a state of its own.

A piece of a prompt runs as transformers runs it, in parallel over its tokens. The rows of a window run one after the
other, each as in plain decoding, and in a batch with the rows at the same place of other requests' windows. So a row's
state has the bits of plain decoding, however long the window is. Only the projections at a layer's entrance and exit,
which hold most of its weights, are computed for all rows of the forward at once.
"""

from __future__ import annotations

import itertools
import sys
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from actors.engines.flat_batch import Segment

# layer types, as transformers' configurations name them; hybrid ones have attention as well
RECURRENT_LAYERS = {"linear_attention", "conv", "hybrid", "hybrid_sliding"}

Key = tuple[str, int]  # "conv" or "recurrent", and the index among a layer's states of this kind
Memory = dict[Key, Tensor]  # the states of one layer, each (requests, ...)


class State:
    """The states of all recurrent layers for one request; empty before its first token."""

    def __init__(self) -> None:
        self.now: dict[int, Memory] = {}  # by layer
        self.after: list[dict[int, Memory]] = []  # behind each row of the last forward; of a prompt, only the last row

    def keep(self, row: int) -> None:
        """See :class:`actors.engines.flat_batch.State`. Until then the forward may be repeated."""
        self.now = {layer: {key: _own(part) for key, part in parts.items()} for layer, parts in self.after[row].items()}
        self.after = []

    @property
    def bytes(self) -> int:
        return sum(part.nbytes for parts in self.now.values() for part in parts.values())


def _own(part: Tensor) -> Tensor:
    """A copy of a state that was computed in a batch, of which a view would keep all the memory."""
    return part if part.untyped_storage().nbytes() == part.nbytes else part.clone()


class StateCache(Cache):  # type: ignore[misc]
    """The cache that transformers' layers read and write. It holds one layer's states during a call, which
    :class:`Recurrence` puts in before it and takes out after it."""

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


class Recurrence:
    """The recurrent layers of one model; it replaces their ``forward``."""

    def __init__(self, layers: Sequence[nn.Module], width: int, cache: StateCache) -> None:
        """``width``: of the layers' input. From now on each layer runs the rows of a forward as :meth:`begin` has laid
        them out."""
        self.cache = cache
        self.continues = True  # whether a piece of a prompt may start from a state; Mamba's parallel scan cannot
        self.state_bytes = 0  # of one request's state
        self.limit = sys.maxsize  # states that there is room for; set by whoever builds the engine
        self.inner: set[nn.Module] = set()  # linear layers that must stay as they are: Mamba reads their weights
        self._whole: State | None = None  # of the request with a prompt in this forward
        self._chains: list[tuple[State, int, int]] = []  # (state, first row, rows) of each request; the longest first
        self._steps: Sequence[Tensor] = ()  # for each step, its rows of the forward
        self._order: Tensor | None = None  # these rows, step by step
        for layer in layers:
            self._adopt(layer, width)

    def new(self) -> State:
        """The state of a request before its first token."""
        return State()

    def begin(self, segments: Sequence[Segment], device: torch.device) -> None:
        """Lay out the rows of a forward. Called before it."""
        chains: list[tuple[State, int, int]] = []
        start = 0
        for segment in segments:
            if not segment.padding:
                assert isinstance(segment.state, State)
                segment.state.after = [{} for _ in range(1 if segment.prompt else segment.rows)]
                chains.append((segment.state, start, segment.rows))
            start += segment.rows
        self._whole = None
        first = chains[0][0]
        if segments[0].prompt and (self.continues or not first.now):
            assert len(segments) == 1, "a prompt is computed alone"
            self._whole = first
            return
        self._chains = sorted(chains, key=lambda chain: -chain[2])
        steps = [[at + step for _, at, rows in self._chains if rows > step] for step in range(self._chains[0][2])]
        self._order = torch.tensor(list(itertools.chain(*steps)), dtype=torch.int64, device=device)
        self._steps = torch.split(self._order, [len(step) for step in steps])

    def _adopt(self, layer: nn.Module, width: int) -> None:
        plain = layer.forward
        adopted = _Adopted(int(layer.layer_idx), *_shared(layer, width))  # type: ignore[arg-type]
        self.inner |= {each for each in layer.children() if type(each) is nn.Linear}
        owner = weakref.ref(self)

        def forward(hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            recurrence = owner()
            assert recurrence is not None, "the engine outlives its model"
            kwargs["attention_mask"] = None  # the layer would take it for a mask of padding
            run = recurrence._run_whole if recurrence._whole is not None else recurrence._run_steps
            return run(adopted, lambda rows: plain(rows, *args, **kwargs), hidden_states)

        layer.forward = forward

    def _run_whole(self, layer: _Adopted, plain: Callable[[Tensor], Tensor], hidden: Tensor) -> Tensor:
        assert self._whole is not None
        self.cache.memory = {key: part.clone() for key, part in self._whole.now.get(layer.number, {}).items()}
        out = plain(hidden)
        self._whole.after[0][layer.number] = self.cache.memory
        return out

    def _run_steps(self, layer: _Adopted, plain: Callable[[Tensor], Tensor], hidden: Tensor) -> Tensor:
        """Run the rows of ``hidden`` ``(1, rows, width)`` step by step. Padding rows stay zero until the exit."""
        number, entrances, leaving = layer.number, layer.entrances, layer.leaving
        memory = _beside([state.now[number] for state, _, _ in self._chains])
        projected = [each.project(plain, hidden)[0] for each in entrances]
        outs: list[Tensor] = []
        if leaving is not None:
            leaving.passing = True
        try:
            for step, rows in enumerate(self._steps):
                for entrance, all_rows in zip(entrances, projected, strict=True):
                    entrance.given = all_rows[rows][:, None]
                # copied, because some layers overwrite their states
                self.cache.memory = {key: part[: len(rows)].clone() for key, part in memory.items()}
                outs.append(plain(hidden[0, rows][:, None])[:, 0])
                memory = self.cache.memory
                for place, (state, _, count) in enumerate(self._chains[: len(rows)]):
                    behind = step - count + len(state.after)
                    if behind >= 0:
                        state.after[behind][number] = {key: part[place : place + 1] for key, part in memory.items()}
        finally:
            for entrance in entrances:
                entrance.given = None
            if leaving is not None:
                leaving.passing = False
        assert self._order is not None
        out = outs[0].new_zeros(hidden.shape[1], outs[0].shape[1])
        out.index_copy_(0, self._order, torch.cat(outs))
        return out[None] if leaving is None else leaving.linear(out[None])


def _beside(memories: Sequence[Memory]) -> Memory:
    if len(memories) == 1:
        return memories[0]
    return {key: torch.cat([memory[key] for memory in memories]) for key in memories[0]}


class _Reached(Exception):
    """A layer has reached its first projection; the argument is its input."""


class _Shared(nn.Module):
    """A projection of a layer that is computed for all rows at once, outside of the layer's ``forward``."""

    def __init__(self, linear: nn.Linear, direct: bool = True) -> None:
        """``direct``: its input is the layer's input (Falcon-H1's is a multiple of that)."""
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
    """A layer that :class:`Recurrence` runs."""

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
