"""Block drafters: DFlash (arXiv 2602.06036), DFlash2, DSpark. One pass over the root and masks gives a distribution at
each place ahead.

Keys and values of committed tokens come from the target's states alone: there is nothing to mend after a rejection. The
later kinds also say how a token depends on the one before.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from actors.engines.engine import PerRow, Trunk
from actors.engines.heads.block_parts import Convolution, convolution_in, pairs_in
from actors.engines.heads.head import DraftBlock, Look
from actors.engines.heads.layer import Config, Weights
from actors.engines.heads.published import PublishedHead
from protocols.errors import ModelError

# Parts without which drafts would be wrong and nothing fail: of Domino, of DSpark's other kinds, sinks of attention
FURTHER = ("gru.", "markov_head.gate_proj", "markov_head.joint_proj", "sink")
FURTHER_KEYS = ("attention_value_scale", "output_multiplier")


def convention_of(config: Config, layers: int) -> DraftBlock:
    """``layers``: of the target. ``target_layer_ids`` are layers that states leave. Without a word on it a block is
    causal in sliding layers alone, as vLLM has it."""
    own, speculators = dict(config.get("dflash_config") or {}), "transformer_layer_config" in config
    config = flat(config)
    number = int(config["num_hidden_layers"])
    ids = own.get("target_layer_ids") or config.get("target_layer_ids") or _spread(number, layers)
    taps = config.get("aux_hidden_state_layer_ids") or [int(layer) + 1 for layer in ids]  # those name what enters
    kinds = config.get("layer_types") or ["full_attention"] * number
    window = int(config.get("sliding_window") or own.get("swa_window_size") or 0)
    sliding = [kind == "sliding_attention" for kind in kinds]
    said = own.get("causal", config.get("is_causal", False if config.get("sliding_window_non_causal") else None))
    causal = [bool(one if said is None else said) for one in sliding]
    mask = own.get("mask_token_id", config.get("mask_token_id"))
    if mask is None:
        raise ModelError("its config.json names no mask_token_id")
    block = int(own.get("block_size") or config.get("block_size") or 16)
    dspark = "dspark" in " ".join(config.get("architectures") or ()).lower() and not speculators
    return DraftBlock(
        tuple(map(int, taps)),
        block,
        int(mask),
        tuple(window * one for one in sliding),
        tuple(causal),
        bool(config.get("sample_from_anchor", dspark)),
    )


def flat(config: Config) -> dict[str, Any]:
    """With speculators' sizes of layers beside the rest."""
    return {**config, **(config.get("transformer_layer_config") or {}), "architectures": config.get("architectures")}


def _spread(count: int, layers: int) -> list[int]:
    """As many layers as the drafter has, evenly from the second to the third from the end."""
    if count == 1:
        return [layers // 2]
    return [round(1 + place * (layers - 4) / (count - 1)) for place in range(count)]


class Dflash(PublishedHead):
    """The arithmetic of a drafter's layers."""

    width = 0
    block: DraftBlock

    def __init__(self, config: Config, weights: Weights, trunk: Trunk) -> None:
        own = dict(config.get("dflash_config") or {})
        named = (*weights, *filter(own.get, own))
        later = next((name for name in named if any(part in name for part in (*FURTHER, *FURTHER_KEYS))), "")
        if later or flat(config).get("rope_is_neox_style") is False:
            raise ModelError(f"it has {later or 'an interleaved rotation'}, which duoactor does not compute yet")
        self.block = convention_of(config, trunk.layers)
        super().__init__(config, weights, trunk, self.block.taps)
        if (mask := self.block.mask_token) >= trunk.vocabulary and "mask_embedding" not in weights:
            raise ModelError(f"its mask is token {mask} and the target knows {trunk.vocabulary}")
        self.pairs = pairs_in(weights, trunk, int(own.get("selector_top_k", 16)))
        masked = weights.get("mask_embedding")
        self._masked = None if masked is None else self._sent(masked)
        layers, parts = range(len(self._layers)), ("attention", "mlp")
        self._around = [[convolution_in(weights, f"layers.{n}.{part}_conv", trunk) for part in parts] for n in layers]

    def feature(self, tapped: Tensor, look: Look) -> Tensor:
        """Write the keys and values of committed tokens."""
        assert self._join is not None
        context = self._norm("hidden_norm", self._join(tapped))
        for place, layer in enumerate(self._layers):
            layer.remember(place, context, look)
        return context[:, :0]

    def step(self, ids: Tensor, states: Tensor, look: Look, stage: int = 0) -> tuple[Tensor, Tensor]:
        x, rows = self.embed(ids), look.places()
        if self._masked is not None:
            x = torch.where((ids == self.block.mask_token)[:, None], self._masked, x)
        for place, (layer, around) in enumerate(zip(self._layers, self._around, strict=True)):
            x = x + _convolved(around[0], partial(layer.attend, place, look=look), layer.before(x), rows)
            x = x + _convolved(around[1], layer.feed, layer.inner(x), rows)
        return self._norm("norm", x), states


def _convolved(convolution: Convolution | None, part: PerRow, x: Tensor, places: Tensor) -> Tensor:
    """A part of a layer, with the convolutions before and behind it."""
    if convolution is None:
        return part(x)
    before, behind = convolution.weights(x).unbind(1)
    return convolution.apply(part(convolution.apply(x, before, places)), behind, places)
