"""The program of a whole model: what :class:`~actors.engines.decoder.spec.DecoderSpec` describes.

It knows no family and no device. :mod:`actors.engines.decoder.cpu.kernels` is its compiled twin: the same steps by the
same names, in the same order. All that changes from round to round is in tensors, so that a CUDA graph may hold a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from actors.engines.cache.pool import KVPool
from actors.engines.compute.operands import Parts
from actors.engines.compute.ops_torch import TorchOps
from actors.engines.compute.recurrence import StateWalk
from actors.engines.compute.rows import BatchRows
from actors.engines.compute.states import Indices, TorchRecurrence
from actors.engines.decoder.layout import Affine, DecoderWeights, ExpertWeights, LatentWeights, LayerWeights
from actors.engines.decoder.spec import (
    XIELU,
    XIELU_EDGE,
    XIELU_SLOPE,
    Attention,
    DecoderSpec,
    Experts,
    Latent,
    Mlp,
)
from actors.engines.engine import PerRow, Trunk
from actors.engines.weights.matrix import Matrix


class Layers:
    """Layers of a description. A draft head runs them one by one."""

    def __init__(
        self, spec: DecoderSpec, layers: Sequence[LayerWeights], ops: TorchOps, places: Sequence[int] | None = None
    ) -> None:
        """``places``: each layer's in the pool, see :func:`pool_places`; None: its number."""
        self.spec, self.layers, self.ops = spec, layers, ops
        self.places = range(len(layers)) if places is None else places

    def run(self, index: int, given: Residual, then: Affine | None, rows: BatchRows) -> tuple[Tensor, Tensor]:
        """One layer: the residual stream after it, and the same normed by ``then`` for the next layer."""
        layer, ops = self.layers[index], self.ops
        (x, normed, own), norms, (first, scale) = given, layer.norms, layer.spec.scales
        mixed = self.mix(index, normed, rows)
        if layer.spec.mlp is None:
            return ops.join(x, mixed, first, norms.behind_attention, then)
        if layer.spec.parallel:
            read = normed if norms.mlp is None else ops.norm(x, norms.mlp)
            x, _ = ops.join(x, mixed, first, norms.behind_attention, None)
        else:
            x, read = ops.join(x, mixed, first, norms.behind_attention, norms.mlp)
        fed, beside = self.feed(index, x, read, rows), layer.beside
        if beside is None and layer.scale == 1.0:
            return ops.join(x, fed, scale, norms.behind_mlp, then)
        x, _ = ops.join(x, fed, scale, norms.behind_mlp, None)
        if beside is not None and layer.spec.beside is not None and own is not None:
            gate = ops.feed(x, beside.gate, layer.spec.beside.activation, False, rows.prompt)
            x, _ = ops.join(x, ops.linear(gate * own, beside.out, rows.prompt), scale, beside.norm, None)
        x = x * layer.scale
        return x, ops.norm(x, then)

    def mix(self, index: int, normed: Tensor, rows: BatchRows) -> Parts:
        """What the mixer of a layer adds, before the norm after it."""
        layer, ops = self.layers[index], self.ops
        made = ops.linear(normed, layer.qkv, rows.prompt)
        if isinstance(layer.spec.mixer, Attention):
            mixed = self._attend(index, layer.spec.mixer, made, rows)
        else:
            assert rows.walk is not None
            mixed = rows.walk.mix(self.places[index], layer, ops.whole(made))
        return ops.linear(mixed, layer.out, rows.prompt)

    def _attend(self, index: int, mixer: Attention, made: Parts, rows: BatchRows) -> Tensor:
        queries, gates = self.divide(index, mixer, made, rows)
        seen = rows.sight(self.places[index], mixer, queries, self.layers[index].sinks)
        return seen if gates is None else self.ops.gate(seen, gates, mixer.soft_gates)

    def divide(self, index: int, mixer: Attention, made: Parts, rows: BatchRows) -> tuple[Tensor, Tensor | None]:
        """Queries and gates of rows, whose keys and values are written. ``made``: what ``qkv`` gives."""
        layer, place = self.layers[index], self.places[index]
        if layer.latent is not None and mixer.latent is not None:
            made = self._make_latent(mixer.latent, mixer, layer.latent, made, rows)
        pool = rows.pool.keys[place], rows.pool.values[place]
        return self.ops.heads(made, layer, rows.turns(mixer.rotation, self.ops), pool, rows.slots)

    def _make_latent(
        self, latent: Latent, mixer: Attention, weights: LatentWeights, made: Parts, rows: BatchRows
    ) -> Parts:
        """Queries, and after them the key that is the value too."""
        ops, width, found = self.ops, mixer.width, self.ops.whole(made)
        if weights.query is None:
            queries, key = torch.split(found, [mixer.heads * width, width], 1)
        else:
            assert weights.query_norm is not None
            key, low = found[:, :width], ops.norm(found[:, width:], Affine(weights.query_norm), latent.eps)
            queries = ops.whole(ops.linear(low, weights.query, rows.prompt))
        turned = width - latent.rank
        vector = ops.norm(key[:, turned:], Affine(weights.key_norm), latent.eps)
        return torch.cat([queries, key[:, :turned], vector], 1)[None]

    def feed(self, index: int, x: Tensor, read: Tensor, rows: BatchRows) -> Parts:
        """What the MLP of a layer adds, or its experts with the shared one. ``read``: ``x``, the residual stream,
        normed."""
        layer = self.layers[index]
        mlp = layer.spec.mlp
        assert mlp is not None
        if not isinstance(mlp, Experts):
            return self._mlp(mlp, layer, read, rows)
        assert layer.experts is not None
        return self._mixture(mlp, layer, layer.experts, (x, read), rows)

    def _mlp(self, mlp: Mlp, layer: LayerWeights, read: Tensor, rows: BatchRows) -> Parts:
        assert layer.up is not None and layer.down is not None
        if mlp.activation == XIELU:
            inner = xielu(self.ops.whole(self.ops.linear(read, layer.up, rows.prompt)), *layer.shape)
        else:
            inner = self.ops.feed(read, layer.up, mlp.activation, mlp.gated, rows.prompt)
        return self.ops.linear(inner, layer.down, rows.prompt)

    def _mixture(
        self, mlp: Experts, layer: LayerWeights, weights: ExpertWeights, given: tuple[Tensor, Tensor], rows: BatchRows
    ) -> Parts:
        """``given``: the residual stream, and the same normed."""
        ops, (x, read) = self.ops, given
        norms: Sequence[Affine | None] = weights.norms or [None] * 4
        routed, inputs = (read if norm is None else ops.norm(x, norm) for norm in norms[:2])
        logits = ops.whole(ops.linear(routed, weights.router, rows.prompt)).float()
        out = ops.norm(ops.experts(inputs, logits[:, : mlp.count], mlp, weights, rows.prompt), norms[2])
        if mlp.shared is None:
            return out[None]
        shared = ops.norm(ops.whole(self._mlp(mlp.shared, layer, read, rows)), norms[3])
        if mlp.shared_scale != 1.0:
            shared = shared * mlp.shared_scale
        if mlp.shared_gate is not None:
            shared = shared * logits[:, mlp.count :].sigmoid().to(shared.dtype)
        return (out + shared)[None]


