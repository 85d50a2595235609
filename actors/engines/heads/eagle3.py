"""EAGLE-3 heads (arXiv 2503.01840): three states of the target, one layer of Llama's kind over token and state.

Published in three layouts: SafeAILab's and SpecForge's (a flat configuration, ``midlayer.*``) and speculators'
(``transformer_layer_config``, ``layers.0.*``). Their differences are in :class:`EagleConvention`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from actors.engines.cache.pool import KVShape
from actors.engines.engine import PerRow, Trunk
from actors.engines.heads.head import Look, rms
from actors.engines.weights.draft_vocabulary import DraftVocabulary
from protocols.errors import ModelError

Config = Mapping[str, Any]
Weights = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class EagleConvention:
    """What configurations leave to their readers. A wrong one shows in the acceptance rate only."""

    taps: tuple[int, ...]  # the states that enter these layers; the number of layers: the last norm's
    norm_before_residual: bool = False  # the residual stream begins with the normed state
    recycles_normed: bool = False  # the next row reads the state behind the last norm
    norms_logits: bool = True  # so do the logits


def layer_config(config: Config) -> dict[str, Any]:
    """The sizes of the head's own layers."""
    return dict(config.get("transformer_layer_config") or config)


def convention_of(config: Config, layers: int) -> EagleConvention:
    """``layers``: of the target.

    speculators means the states that enter a layer, as vLLM reads it; SpecForge and SGLang, with numbers in
    ``eagle_config``, those that leave it. ``norm_output`` is speculators' for the state that is handed on, and
    SpecForge's for the logits."""
    nested, speculators = dict(config.get("eagle_config") or {}), "speculators_model_type" in config
    named = nested.get("eagle_aux_hidden_state_layer_ids")
    if named:
        taps = [int(layer) + 1 for layer in named]
    else:
        own = config.get("eagle_aux_hidden_state_layer_ids") or nested.get("layer_ids")
        taps = [int(layer) for layer in own or (2, layers // 2, layers - 3)]
    if nested.get("use_aux_hidden_state", True) is False:
        taps = [layers]
    flag = bool(config.get("norm_output", not speculators))
    return EagleConvention(
        tuple(taps),
        bool(config.get("norm_before_residual", False)),
        recycles_normed=flag and speculators,
        norms_logits=True if speculators else flag,
    )


@dataclass(slots=True)
class _EagleLayer:
    state_norm: Tensor | None  # of the first layer alone
    input_norm: Tensor
    query_norm: Tensor | None
    key_norm: Tensor | None
    qkv: PerRow
    qkv_bias: Tensor | None
    out: PerRow
    inner_norm: Tensor
    gate_up: PerRow
    down: PerRow


class Eagle3:
    """See :class:`actors.engines.heads.head.Head`."""

    stages = 1

    def __init__(
        self, config: Config, weights: Weights, trunk: Trunk, convention: EagleConvention | None = None
    ) -> None:
        own = layer_config(config)
        self._check(config, own, weights, trunk)
        self.convention = convention or convention_of(config, trunk.layers)
        self.taps, self._trunk = self.convention.taps, trunk
        self.width = int(own["hidden_size"])
        self._heads = int(own["num_attention_heads"])
        kv_heads = int(own.get("num_key_value_heads") or self._heads)
        self._eps = float(own.get("rms_norm_eps", 1e-6))
        head_width = int(own.get("head_dim") or self.width // self._heads)
        prefix = "midlayer" if "midlayer.self_attn.q_proj.weight" in weights else "layers.0"
        number = 1
        while f"layers.{number}.self_attn.q_proj.weight" in weights:
            number += 1
        self.shape = KVShape.alike(number, kv_heads, head_width)
        small = {name: tensor for name, tensor in weights.items() if "norm" in name or name.endswith("bias")}
        self._weights = {name: tensor.to(trunk.device, trunk.dtype) for name, tensor in small.items()}
        names = [prefix, *(f"layers.{layer}" for layer in range(1, number))]
        self._layers = [self._layer(weights, name) for name in names]
        self._join = trunk.linear(weights["fc.weight"]) if "fc.weight" in weights else None
        self._embedding = weights.get("embed_tokens.weight")
        if self._embedding is not None:
            self._embedding = self._embedding.to(trunk.device, trunk.dtype)
        self.covered, self._head = self._answers(weights)
        self._rotary = _rotary(own, trunk.device)

    def _check(self, config: Config, own: Config, weights: Weights, trunk: Trunk) -> None:
        """Raise ModelError for a head of another target, or of a kind that is not read."""
        if config.get("parallel_drafting") or config.get("speculators_model_type") == "peagle":
            raise ModelError("it is a P-EAGLE head, which duoactor does not run yet; choose an EAGLE-3 head")
        hidden, parts = int(own["hidden_size"]), len(convention_of(config, trunk.layers).taps)
        read = weights["fc.weight"].shape[1] // parts if "fc.weight" in weights else hidden
        if read != trunk.hidden:
            raise ModelError(f"the head reads states of {read} numbers and the target's have {trunk.hidden}")
        if "embed_tokens.weight" in weights:
            known = len(weights["embed_tokens.weight"])
        elif hidden != trunk.hidden:
            raise ModelError(f"the head has no embedding, and is {hidden} wide where the target is {trunk.hidden}")
        else:
            known = int(own.get("vocab_size", trunk.vocabulary))
        if known != trunk.vocabulary:
            raise ModelError(f"the head knows {known} tokens and the target {trunk.vocabulary}")
        deepest = max(convention_of(config, trunk.layers).taps)
        if deepest > trunk.layers:
            raise ModelError(f"the head reads layer {deepest} and the target has {trunk.layers}")

    def _layer(self, weights: Weights, name: str) -> _EagleLayer:
        def several(part: str, names: tuple[str, ...]) -> Tensor:
            return torch.cat([weights[f"{name}.{part}.{one}_proj.weight"] for one in names])

        linear, small, qkv = self._trunk.linear, self._weights, ("q", "k", "v")
        biases = [small.get(f"{name}.self_attn.{one}_proj.bias") for one in qkv]
        return _EagleLayer(
            small.get(f"{name}.hidden_norm.weight"),
            small[f"{name}.input_layernorm.weight"],
            small.get(f"{name}.self_attn.q_norm.weight"),
            small.get(f"{name}.self_attn.k_norm.weight"),
            linear(several("self_attn", qkv)),
            torch.cat([one for one in biases if one is not None]) if biases[0] is not None else None,
            linear(weights[f"{name}.self_attn.o_proj.weight"]),
            small[f"{name}.post_attention_layernorm.weight"],
            linear(several("mlp", ("gate", "up"))),
            linear(weights[f"{name}.mlp.down_proj.weight"]),
        )

    def _answers(self, weights: Weights) -> tuple[DraftVocabulary | None, PerRow]:
        """The tokens that logits stand for, and what makes them."""
        own = weights.get("lm_head.weight")
        if own is None:
            return None, self._trunk.logits
        if "d2t" not in weights or len(own) >= self._trunk.vocabulary:
            return None, self._trunk.linear(own)
        ids = weights["d2t"].cpu() + torch.arange(len(own))
        order = ids.argsort()
        covered = DraftVocabulary(ids[order].numpy(), self._trunk.vocabulary)
        return covered, self._trunk.linear(own[order])

    def feature(self, tapped: Tensor) -> Tensor:
        if self.taps == (self._trunk.layers,):
            tapped = self._trunk.norm(tapped)
        if (norm := self._weights.get("input_norm.weight")) is not None:
            tapped = rms(tapped, norm, self._eps)
        if "fc_norm.0.weight" in self._weights:
            parts = tapped.chunk(len(self.taps), 1)
            norms = [self._weights[f"fc_norm.{index}.weight"] for index in range(len(parts))]
            tapped = torch.cat([rms(x, norm, self._eps) for x, norm in zip(parts, norms, strict=True)], 1)
        return tapped if self._join is None else self._join(tapped)

    def step(self, ids: Tensor, states: Tensor, look: Look, stage: int = 0) -> tuple[Tensor, Tensor]:
        embedded = self._trunk.embed(ids) if self._embedding is None else self._embedding[ids]
        cos, sin = self._rotary(embedded[None], look.positions[None])
        x = states
        for place, layer in enumerate(self._layers):
            read = rms(x if layer.state_norm is None else embedded, layer.input_norm, self._eps)
            if layer.state_norm is not None:
                normed = rms(x, layer.state_norm, self._eps)
                read = torch.cat([read, normed], 1)
                x = normed if self.convention.norm_before_residual else x
            x = x + layer.out(self._attend(place, layer, read, look, (cos, sin)))
            gate, up = layer.gate_up(rms(x, layer.inner_norm, self._eps)).chunk(2, 1)
            x = x + layer.down(functional.silu(gate) * up)
        normed = rms(x, self._weights["norm.weight"], self._eps)
        return (normed if self.convention.norms_logits else x), (normed if self.convention.recycles_normed else x)

    def _attend(self, place: int, layer: _EagleLayer, read: Tensor, look: Look, turns: tuple[Tensor, Tensor]) -> Tensor:
        width = self.shape.heads[0][1]
        qkv = layer.qkv(read)
        if layer.qkv_bias is not None:
            qkv = qkv + layer.qkv_bias
        parts = qkv.view(len(read), -1, width).transpose(0, 1)
        queries, (keys, values) = parts[: self._heads], parts[self._heads :].chunk(2)
        if layer.query_norm is not None and layer.key_norm is not None:
            queries, keys = rms(queries, layer.query_norm, self._eps), rms(keys, layer.key_norm, self._eps)
        queries, keys = _turned(queries, *turns), _turned(keys, *turns)
        look.write(place, keys, values)
        return look(place, queries.transpose(0, 1).contiguous(), width**-0.5)

    def logits(self, x: Tensor) -> Tensor:
        return self._head(x).float()


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


def _rotary(own: Config, device: torch.device) -> Any:
    """transformers' rotary embedding of Llama, with whatever scaling the configuration names."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    kept = {key: value for key, value in own.items() if key not in ("architectures", "model_type", "torch_dtype")}
    return LlamaRotaryEmbedding(LlamaConfig(**kept)).to(device)
