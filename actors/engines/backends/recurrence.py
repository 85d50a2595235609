"""Recurrent and convolutional layers of transformers' models (Qwen3-Next, LFM2, Mamba, Falcon-H1 ...): what they
remember of each request, and the rows of a window one after the other.

Such a layer holds no slot per token but one state, which every token changes for good. So a request has a state of its
own beside its slots; a window starts from it and leaves a state behind each of its rows, and after the verdict the one
behind the last accepted row is the request's. Windows are chains: a branch would need a state of its own.

A chunk of a prompt runs as transformers runs it, in parallel over its tokens. The rows of a window run one by one,
each as in plain decoding, the same rows of several requests beside each other: so a row's state has the bits of plain
decoding however long the window is. Only the projections at the entrance and the exit of a layer, which hold most of
its weights, are computed for all rows of the forward at once.
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

# types of layers, as transformers' configurations call them; hybrid ones have attention beside
RECURRENT_LAYERS = {"linear_attention", "conv", "hybrid", "hybrid_sliding"}

Key = tuple[str, int]  # "conv" or "recurrent", and which of a layer's
Memory = dict[Key, Tensor]  # of one layer, (requests, ...)


class State:
    """What the recurrent layers remember of one request's text: nothing before its first token."""

    def __init__(self) -> None:
        self.now: dict[int, Memory] = {}  # by layer
        self.after: list[dict[int, Memory]] = []  # behind each row of the last forward; of a prompt, behind its last

    def keep(self, row: int) -> None:
        """The text goes on behind that row of the last forward. Until then a forward may be done again."""
        self.now = {layer: {key: _own(part) for key, part in parts.items()} for layer, parts in self.after[row].items()}
        self.after = []

    @property
    def bytes(self) -> int:
        return sum(part.nbytes for parts in self.now.values() for part in parts.values())


def _own(part: Tensor) -> Tensor:
    """Without the other requests and rows that it was computed with, whose memory a view would hold."""
    return part if part.untyped_storage().nbytes() == part.nbytes else part.clone()


class StateCache(Cache):  # type: ignore[misc]
    """transformers' interface to a layer's states; :class:`Recurrence` puts those of a call in and takes them out."""

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
        """Keeps the last inputs ``(requests, channels, kernel)`` and returns what the convolution runs over."""
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
    """The recurrent layers of one model."""

    def __init__(self, layers: Sequence[nn.Module], width: int, cache: StateCache) -> None:
        """``width``: of what the layers read. Takes them over: each runs a forward's rows as :meth:`begin` was told."""
        self.cache = cache
        self.continues = True  # whether a chunk of a prompt may start from a state; Mamba's scan cannot
        self.state_bytes = 0
        self.limit = sys.maxsize  # states that there is room for; whoever loads models knows
        self.inner: set[nn.Module] = set()  # linear layers left, whose weights Mamba reads by itself
        self._whole: State | None = None
        self._chains: list[tuple[State, int, int]] = []  # with its first row and how many; the longest first
        self._steps: Sequence[Tensor] = ()  # of every step, its rows in the forward
        self._order: Tensor | None = None  # all of these, one after the other
        for layer in layers:
            self._adopt(layer, width)

    def new(self) -> State:
        return State()

    def begin(self, segments: Sequence[Segment], device: torch.device) -> None:
        """Before a forward of these segments."""
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
            kwargs["attention_mask"] = None  # it would say which tokens are padding
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
        """``hidden``: (1, rows, width). Rows of padding stay zero until the exit."""
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
                # some layers write over what they are given
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
    """A layer got as far as its entrance."""


class _Shared(nn.Module):
    """A linear layer that is computed for all rows at once, outside of the layer that it belongs to."""

    def __init__(self, linear: nn.Linear, direct: bool = True) -> None:
        """``direct``: it reads the layer's input as it is (Falcon-H1's reads a multiple)."""
        super().__init__()
        self.linear: Callable[[Tensor], Tensor] = linear
        self.direct = direct
        self.looking = False  # for what it is to be computed from
        self.given: Tensor | None = None  # its result for the rows of this step
        self.passing = False  # the result is wanted later: hand on what it is to be computed from

    def project(self, layer: Callable[[Tensor], Tensor], hidden: Tensor) -> Tensor:
        """Its result for all that the layer reads."""
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
    """A layer that is run by :class:`Recurrence`: which it is, and what of it is computed for all rows at once."""

    number: int
    entrances: Sequence[_Shared]
    leaving: _Shared | None


@torch.inference_mode()
def _shared(layer: nn.Module, width: int) -> tuple[list[_Shared], _Shared | None]:
    """Put :class:`_Shared` in the place of a layer's projections: those that read the layer's own input (else the first
    of all), and the one whose result is the layer's, by a look at two rows."""
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
    """Those that mix tokens by a causal convolution, with or without a recurrence behind it."""
    return [
        module
        for module in model.modules()
        if hasattr(module, "layer_idx") and any(isinstance(child, nn.Conv1d) for child in module.children())
    ]
