"""Recurrent layers in torch: each text has one state, and a forward leaves a record of each row behind it.

A row goes on from its parent's state, so that a branch of a window has the bits of plain decoding; the rows that a
verdict accepts are replayed from their records. Every operation on a state has one shape, in any company.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from actors.engines.cache.snapshots import BORDER
from actors.engines.compute.ops import Ops, Steps
from actors.engines.decoder.layout import LayerWeights, RecurrentWeights
from actors.engines.decoder.spec import DecoderSpec, DeltaNet, Recurrent, Scan, Selective, ShortConvolution
from actors.engines.flat_batch import WHOLE, Segment

UNIT_EPS = 1e-6  # added to squares of unit queries and keys, in every model with a delta rule


@dataclass(frozen=True, slots=True)
class LayerMemory:
    """What a recurrent layer remembers of a text."""

    past: Tensor  # float32 (kernel - 1, channels): the last inputs of the convolution
    state: Tensor  # float32 (heads, keys, values)


class TorchState:
    """See :class:`actors.engines.flat_batch.RecurrentState`. Lists are by recurrent layer."""

    back = 0

    def __init__(self, memories: Sequence[LayerMemory], pending: Sequence[Tensor]) -> None:
        self.memories, self.pending = [*memories], [*pending]  # pending: records of the rows behind the memories
        self.records: list[Tensor] = []  # records of all rows of the last forward
        self.ahead: list[LayerMemory] = []  # what to remember behind what was pending, or behind a piece of a prompt
        self.prompt = False  # the last forward was a piece of a prompt

    def keep(self, path: Sequence[int]) -> None:
        self.memories = self.ahead
        self.pending = [record[:0] if self.prompt else record[list(path)] for record in self.records]
        self.records, self.ahead = [], []

    def copy(self, back: int = 0) -> TorchState:
        return TorchState(self.memories, self.pending)

    def record(self, row: int) -> list[Tensor]:
        return [record[row : row + 1] for record in self.records]

    def extend(self, records: Sequence[Sequence[Tensor]]) -> None:
        for layer in range(len(self.pending)):
            self.pending[layer] = torch.cat([self.pending[layer], *(record[layer] for record in records)])

    def behind(self, records: Sequence[Sequence[Tensor]]) -> TorchState:
        other = self.copy()
        other.extend(records)
        return other


class TorchRecurrence:
    """The :class:`actors.engines.engine.Recurrence` of a description."""

    pieces_agree = False
    border, fine = BORDER, 1

    def __init__(self, spec: DecoderSpec, device: torch.device) -> None:
        self.limit = sys.maxsize  # texts that there is room for; set by whoever builds the engine
        self._mixers, self._device, self._eps = spec.recurrent, device, spec.norm.eps
        self.stream_bytes = 4 * sum(
            (mixer.kernel - 1) * mixer.channels + mixer.heads * mixer.keys * mixer.values for mixer in self._mixers
        )

    def new(self) -> TorchState:
        def zeros(*sizes: int) -> Tensor:
            return torch.zeros(sizes, device=self._device)

        memories = [
            LayerMemory(zeros(one.kernel - 1, one.channels), zeros(one.heads, one.keys, one.values))
            for one in self._mixers
        ]
        return TorchState(memories, [zeros(0, _record_width(one)) for one in self._mixers])

    def walk(self, segments: Sequence[Segment], ops: Ops) -> TorchWalk:
        """The states of a forward's texts."""
        return TorchWalk([self._text(segment) for segment in segments], self._eps, ops)

    def _text(self, segment: Segment) -> TextRows:
        state = segment.state or self.new()
        assert isinstance(state, TorchState)
        state.records, state.ahead, state.prompt = [], [], segment.prompt
        return TextRows(state, tuple(segment.parents or range(-1, segment.rows - 1)), segment.prompt)


