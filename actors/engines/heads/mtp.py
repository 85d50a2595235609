"""Multi-token prediction layers that came with the target: weights of its own checkpoint, a layer of its own kind.

One layer drafts any number of tokens: it reads its own output for the token before. Of several each drafts one token of
a round, and the last the tokens after.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from actors.engines.cache.pool import KVShape
from actors.engines.compute.rows import BatchRows
from actors.engines.decoder.families import describe
from actors.engines.decoder.layout import LayerWeights
from actors.engines.decoder.spec import DecoderSpec
from actors.engines.engine import PerRow, Trunk
from actors.engines.heads.head import Head, rms
from actors.engines.heads.kinds import MtpConvention, convention_in
from actors.engines.heads.layer import HeadLayers, Weights, read_layers
from protocols.errors import ModelError

FIRST = "model.layers.0."  # the beginning of names in the layer's description
EXPERTS = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}


@dataclass(frozen=True, slots=True)
class _Stage:
    """What stands around one of the layers."""

    token_norm: PerRow
    state_norm: PerRow
    last_norm: PerRow
    join: PerRow


class Mtp(Head):
    def __init__(self, config: Any, weights: Weights, trunk: Trunk, convention: MtpConvention | None = None) -> None:
        """``config``: the target's, of ``transformers``; ``weights``: by the checkpoint's names."""
        found = convention or convention_in(weights, trunk.layers)
        assert found is not None, "see `convention_in`"
        self.convention, self._trunk = found, trunk
        self.taps: tuple[int, ...] = (trunk.layers,)
        self.width = trunk.hidden
        self._spec = describe(_one_layer(config.get_text_config()))
        stages = [self._stage(weights, 0)]
        while self._has(weights, len(stages)):
            stages.append(self._stage(weights, len(stages)))
        self.stages, self._stages = len(stages), [stage for stage, _ in stages]
        self._layers = HeadLayers(self._spec, [layer for _, layer in stages], trunk)
        mixer = self._spec.attention
        self.shape = KVShape.alike(self.stages, mixer.kv_heads, mixer.width)

    def _has(self, weights: Weights, stage: int) -> bool:
        prefix, own = self.convention.prefix_of(stage, self._trunk.layers), self.convention
        block = prefix + own.block.format(stage=stage)
        return prefix + own.join in weights and any(name.startswith(block) for name in weights)

    def _stage(self, weights: Weights, stage: int) -> tuple[_Stage, LayerWeights]:
        found, trunk, offset = self.convention, self._trunk, self._spec.norm.offset
        prefix = found.prefix_of(stage, trunk.layers)
        own = {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}

        def norm(name: str) -> PerRow:
            weight = (own[name].float() + offset).to(trunk.device, trunk.dtype)
            return lambda x: rms(x, weight, self._spec.norm.eps)

        block = found.block.format(stage=stage)
        parts = {FIRST + name.removeprefix(block): part for name, part in own.items() if name.startswith(block)}
        try:
            norms = norm(found.token_norm), norm(found.state_norm), norm(found.last_norm)
            [layer] = read_layers(self._spec, _together(parts, self._spec))
        except (KeyError, RuntimeError, IndexError) as error:
            raise ModelError(
                f"the checkpoint's layer for more tokens does not fit its config.json: {error} is missing or of "
                "another shape; choose --draft none, or download it again"
            ) from None
        return _Stage(*norms, trunk.linear(own[found.join])), layer

    def feature(self, tapped: Tensor, rows: BatchRows) -> Tensor:
        return self._trunk.norm(tapped) if self.convention.reads_normed else tapped

    def step(self, states: Tensor, rows: BatchRows, stage: int) -> tuple[Tensor, Tensor]:
        own = self._stages[stage]
        parts = [own.token_norm(self._trunk.embed(rows.ids)), own.state_norm(states)]
        x = own.join(torch.cat(parts if self.convention.token_first else parts[::-1], 1))
        made = self._layers.step(stage, x, rows)
        normed = own.last_norm(made)
        return normed, normed if self.convention.recycles_normed else made

    def logits(self, x: Tensor) -> Tensor:
        return self._trunk.logits(x).float()


def _one_layer(text: Any) -> Any:
    """The configuration of a model of one layer with attention, and with experts where the last layers have them."""
    mine = copy.deepcopy(text)
    mine.num_hidden_layers = 1
    for name, own in (("layer_types", ["full_attention"]), ("mlp_only_layers", []), ("quantization_config", None)):
        if getattr(mine, name, None):
            setattr(mine, name, own)
    if getattr(mine, "mlp_layer_types", None):
        mine.mlp_layer_types = mine.mlp_layer_types[-1:]
    for name, number in (("first_k_dense_replace", 0), ("decoder_sparse_step", 1)):
        if hasattr(mine, name):
            setattr(mine, name, number)
    return mine


def _together(parts: Weights, spec: DecoderSpec) -> dict[str, Tensor]:
    """With experts in one tensor that are stored one by one."""
    found = dict(parts)
    for mixture in spec.experts:
        for name in {mixture.up, mixture.down} - parts.keys():
            whole, _, last = name.rpartition(".")
            each = range(mixture.count)
            rows = [[parts[f"{whole}.{e}.{part}.weight"] for part in EXPERTS[last]] for e in each]
            found[name] = torch.stack([torch.cat(one) for one in rows])
    return found
