"""A Llama-like model's weights, taken out of transformers and laid out for the fused decoder.

Rotary embedding turns pairs ``(i, i + d/2)``; here the rows of the query and key weights are put in an order in which
such pairs are neighbours, so that turning them is one complex multiplication. Scores do not change: queries and keys
are permuted alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from actors.engines.cache.pool import KVShape
from actors.engines.decoder.configuration import head_width
from actors.engines.weights.draft_vocabulary import DraftVocabulary, draft_vocabulary
from actors.engines.weights.layers import Matrix


@dataclass(frozen=True, slots=True)
class Shape:
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    width: int  # of a head
    inner: int  # of the gated layer
    vocabulary: int  # of the head
    eps: float

    @property
    def kv(self) -> KVShape:
        return KVShape(self.layers, self.kv_heads, self.width)

    @property
    def rotated(self) -> int:
        """Leading columns of q/k/v that are turned: queries and keys."""
        return (self.heads + self.kv_heads) * self.width


@dataclass(slots=True)
class Layer:
    input_norm: Tensor
    qkv: Matrix
    query_norm: Tensor | None  # (heads + kv_heads, width): Qwen3's norms of queries and keys
    out: Matrix
    inner_norm: Tensor
    gate_up: Matrix
    down: Matrix


@dataclass(slots=True)
class Weights:
    shape: Shape
    embedding: Tensor
    layers: list[Layer]
    norm: Tensor
    head: Matrix
    rotary: Any  # transformers' module
    covered: DraftVocabulary | None  # what the head's rows stand for; None: the whole vocabulary

    def count(self) -> int:
        """Weights that one token's forward reads."""
        parts = [m.weight for layer in self.layers for m in (layer.qkv, layer.out, layer.gate_up, layer.down)]
        return sum(part.numel() for part in (*parts, self.head.weight))

    def spend(self) -> None:
        """Let go of everything that has been packed; only the rotation stays."""
        self.layers.clear()
        self.head = Matrix(self.norm)

    def turns(self, positions: int) -> Tensor:
        """complex64 ``(positions, width / 2)``: by what a pair is multiplied at each position."""
        places = torch.arange(positions, device=self.embedding.device)[None]
        like = torch.zeros(1, dtype=torch.float32, device=self.embedding.device)
        cos, sin = self.rotary(like, places)
        half = self.shape.width // 2
        return torch.complex(cos[0, :, :half].float(), sin[0, :, :half].float())


def _paired(rows: Tensor, heads: int) -> Tensor:
    """Rows of ``heads`` heads with the partners of a rotation side by side."""
    split = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return split.transpose(1, 2).reshape(rows.shape)


def _joined(*parts: nn.Linear, paired: tuple[int, ...] = ()) -> Matrix:
    """Several linear layers over the same input as one; ``paired[i]`` heads of part i are rotated."""
    weights = [part.weight.detach() for part in parts]
    biases = [None if part.bias is None else part.bias.detach() for part in parts]
    for i, heads in enumerate(paired):
        weights[i] = _paired(weights[i], heads)
        bias = biases[i]
        biases[i] = None if bias is None else _paired(bias, heads)
    if len(parts) == 1:
        return Matrix(weights[0], biases[0])
    if all(bias is None for bias in biases):
        return Matrix(torch.cat(weights))
    filled = [w.new_zeros(w.shape[0]) if b is None else b for w, b in zip(weights, biases, strict=True)]
    return Matrix(torch.cat(weights), torch.cat(filled))


def take_weights(model: nn.Module) -> Weights:
    """The model's weights in the order the fused decoder wants. The module's own parameters are freed: it is spent."""
    whole: Any = model
    inner, config = whole.model, whole.config
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    width = head_width(config)
    layers: list[Layer] = []
    for layer in inner.layers:
        attention, mlp = layer.self_attn, layer.mlp
        query_norm = None
        if hasattr(attention, "q_norm"):
            turned = [_paired(norm.weight.detach(), 1) for norm in (attention.q_norm, attention.k_norm)]
            query_norm = torch.cat([turned[0].expand(heads, -1), turned[1].expand(kv_heads, -1)])
        layers.append(
            Layer(
                layer.input_layernorm.weight.detach(),
                _joined(attention.q_proj, attention.k_proj, attention.v_proj, paired=(heads, kv_heads)),
                query_norm,
                _joined(attention.o_proj),
                layer.post_attention_layernorm.weight.detach(),
                _joined(mlp.gate_proj, mlp.up_proj),
                _joined(mlp.down_proj),
            )
        )
        _spend(attention, mlp)
    embedding = inner.embed_tokens.weight.detach()
    shape = Shape(
        len(layers),
        config.hidden_size,
        heads,
        kv_heads,
        width,
        config.intermediate_size,
        whole.lm_head.weight.shape[0],
        config.rms_norm_eps,
    )
    norm, head, covered = inner.norm.weight.detach(), _joined(whole.lm_head), draft_vocabulary(model)
    weights = Weights(shape, embedding, layers, norm, head, inner.rotary_emb, covered)
    _spend(whole)
    return weights


def _spend(*modules: nn.Module) -> None:
    for module in modules:
        for parameter in module.parameters():
            parameter.data = parameter.new_empty(0)