@dataclass(frozen=True, slots=True)
class TextRows:
    """One text in a forward."""

    state: TorchState
    parents: tuple[int, ...]  # each row's predecessor, -1: the text
    prompt: bool


class TorchWalk:
    """See :class:`actors.engines.compute.ops.Walk`. It does not change what texts remember until they keep a path."""

    def __init__(self, texts: Sequence[TextRows], eps: float, ops: Ops) -> None:
        """``eps``: of the norms behind the states."""
        self._texts, self._eps, self._ops = texts, eps, ops

    def mix(self, number: int, layer: LayerWeights, made: Tensor) -> Tensor:
        mixer, weights = layer.spec.mixer, layer.recurrent
        assert isinstance(mixer, Recurrent) and weights is not None
        wide = made.float()
        records = _record(mixer, wide)
        outs, start = [], 0
        for text in self._texts:
            rows = records[start : start + len(text.parents)]
            outs.append(_run(self._ops, number, layer, text, rows, made.dtype))
            start += len(rows)
        out = outs[0] if len(outs) == 1 else torch.cat(outs)
        return _gated(mixer, weights, out, wide, self._eps).to(made.dtype)


def _record_width(mixer: Recurrent) -> int:
    """Numbers of a record: inputs of the convolution, and what heads have a number of."""
    return mixer.channels + {DeltaNet: 2, Scan: 1}.get(type(mixer), 0) * mixer.heads


def _record(mixer: Recurrent, made: Tensor) -> Tensor:
    """What rows put into a layer: ``(rows, width)``, from what its input matrix makes of them."""
    inner, channels = mixer.inner, mixer.channels
    if isinstance(mixer, ShortConvolution):
        return made[:, :inner] * made[:, 2 * inner : 3 * inner]
    return torch.cat([made[:, :channels], made[:, channels + inner : inner + _record_width(mixer)]], 1)


def _run(ops: Ops, number: int, layer: LayerWeights, text: TextRows, rows: Tensor, dtype: torch.dtype) -> Tensor:
    """The outputs ``(rows, inner)`` of one text's rows; what they leave is written into its state. ``dtype``: of what
    matrices multiply."""
    mixer, weights = layer.spec.mixer, layer.recurrent
    assert isinstance(mixer, Recurrent) and weights is not None
    state, past = text.state, mixer.kernel - 1
    memory, pending = state.memories[number], state.pending[number]
    every, before = torch.cat([pending, rows]), len(pending)
    inputs = torch.cat([memory.past, every[:, : mixer.channels]])
    # Each row's predecessor; rows below 0 are the text's past
    parents = [*range(-1, before - 1), *(before + parent if parent >= 0 else before - 1 for parent in text.parents)]
    mixed = _convolved(mixer, weights, inputs, [_back(parents, row, mixer.kernel) for row in range(len(every))])
    kept = len(every) - 1 if text.prompt else before - 1  # the row behind which the state is kept
    if isinstance(mixer, ShortConvolution):
        outs, left = mixed, memory.state
    else:
        if isinstance(mixer, Selective):
            steps = _selected(ops, mixer, weights, mixed.to(dtype), parents)
        else:
            assert isinstance(mixer, DeltaNet | Scan)
            steps = _steps(mixer, weights, mixed, every[:, mixer.channels :], parents)
        walked, left = ops.walk(mixer, steps, memory.state, kept)
        skipped = 0.0 if weights.skip is None else steps.values * weights.skip.view(mixer.heads, -1)
        outs = (walked + skipped).flatten(1)
    last = [past + row for row in _back(parents, kept, past)]
    state.records.append(rows)
    state.ahead.append(LayerMemory(inputs[last], left))
    return outs[before:]


def _back(parents: Sequence[int], row: int, count: int) -> list[int]:
    """A row and those before it, ``count`` in all, the first one first."""
    found = []
    for _ in range(count):
        found.append(row)
        row = parents[row] if row >= 0 else row - 1
    return found[::-1]