class Residual(NamedTuple):
    """The residual stream as a layer reads it."""

    x: Tensor  # the residual stream
    normed: Tensor  # the same by the norm before the part that reads it
    own: Tensor | None = None  # inputs of its own, see ``LayerInputs``


class Program:
    """Computes states and logits of tokens, over the slots of a pool."""

    def __init__(
        self, weights: DecoderWeights, pool: KVPool, ops: TorchOps, recurrence: TorchRecurrence | None = None
    ) -> None:
        """``recurrence``: of its recurrent layers, if there are any."""
        self.weights, self.spec, self.pool, self.ops = weights, weights.spec, pool, ops
        self.recurrence = recurrence
        self._layers = Layers(self.spec, weights.layers, ops, pool_places(self.spec))
        self.taps: tuple[int, ...] = ()  # see :meth:`actors.engines.engine.Engine.tap`
        self._tapped: dict[int, Tensor] = {}

    def run_layers(self, rows: BatchRows) -> Tensor:
        """States ``(rows, hidden)`` after the last norm."""
        x, layers = self._place(self.embed(rows.ids), rows.positions), self.weights.layers
        inputs = self._make_inputs(rows, x)
        norms = [*(layer.norms.attention for layer in layers), self.weights.norm]
        normed = self.ops.norm(x, norms[0])
        for index in range(len(layers)):
            self._tap(index, x)
            own = None if inputs is None else inputs[:, index]
            x, made = self._layers.run(index, Residual(x, normed, own), norms[index + 1], rows)
            normed = normed if index + 1 < len(layers) and layers[index + 1].spec.rereads else made
        self._tap(len(layers), x)
        return normed

    def walk(self, indices: Indices) -> StateWalk:
        """The recurrent states of a forward with these ``Indices``."""
        assert self.recurrence is not None
        return StateWalk(self.recurrence.memory, indices, self.spec.norm.eps, self.ops)

    def embed(self, ids: Tensor) -> Tensor:
        """What the first layer reads: ``(*ids, hidden)``."""
        return self.ops.embed(self.weights.embedding, ids, self.spec.embedding_scale)

    def _place(self, x: Tensor, positions: Tensor) -> Tensor:
        """Embeddings with what their positions add, normed where the model does."""
        table, spec, ops = self.weights.positions, self.spec.positions, self.ops
        if table is not None and spec is not None:  # rows that fill a round may lie after the last position
            rows = (positions + spec.first).clamp(max=len(table.weight) - 1)
            x = x + ops.embed(table, rows, 1.0)
        return ops.norm(x, self.weights.embedded_norm)

    def logits(self, normed: Tensor) -> Tensor:
        """float32 ``(rows, vocabulary)`` of states after the last norm."""
        spec, logits = self.spec, self.ops.logits(normed, self.weights.head)
        if spec.logit_scale != 1.0:
            logits = logits * spec.logit_scale
        return spec.logit_cap * torch.tanh(logits / spec.logit_cap) if spec.logit_cap else logits

    def trunk(self) -> Trunk:
        """See :meth:`actors.engines.engine.Engine.trunk`."""
        pool, weights = self.pool, self.weights

        def linear(weight: Tensor) -> PerRow:
            return Matrix(weight.to(pool.device, pool.dtype)).multiply

        return Trunk(
            *(self.spec.hidden, len(self.spec.layers), weights.vocabulary, pool.device, pool.dtype),
            *(self.embed, lambda x: self.ops.norm(x, weights.norm), self.logits, linear),
        )

    def tapped(self) -> Tensor:
        """See :meth:`actors.engines.engine.Engine.tapped`."""
        return torch.cat([self._tapped[layer] for layer in self.taps], 1)

    def _tap(self, layer: int, x: Tensor) -> None:
        if layer in self.taps:
            self._tapped[layer] = x.clone()

    def _make_inputs(self, rows: BatchRows, x: Tensor) -> Tensor | None:
        """``(rows, layers, width)``: see :class:`~actors.engines.decoder.spec.LayerInputs`."""
        spec, weights, ops = self.spec.inputs, self.weights.inputs, self.ops
        if spec is None or weights is None:
            return None
        made = ops.whole(ops.linear(x, weights.matrix, rows.prompt)) * spec.matrix_scale
        made = ops.norm(made.view(len(x), -1, spec.width), Affine(weights.norm))
        table = ops.embed(weights.table, rows.ids, spec.table_scale).view_as(made)
        return (made + table) * spec.scale


def xielu(x: Tensor, positive: float, negative: float) -> Tensor:
    """See ``XIELU``."""
    wide = x.float()
    below = (torch.expm1(wide.clamp(max=XIELU_EDGE)) - wide) * negative
    return (torch.where(wide > 0, positive * wide * wide, below) + XIELU_SLOPE * wide).to(x.dtype)


def pool_places(spec: DecoderSpec) -> Sequence[int]:
    """By layer: its place in the pool, or the place of the layer that it shares keys with; of a recurrent layer, its
    place among the recurrent layers."""
    places: list[int] = []
    attending = recurrent = 0
    for layer in spec.layers:
        mixer = layer.mixer
        if not isinstance(mixer, Attention):
            places.append(recurrent)
            recurrent += 1
        elif mixer.shares is not None:
            places.append(places[mixer.shares])
        else:
            places.append(attending)
            attending += 1
    return places
