"""Recurrent layers: a row goes on from its parent's state, so a branch of a window has the bits of plain decoding."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from actors.engines.compute.operands import Steps
from actors.engines.compute.ops_torch import TorchOps
from actors.engines.compute.states import Indices, StateMemory
from actors.engines.decoder.layout import LayerWeights, RecurrentWeights
from actors.engines.decoder.spec import DeltaNet, Recurrent, Scan, Selective, ShortConvolution
from actors.engines.flat_batch import WHOLE

UNIT_EPS = 1e-6  # added to squares of unit queries and keys, in every model with a delta rule


class StateWalk:
    """The recurrent states of the texts of a forward."""

    def __init__(self, memory: StateMemory, indices: Indices, eps: float, ops: TorchOps) -> None:
        """``eps``: of the norms after the states."""
        self._memory, self._indices, self._eps, self._ops = memory, indices, eps, ops

    def mix(self, number: int, layer: LayerWeights, made: Tensor) -> Tensor:
        """Run recurrent layer ``number``: ``(rows, inner)`` from what its input matrix makes of the rows."""
        mixer, weights, ops = layer.spec.mixer, layer.recurrent, self._ops
        assert isinstance(mixer, Recurrent) and weights is not None
        wide, memory = made.float(), self._memory.layers[number]
        out = mixed = ops.convolve(mixer, weights, _inputs(mixer, wide), memory, self._indices)
        if not isinstance(mixer, ShortConvolution):
            if isinstance(mixer, Selective):
                steps = _selected(ops, mixer, weights, mixed.to(made.dtype))
            else:
                assert isinstance(mixer, DeltaNet | Scan)
                steps = _steps(mixer, weights, mixed, wide[:, mixer.channels + mixer.inner :])
            out = ops.walk(mixer, steps, memory, self._indices)
            if weights.skip is not None:
                out = out + steps.values.view_as(out) * weights.skip.view(mixer.heads, -1)
            out = out.flatten(1)
        return _gated(mixer, weights, out, wide, self._eps).to(made.dtype)


def _inputs(mixer: Recurrent, made: Tensor) -> Tensor:
    """Inputs of the convolution ``(rows, channels)``, of what a layer's input matrix makes of rows."""
    if isinstance(mixer, ShortConvolution):
        return made[:, : mixer.inner] * made[:, 2 * mixer.inner : 3 * mixer.inner]
    return made[:, : mixer.channels]


def _steps(mixer: DeltaNet | Scan, weights: RecurrentWeights, mixed: Tensor, numbers: Tensor) -> Steps:
    """What rows do to states. ``mixed``: what the convolution gives; ``numbers``: what heads have a number of."""
    heads, shared = mixer.heads, mixer.groups * mixer.keys
    queries, keys, values = torch.split(mixed, [shared, shared, mixer.inner], 1)
    assert weights.decay is not None and weights.step is not None
    numbers = functional.pad(numbers, (0, 0, 0, -len(mixed) % WHOLE))
    if isinstance(mixer, DeltaNet):
        queries, keys = (_unit(part.reshape(len(part), mixer.groups, -1)).flatten(1) for part in (queries, keys))
        queries = queries * mixer.keys**-0.5
        rates = mixer.rate_scale * numbers[:, :heads].sigmoid()
        times = functional.softplus(numbers[:, heads:] + weights.step)
    else:
        rates = times = functional.softplus(numbers + weights.step).clamp(min=mixer.least)
    decays, rates = torch.exp(weights.decay * times)[: len(mixed)], rates[: len(mixed)]
    return Steps(queries, values, torch.cat([keys, values, rates, decays], 1))


def _selected(ops: TorchOps, mixer: Selective, weights: RecurrentWeights, mixed: Tensor) -> Steps:
    """The steps of Mamba 1, which are made of what the convolution gives."""
    selection = weights.selection
    assert selection is not None
    chosen = ops.whole(ops.linear(mixed, selection.choice))
    parts = [*torch.split(chosen.float(), [mixer.rank, mixer.keys, mixer.keys], 1)]
    for place, norm in enumerate(selection.norms):
        parts[place] = functional.rms_norm(parts[place], norm.shape, norm, mixer.eps)
    low, keys, queries = parts
    rates = functional.softplus(ops.whole(ops.linear(low.to(mixed.dtype), selection.steps)).float())
    return Steps(queries, mixed.float(), torch.cat([keys, mixed.float(), rates], 1), weights.decay)


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
