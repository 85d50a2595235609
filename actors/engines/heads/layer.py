"""Decoder layers of heads by their description, in torch over the slots of a pool."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from actors.engines.compute.ops_torch import ACTIVATIONS, choose_experts, turned
from actors.engines.decoder.families.parts import attention, before, decoder, head_norms, mlp, rotation
from actors.engines.decoder.layout import Affine, LayerWeights, Taken
from actors.engines.decoder.spec import Attention, DecoderSpec, Experts, Layer
from actors.engines.engine import PerRow, Trunk
from actors.engines.heads.head import Look, rms
from actors.engines.weights.layers import Matrix
from actors.engines.weights.source import WeightSource
from protocols.errors import ModelError

Config = Mapping[str, Any]
Weights = Mapping[str, Tensor]
OTHER = ("architectures", "model_type", "torch_dtype", "dtype", "layer_types", "dflash_config", "auto_map")


def plain_layers(config: Config, weights: Weights, trunk: Trunk) -> list[HeadLayer]:
    """Layers of Llama's kind, by a ``config.json``, with norms of heads where there are weights of them."""
    from transformers import LlamaConfig

    own = LlamaConfig(**{key: value for key, value in config.items() if key not in OTHER})
    turning = rotation(own)

    def layer(index: int) -> Layer:
        normed = f"model.layers.{index}.self_attn.q_norm.weight" in weights
        mixer = attention(own, index, turning, window=0, norms=head_norms(index) if normed else None)
        return Layer(mixer, mlp(own, index), before(index))

    return layers_of(decoder(own, layer), weights, trunk)


def layers_of(spec: DecoderSpec, weights: Weights, trunk: Trunk) -> list[HeadLayer]:
    """``weights``: by the description's names. Raises KeyError for one that is missing."""
    taken = Taken(spec, _Source(weights))
    return [HeadLayer(taken.layer(layer), spec, trunk) for layer in spec.layers]


class _Source(WeightSource):
    """A head's tensors, as they are."""

    device = torch.device("cpu")

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self.dtype = next(tensor.dtype for tensor in weights.values() if tensor.ndim > 1)

    def __contains__(self, name: str) -> bool:
        return name in self._weights

    def take(self, name: str) -> Tensor:
        return self._weights[name]


class _Parts:
    """Products and norms of a layer on the trunk's device."""

    def __init__(self, trunk: Trunk, eps: float) -> None:
        self._trunk, self._eps = trunk, eps

    def sent(self, tensor: Tensor) -> Tensor:
        return tensor.to(self._trunk.device, self._trunk.dtype)

    def norm(self, affine: Affine | Tensor | None, eps: float = 0.0) -> PerRow:
        if affine is None:
            return lambda x: x
        weight, eps = self.sent(affine.weight if isinstance(affine, Affine) else affine), eps or self._eps
        return lambda x: rms(x, weight, eps)

    def linear(self, matrix: Matrix, rows: Tensor | slice = slice(None)) -> PerRow:
        multiply = self._trunk.linear(matrix.weight[rows])
        if matrix.bias is None:
            return multiply
        bias = self.sent(matrix.bias[rows])
        return lambda x: multiply(x) + bias

    def mlp(self, activation: str, gated: bool, up: Matrix, down: Matrix) -> PerRow:
        first, second, act = self.linear(up), self.linear(down), ACTIVATIONS[activation]
        if not gated:
            return lambda x: second(act(first(x)))

        def multiply(x: Tensor) -> Tensor:
            gate, more = first(x).chunk(2, 1)
            return second(act(gate) * more)

        return multiply

    def mixture(self, spec: Experts, weights: LayerWeights) -> PerRow:
        assert weights.experts is not None
        found = weights.experts
        router, each = self.linear(found.router), [self.mlp(spec.activation, True, *both) for both in found.each]
        beside: PerRow | None = None
        if spec.shared is not None and weights.up is not None and weights.down is not None:
            beside = self.mlp(spec.shared.activation, spec.shared.gated, weights.up, weights.down)

        def multiply(x: Tensor) -> Tensor:
            logits = router(x).float()
            chosen, shares = choose_experts(spec, logits[:, : spec.count], found)
            out = torch.zeros_like(x)
            for expert in sorted(set(chosen.flatten().tolist())):
                rows, places = (chosen == expert).nonzero(as_tuple=True)
                out.index_add_(0, rows, each[expert](x[rows]) * shares[rows, places, None].to(x.dtype))
            if beside is None:
                return out
            share = logits[:, spec.count :].sigmoid().to(x.dtype) if spec.shared_gate is not None else 1.0
            return out + beside(x) * share * spec.shared_scale

        return multiply