def _convolved(mixer: Recurrent, weights: RecurrentWeights, inputs: Tensor, rows: Sequence[Sequence[int]]) -> Tensor:
    """``(rows, channels)`` of the convolution over ``inputs``; ``rows``: of each those that it reads."""
    places = torch.tensor(rows, device=inputs.device).view(-1, mixer.kernel) + mixer.kernel - 1
    made = torch.zeros_like(inputs[: len(places)]) if weights.bias is None else weights.bias.expand(len(places), -1)
    for tap in range(mixer.kernel):
        made = made + inputs[places[:, tap]] * weights.convolution[tap]
    return made if isinstance(mixer, ShortConvolution) else functional.silu(made)


def _steps(
    mixer: DeltaNet | Scan, weights: RecurrentWeights, mixed: Tensor, numbers: Tensor, parents: Sequence[int]
) -> Steps:
    """What rows do to states. ``mixed``: what the convolution gives; ``numbers``: what heads have a number of."""
    heads, shared = mixer.heads, mixer.groups * mixer.keys
    queries, keys, values = torch.split(mixed, [shared, shared, mixer.inner], 1)
    queries, keys = (part.reshape(len(mixed), mixer.groups, mixer.keys) for part in (queries, keys))
    assert weights.decay is not None and weights.step is not None
    numbers = functional.pad(numbers, (0, 0, 0, -len(mixed) % WHOLE))
    if isinstance(mixer, DeltaNet):
        queries, keys = _unit(queries) * mixer.keys**-0.5, _unit(keys)
        rates = mixer.rate_scale * numbers[:, :heads].sigmoid()
        times = functional.softplus(numbers[:, heads:] + weights.step)
    else:
        rates = times = functional.softplus(numbers + weights.step).clamp(min=mixer.least)
    decays, rates = torch.exp(weights.decay * times)[: len(mixed)], rates[: len(mixed)]
    values = values.reshape(len(mixed), heads, mixer.values)
    return Steps(queries, keys, values, decays, rates[..., None], parents)


def _selected(ops: Ops, mixer: Selective, weights: RecurrentWeights, mixed: Tensor, parents: Sequence[int]) -> Steps:
    """The steps of Mamba 1, which are made of what the convolution gives."""
    selection = weights.selection
    assert weights.decay is not None and selection is not None
    chosen = ops.whole(ops.linear(mixed, selection.choice))
    parts = [*torch.split(chosen.float(), [mixer.rank, mixer.keys, mixer.keys], 1)]
    for place, norm in enumerate(selection.norms):
        parts[place] = functional.rms_norm(parts[place], norm.shape, norm, mixer.eps)
    low, keys, queries = parts
    rates = functional.softplus(ops.whole(ops.linear(low.to(mixed.dtype), selection.steps)).float())
    shape = (len(mixed), mixer.heads, mixer.values)
    return Steps(
        *(queries[:, None], keys[:, None], mixed.float().view(shape), weights.decay, rates.view(shape)), parents
    )


def _unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + UNIT_EPS)


def _gated(mixer: Recurrent, weights: RecurrentWeights, out: Tensor, made: Tensor, eps: float) -> Tensor:
    """Outputs through the gates, normed on one side of them."""
    if isinstance(mixer, ShortConvolution):
        return out * made[:, mixer.inner : 2 * mixer.inner]
    gate = functional.silu(made[:, mixer.channels : mixer.channels + mixer.inner])
    if weights.norm is None:
        return out * gate
    if isinstance(mixer, DeltaNet):
        parts = out.view(len(out), -1, mixer.normed)
        parts = functional.rms_norm(parts, (mixer.normed,), weights.norm, mixer.eps or eps)
        return parts.flatten(1) * gate
    parts = functional.rms_norm((out * gate).view(len(out), -1, mixer.normed), (mixer.normed,), None, eps)
    return parts.flatten(1) * weights.norm
