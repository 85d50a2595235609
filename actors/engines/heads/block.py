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

from actors.engines.compute.rows import BatchRows
from actors.engines.engine import PerRow, Trunk
from actors.engines.heads.block_parts import Convolution, convolution_in, pairs_in
from actors.engines.heads.head import DraftBlock, HeadSight, NotComputed, Windows
from actors.engines.heads.layer import Config, Weights, write_keys
from actors.engines.heads.published import PublishedHead, sliding_windows
from protocols.errors import ModelError

# Parts of the names of tensors and settings, and the heads that have them: unread, drafts would be wrong and nothing
# fail
FURTHER = {
    "gru.": "a Domino head",
    "markov_head.gate_proj": "a gated DSpark head",
    "markov_head.joint_proj": "a recurrent DSpark head",
    "refiner_head.": "an XPress head",
    "sink": "a head with sinks of attention",
    "attention_value_scale": "a head with scaled values",
    "output_multiplier": "a head with scaled outputs",
}


def convention_of(config: Config, layers: int) -> DraftBlock:
    """``layers``: of the target. ``target_layer_ids`` are layers that states leave. Without a word on it a block is
    causal in sliding layers alone, as vLLM has it."""
    own, speculators = dict(config.get("dflash_config") or {}), "transformer_layer_config" in config
    config = flat(config)
    number = int(config["num_hidden_layers"])
    ids = own.get("target_layer_ids") or config.get("target_layer_ids") or _spread(number, layers)
    taps = config.get("aux_hidden_state_layer_ids") or [int(layer) + 1 for layer in ids]  # those name what enters
    kinds = config.get("layer_types") or ["full_attention"] * number
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
        tuple(causal),
        bool(config.get("sample_from_anchor", dspark)),
    )


def windows_in(config: Config) -> Windows:
    """speculators' count from the root alone, and do not count it."""
    own, speculators = dict(config.get("dflash_config") or {}), "transformer_layer_config" in config
    config = flat(config)
    window = config.get("sliding_window") or own.get("swa_window_size")
    sizes = sliding_windows({**config, "sliding_window": window}, int(config["num_hidden_layers"]))
    return Windows(tuple(size and size + speculators for size in sizes), of_root=speculators)


def flat(config: Config) -> dict[str, Any]:
    """With speculators' sizes of layers added."""
    return {**config, **(config.get("transformer_layer_config") or {}), "architectures": config.get("architectures")}


def _spread(count: int, layers: int) -> list[int]:
    """As many layers as the drafter has, evenly from the second to the third from the end."""
    if count == 1:
        return [layers // 2]
    return [round(1 + place * (layers - 4) / (count - 1)) for place in range(count)]


class Dflash(PublishedHead):
    """The arithmetic of a drafter's layers."""

    width, writes_keys = 0, True
    block: DraftBlock

    def __init__(self, config: Config, weights: Weights, trunk: Trunk) -> None:
        own = dict(config.get("dflash_config") or {})
        for name in (*weights, *filter(own.get, own)):
            if what := next((what for part, what in FURTHER.items() if part in name), ""):
                raise NotComputed(f"it is {what}, whose {name} duoactor does not compute")
        if flat(config).get("rope_is_neox_style") is False:
            raise NotComputed("it is a head with an interleaved rotation, which duoactor does not compute")
        self.block, self.windows = convention_of(config, trunk.layers), windows_in(config)
        super().__init__(config, weights, trunk, self.block.taps)
        if (mask := self.block.mask_token) >= trunk.vocabulary and "mask_embedding" not in weights:
            raise ModelError(f"its mask is token {mask} and the target knows {trunk.vocabulary}")
        selected = own.get("selector_top_k") or config.get("selector_top_k") or 16
        self.pairs = pairs_in(weights, trunk, int(selected))
        masked = weights.get("mask_embedding")
        self._masked = None if masked is None else self._sent(masked)
        layers, parts = range(len(self._layers.layers)), ("attention", "mlp")
        self._around = [[convolution_in(weights, f"layers.{n}.{part}_conv", trunk) for part in parts] for n in layers]

    def feature(self, tapped: Tensor, rows: BatchRows) -> Tensor:
        """Write the keys and values of committed tokens."""
        assert self._join is not None
        context = self._norm("hidden_norm", self._join(tapped))
        for index, keys in enumerate(self._layers.keys):
            write_keys(self._layers, index, keys, context, rows)
        return context[:, :0]

    def step(self, states: Tensor, rows: BatchRows, stage: int = 0) -> tuple[Tensor, Tensor]:
        assert isinstance(rows.sight, HeadSight)
        x, places = self.embed(rows.ids), rows.sight.places()
        if self._masked is not None:
            x = torch.where((rows.ids == self.block.mask_token)[:, None], self._masked, x)
        norm, layers = self._layers.ops.norm, enumerate(zip(self._layers.layers, self._around, strict=True))
        for index, (layer, around) in layers:
            parts = partial(self._mixed, index, rows), partial(self._fed, index, rows)
            for one, part, before in zip(around, parts, (layer.norms.attention, layer.norms.mlp), strict=True):
                x = x + _convolved(one, part, norm(x, before), places)
        return self._norm("norm", x), states

    def _mixed(self, index: int, rows: BatchRows, read: Tensor) -> Tensor:
        return self._layers.ops.whole(self._layers.mix(index, read, rows))

    def _fed(self, index: int, rows: BatchRows, read: Tensor) -> Tensor:
        return self._layers.ops.whole(self._layers.feed(index, read, read, rows))


def _convolved(convolution: Convolution | None, part: PerRow, x: Tensor, places: Tensor) -> Tensor:
    """A part of a layer, with the convolutions before and after it."""
    if convolution is None:
        return part(x)
    before, behind = convolution.weights(x).unbind(1)
    return convolution.apply(part(convolution.apply(x, before, places)), behind, places)