class HeadLayer:
    """``before`` and ``inner``: norms of the inputs of ``attend`` and ``feed``, which add to the residual stream."""

    def __init__(self, weights: LayerWeights, spec: DecoderSpec, trunk: Trunk) -> None:
        layer, mlp, parts = weights.spec, weights.spec.mlp, _Parts(trunk, spec.norm.eps)
        assert isinstance(layer.mixer, Attention)
        mixer = self.mixer = layer.mixer
        dense = mlp.shared if isinstance(mlp, Experts) else mlp
        known = {one.activation for one in (dense, mlp) if one is not None} <= ACTIVATIONS.keys()
        normed = mixer.norms is None or (
            mixer.norms.query is not None and not (mixer.norms.whole or mixer.norms.turned)
        )
        later = mixer.cap or mixer.sinks or not normed or layer.parallel or layer.beside
        if later or not known or (isinstance(mlp, Experts) and (mlp.inside or mlp.norms)) or spec.norm.centred:
            raise ModelError("its layers are not computed: no head has been published of their kind")
        self.before, self.inner = parts.norm(weights.norms.attention), parts.norm(weights.norms.mlp)
        behind = (weights.norms.behind_attention, weights.norms.behind_mlp)
        self._behind, self._last = map(parts.norm, behind)
        self._scale, self._eps = weights.scale, spec.norm.eps
        self._norms = None if weights.head_norms is None else parts.sent(weights.head_norms.weight)
        self._divide(weights, parts)
        if isinstance(mlp, Experts):
            self._feed = parts.mixture(mlp, weights)
        else:
            assert weights.up is not None and weights.down is not None
            self._feed = parts.mlp(mlp.activation, mlp.gated, weights.up, weights.down)

    def _divide(self, weights: LayerWeights, parts: _Parts) -> None:
        """Products of queries, with gates behind them, and of keys and values, which others may have computed."""
        mixer, latent = self.mixer, weights.latent
        eps = 0.0 if mixer.latent is None else mixer.latent.eps
        places = torch.arange(len(weights.qkv.weight))
        queries = mixer.heads * mixer.width
        keys = 0 if mixer.shares is not None else mixer.kv_heads * mixer.width * (2 if latent is None else 1)
        if latent is not None and latent.query is not None:  # what queries are made of stands behind the key
            places, queries = places.roll(-keys), len(places) - keys
        self._query = parts.linear(weights.qkv, torch.cat([places[:queries], places[queries + keys :]]))
        self._key_value = parts.linear(weights.qkv, places[queries : queries + keys]) if keys else None
        if latent is not None and latent.query is not None:
            norm, low, high = parts.norm(latent.query_norm, eps), self._query, parts.linear(latent.query)
            self._query = lambda x: high(norm(low(x)))
        self._latent = None if latent is None else parts.norm(latent.key_norm, eps)
        self._out = parts.linear(weights.out)

    def __call__(self, place: int, x: Tensor, look: Look) -> Tensor:
        """The residual stream behind the layer, which is number ``place`` of the pool's."""
        return self.behind(x + self.attend(place, self.before(x), look))

    def behind(self, x: Tensor) -> Tensor:
        """The residual stream behind the layer, from that behind its attention."""
        x = x + self.feed(self.inner(x))
        return x if self._scale == 1.0 else x * self._scale

    def feed(self, read: Tensor) -> Tensor:
        return self._last(self._feed(read))

    def attend(self, place: int, read: Tensor, look: Look) -> Tensor:
        mixer, made = self.mixer, self._query(read)
        if self._key_value is not None:
            self.remember(place, read, look)
        queries, gates = made[:, : mixer.heads * mixer.width], made[:, mixer.heads * mixer.width :]
        seen = look(place, self._turned(queries, 0, look), mixer.scale)
        return self._behind(self._out(seen * gates.sigmoid() if mixer.gated else seen))

    def remember(self, place: int, read: Tensor, look: Look) -> None:
        """Write the keys and values of rows."""
        mixer = self.mixer
        assert self._key_value is not None
        made = self._key_value(read)
        if self._latent is None or mixer.latent is None:
            keys, values = made.chunk(2, 1)
            keys, values = self._turned(keys, mixer.heads, look), values.view(len(read), -1, mixer.width)
        else:
            first = mixer.latent.turned
            made = torch.cat([made[:, :first], self._latent(made[:, first:])], 1)
            keys = values = self._turned(made, 0, look)
        look.write(place, keys.transpose(0, 1), values.transpose(0, 1))

    def _turned(self, x: Tensor, first: int, look: Look) -> Tensor:
        """``(rows, heads, width)``, once they are normed by the weights from ``first`` on."""
        heads = x.view(len(x), -1, self.mixer.width)
        if self._norms is not None:
            heads = functional.rms_norm(heads, heads.shape[2:], None, self._eps)
            heads = heads * self._norms[first : first + heads.shape[1]]
        return heads if self.mixer.rotation is None else turned(heads, look.turns(self.mixer.rotation))
