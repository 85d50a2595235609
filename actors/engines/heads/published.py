"""Parts that EAGLE-3 heads and block drafters share.

An own or the target's embedding and vocabulary, and layers of Llama's kind over states of several of its layers."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor

from actors.engines.cache.pool import KVShape
from actors.engines.engine import PerRow, Trunk
from actors.engines.heads.head import Head, NotComputed, rms
from actors.engines.heads.layer import Config, HeadLayers, Weights, in_layers, plain_layers, read_layers
from actors.engines.weights.draft_vocabulary import DraftVocabulary
from protocols.errors import ModelError

TENSORS = re.compile(  # all that are computed with, or need not be
    r"(layers\.\d+|midlayer)\.(self_attn\.([qkvo]_proj\.(weight|bias)|[qk]_norm\.weight)|mlp\.\w+_proj\.(weight|bias)|"
    r"(input_layernorm|post_attention_layernorm|hidden_norm)\.weight|\w+_conv\.(base_kernel|kernel_projection\.weight))|"
    r"(fc|norm|hidden_norm|input_norm|fc_norm\.\d+|embed_tokens|lm_head)\.weight|mask_hidden|mask_embedding|d2t|t2d|"
    r"markov_head\.markov_w[12]\.weight|candidate_selector\.(\w+_codebook|hidden_projection\.weight)|"
    r"confidence_head\..*|verifier_(norm|lm_head)\.weight|(.*\.)?rotary_emb\.inv_freq"
)
FULL, SLIDING = "full_attention", "sliding_attention"


def layer_config(config: Config) -> dict[str, Any]:
    """The sizes of the head's own layers, which speculators puts apart."""
    return dict(config.get("transformer_layer_config") or config)


def sliding_windows(own: Config, layers: int) -> tuple[int, ...]:
    """Tokens that each layer sees, 0: all. ``own``: the sizes of the head's own layers."""
    kinds, window = list(own.get("layer_types") or ()), int(own.get("sliding_window") or 0)
    if len(kinds) != layers:  # a target's, which some exports keep
        return (0,) * layers
    if further := set(kinds) - {FULL, SLIDING}:
        raise NotComputed(f"its layer_types name {min(further)}, which duoactor does not compute")
    return tuple(window * (kind == SLIDING) for kind in kinds)


class PublishedHead(Head):
    writes_keys = False  # it computes nothing else from the target's states

    def __init__(self, config: Config, weights: Weights, trunk: Trunk, taps: tuple[int, ...]) -> None:
        own = layer_config(config)
        self.taps, self._trunk = taps, trunk
        for name in weights:
            biased = name.endswith("_proj.bias") and not own.get(
                "attention_bias" if ".self_attn." in name else "mlp_bias"
            )
            if biased or TENSORS.fullmatch(name) is None:
                raise NotComputed(f"it has {name}, which duoactor does not compute with")
        self._check(own, weights)
        self._eps = float(own.get("rms_norm_eps", 1e-6))
        self._small = {name: self._sent(tensor) for name, tensor in weights.items() if "norm" in name}
        self._join = trunk.linear(weights["fc.weight"]) if "fc.weight" in weights else None
        named = {in_layers(name): tensor for name, tensor in weights.items()}
        number = len({name.split(".")[2] for name in named if name.startswith("model.layers.")})
        if not number:
            raise ModelError("it has no layers")
        spec = plain_layers({**own, "num_hidden_layers": number}, named)
        self._layers = HeadLayers(spec, read_layers(spec, named), trunk, self.writes_keys)
        self.shape = KVShape.alike(number, spec.attention.kv_heads, spec.attention.width)
        table = weights.get("embed_tokens.weight")
        self._embedding = None if table is None else self._sent(table)
        self.covered, self._head = self._answers(weights)

    def _sent(self, tensor: Tensor) -> Tensor:
        return tensor.to(self._trunk.device, self._trunk.dtype)

    def _norm(self, name: str, x: Tensor) -> Tensor:
        return rms(x, self._small[f"{name}.weight"], self._eps)

    def _check(self, own: Config, weights: Weights) -> None:
        """Raise ModelError for a head of another target."""
        trunk, hidden, table = self._trunk, int(own["hidden_size"]), weights.get("embed_tokens.weight")
        read = weights["fc.weight"].shape[1] // len(self.taps) if "fc.weight" in weights else hidden
        if read != trunk.hidden:
            raise ModelError(f"it reads states of {read} numbers and the target's have {trunk.hidden}")
        if (deepest := max(self.taps)) > trunk.layers:
            raise ModelError(f"it reads layer {deepest} and the target has {trunk.layers}")
        if table is None and hidden != trunk.hidden:
            raise ModelError(f"it has no embedding, and is {hidden} wide where the target is {trunk.hidden}")
        known = int(own.get("vocab_size", trunk.vocabulary)) if table is None else len(table)
        if known != trunk.vocabulary:
            raise ModelError(f"it knows {known} tokens and the target {trunk.vocabulary}")

    def _answers(self, weights: Weights) -> tuple[DraftVocabulary | None, PerRow]:
        """The tokens that logits stand for, and what makes them."""
        own, whole = weights.get("lm_head.weight"), self._trunk.vocabulary
        if own is None:
            return None, self._trunk.logits
        if "d2t" not in weights or len(own) >= whole:
            return None, self._trunk.linear(own)
        ids = weights["d2t"].cpu().numpy() + torch.arange(len(own)).numpy()
        if (ids[1:] <= ids[:-1]).any():
            raise ModelError("its d2t names tokens in another order than their own")
        return DraftVocabulary(ids, whole), self._trunk.linear(own)

    def embed(self, ids: Tensor) -> Tensor:
        return self._trunk.embed(ids) if self._embedding is None else self._embedding[ids]

    def logits(self, x: Tensor) -> Tensor:
        return self._head(x).float()
