"""The layers of a head: the program of every description, with the products of the head's target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from actors.engines.compute.layer import Layers, Residual
from actors.engines.compute.operands import Parts, RowTurns
from actors.engines.compute.ops_torch import TorchOps
from actors.engines.compute.rows import BatchRows
from actors.engines.decoder.families.parts import attention, before, decoder, head_norms, mlp, rotation
from actors.engines.decoder.layout import Affine, LayerWeights, WeightReader, changed
from actors.engines.decoder.spec import Attention, DecoderSpec, Layer, Rotation
from actors.engines.engine import PerRow, Trunk
from actors.engines.heads.head import rms
from actors.engines.weights.matrix import Matrix
from actors.engines.weights.source import WeightSource

Config = Mapping[str, Any]
Weights = Mapping[str, Tensor]
OTHER = ("architectures", "model_type", "torch_dtype", "dtype", "layer_types", "dflash_config", "auto_map")


def plain_layers(config: Config, weights: Weights) -> DecoderSpec:
    """Layers of Llama's kind, by a ``config.json``, with norms of heads where there are weights of them."""
    from transformers import LlamaConfig

    own = LlamaConfig(**{key: value for key, value in config.items() if key not in OTHER})
    turning = rotation(own)

    def layer(index: int) -> Layer:
        normed = f"model.layers.{index}.self_attn.q_norm.weight" in weights
        mixer = attention(own, index, turning, window=0, norms=head_norms(index) if normed else None)
        return Layer(mixer, mlp(own, index), before(index))

    return decoder(own, layer)


def read_layers(spec: DecoderSpec, weights: Weights) -> list[LayerWeights]:
    """``weights``: by the description's names. Raises KeyError for one that is missing."""
    reader = WeightReader(spec, _Source(weights))
    return [reader.layer(layer) for layer in spec.layers]


class _Source(WeightSource):
    """A head's tensors, as they are."""

    def __init__(self, weights: Weights) -> None:
        like = next(tensor for tensor in weights.values() if tensor.ndim > 1)
        self._weights, self.device, self.dtype = weights, like.device, like.dtype

    def __contains__(self, name: str) -> bool:
        return name in self._weights

    def take(self, name: str) -> Tensor:
        return self._weights[name]


class HeadOps(TorchOps):
    """Operations in torch. No row of a draft needs bits of its own, so each product is one call for all rows."""

    def linear(self, x: Tensor, matrix: Matrix, prompt: bool = False) -> Parts:
        return matrix.multiply(x)[None]

    def norm(self, x: Tensor, affine: Affine | None, eps: float = 0.0) -> Tensor:
        if affine is None or self._norm.centred:
            return super().norm(x, affine, eps)
        return rms(x, affine.weight.to(x.dtype), eps or self._norm.eps)

    def turns(self, rotation: Rotation, positions: Tensor) -> RowTurns:
        return self._turns(rotation, positions)


@dataclass(slots=True)
class Product(Matrix):
    """A matrix that the target's own products multiply by."""

    by: PerRow | None = None

    @classmethod
    def of(cls, matrix: Matrix, trunk: Trunk) -> Product:
        bias = None if matrix.bias is None else matrix.bias.to(trunk.device, trunk.dtype)
        return cls(torch.empty(matrix.weight.shape, device="meta"), bias, by=trunk.linear(matrix.weight))

    @classmethod
    def joined(cls, *parts: Matrix) -> Product:
        """One beside the other over the same input."""
        shape = sum(len(part.weight) for part in parts), parts[0].weight.shape[1]
        return cls(torch.empty(shape, device="meta"), by=lambda x: torch.cat([part.multiply(x) for part in parts], 1))

    def multiply(self, x: Tensor) -> Tensor:
        assert self.by is not None
        return self.by(x) if self.bias is None else self.by(x) + self.bias


class HeadLayers(Layers):
    """The layers of a served head. ``keys``: by layer, the part of ``qkv`` that makes keys and values."""

    def __init__(self, spec: DecoderSpec, layers: Sequence[LayerWeights], trunk: Trunk, apart: bool = False) -> None:
        """``apart``: keys and values are also written of rows that nothing else is computed of."""
        self.keys: list[Matrix] = []
        for layer in layers if apart else ():
            queries, keys = (Product.of(part, trunk) for part in divided(layer))
            self.keys.append(keys)
            layer.qkv = Product.joined(queries, keys)
        super().__init__(spec, [_sent(layer, trunk) for layer in layers], HeadOps(spec.norm, trunk.dtype, 0))

    def step(self, index: int, x: Tensor, rows: BatchRows) -> Tensor:
        """The residual stream after a layer."""
        normed = self.ops.norm(x, self.layers[index].norms.attention)
        return self.run(index, Residual(x, normed), None, rows)[0]


def divided(layer: LayerWeights) -> list[Matrix]:
    """What makes queries, and what makes keys and values."""
    mixer, qkv = layer.spec.mixer, layer.qkv
    assert isinstance(mixer, Attention)
    sizes = [first := mixer.heads * mixer.width, len(qkv.weight) - first]
    biases: Sequence[Tensor | None] = [None] * 2 if qkv.bias is None else torch.split(qkv.bias, sizes)
    return [Matrix(*part) for part in zip(torch.split(qkv.weight, sizes), biases, strict=True)]


def write_keys(layers: Layers, index: int, keys: Matrix, read: Tensor, rows: BatchRows) -> None:
    """Write the keys and values of rows that nothing else is computed of. ``keys``: see :func:`divided`."""
    mixer = layers.layers[index].spec.mixer
    assert isinstance(mixer, Attention)
    layers.divide(index, mixer, functional.pad(keys.multiply(read), (mixer.heads * mixer.width, 0))[None], rows)


def in_layers(name: str) -> str:
    """The name that descriptions have for a weight of a published head's layers."""
    name = name.replace("midlayer.", "layers.0.")
    return "model." + name if name.startswith("layers.") else name


def _sent(layer: LayerWeights, trunk: Trunk) -> LayerWeights:
    """Weights on the target's device, with its products in place of matrices."""

    def change(part: Any) -> Any:
        match part:
            case Product():
                return part
            case Matrix():
                return Product.of(part, trunk)
            case Affine():
                bias = None if part.bias is None else part.bias.to(trunk.device, trunk.dtype)
                return Affine(part.weight.to(trunk.device, trunk.dtype), bias)
        return part.to(trunk.device) if isinstance(part, Tensor) else None

    sent: LayerWeights = changed(layer, change)
    return sent
