"""EAGLE-3 heads (arXiv 2503.01840): three states of the target, one layer of Llama's kind over token and state.

Published in three layouts: SafeAILab's and SpecForge's (a flat configuration, ``midlayer.*``) and speculators'
(``transformer_layer_config``, ``layers.0.*``). Their differences are in :class:`EagleConvention`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from actors.engines.compute.layer import Residual
from actors.engines.compute.rows import BatchRows
from actors.engines.engine import Trunk
from actors.engines.heads.head import DraftBlock, NotComputed, Windows, rms
from actors.engines.heads.layer import Config, Weights
from actors.engines.heads.published import PublishedHead, layer_config, sliding_windows
from protocols.errors import ModelError

DEPTHS = 8  # depths of P-EAGLE's heads that do not say it
MASKS = ("ptd_token_id", "pard_token", "mask_token_id")


@dataclass(frozen=True, slots=True)
class EagleConvention:
    """Conventions that configurations leave open. A wrong one shows in the acceptance rate only."""

    taps: tuple[int, ...]  # the states that enter these layers; the number of layers: the last norm's
    norm_before_residual: bool = False  # the residual stream begins with the normed state
    recycles_normed: bool = False  # the next row reads the state after the last norm
    norms_logits: bool = True  # the logits come after the norm


def convention_of(config: Config, layers: int) -> EagleConvention:
    """``layers``: of the target.

    speculators means the states that enter a layer, as vLLM reads it; SpecForge and SGLang, with numbers in
    ``eagle_config``, the states that leave it. ``norm_output`` is speculators' for the state that is handed on, and
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


class Eagle3(PublishedHead):
    """The arithmetic of a head's layers, of P-EAGLE's too."""

    def __init__(self, config: Config, weights: Weights, trunk: Trunk) -> None:
        self.convention = convention_of(config, trunk.layers)
        super().__init__(config, weights, trunk, self.convention.taps)
        own = layer_config(config)
        self.width = int(own["hidden_size"])
        self._state_norm = next(norm for name, norm in self._small.items() if name.endswith(".hidden_norm.weight"))
        number, hidden = len(self._layers.layers), weights.get("mask_hidden")
        self.block = None if hidden is None else block_of(config, self.taps, number)
        # speculators trains so: a drafted token sees the text that the root sees
        of_root = "speculators_model_type" in config and self.block is None
        self.windows = Windows(sliding_windows(own, number), of_root)
        if hidden is None and says_parallel(config):
            raise ModelError("it drafts in parallel and has no mask_hidden; download it again")
        self.mask_state = None if hidden is None else self.feature(self._sent(hidden).view(1, -1))

    def feature(self, tapped: Tensor, rows: BatchRows | None = None) -> Tensor:
        if self.taps == (self._trunk.layers,):
            tapped = self._trunk.norm(tapped)
        if "input_norm.weight" in self._small:
            tapped = self._norm("input_norm", tapped)
        if "fc_norm.0.weight" in self._small:
            parts = tapped.chunk(len(self.taps), 1)
            tapped = torch.cat([self._norm(f"fc_norm.{index}", part) for index, part in enumerate(parts)], 1)
        return tapped if self._join is None else self._join(tapped)

    def step(self, states: Tensor, rows: BatchRows, stage: int = 0) -> tuple[Tensor, Tensor]:
        layers, normed = self._layers, rms(states, self._state_norm, self._eps)
        embedded = layers.ops.norm(self.embed(rows.ids), layers.layers[0].norms.attention)
        x = normed if self.convention.norm_before_residual else states
        x, _ = layers.run(0, Residual(x, torch.cat([embedded, normed], 1)), None, rows)
        for index in range(1, len(layers.layers)):
            x = layers.step(index, x, rows)
        normed = self._norm("norm", x)
        return (normed if self.convention.norms_logits else x), (normed if self.convention.recycles_normed else x)


def says_parallel(config: Config) -> bool:
    """Whether a configuration says that its head drafts a block; SpecForge's says it by its class alone."""
    named = f"{config.get('architectures')} {config.get('speculators_model_type')}".lower()
    return bool(config.get("parallel_drafting")) or "peagle" in named


def block_of(config: Config, taps: tuple[int, ...], layers: int) -> DraftBlock:
    """The block of a P-EAGLE head (arXiv 2602.01469), as vLLM reads it."""
    methods = (config.get("speculators_config") or {}).get("proposal_methods") or [{}]
    rows = config.get("para_depths") or config.get("num_depths") or methods[0].get("speculative_tokens") or DEPTHS
    mask = next((config[name] for name in MASKS if config.get(name) is not None), None)
    if mask is None:
        raise NotComputed(
            f"its config.json does not say which token its masks are ({', '.join(MASKS)}): add mask_token_id, the "
            "number that it was trained with"
        )
    return DraftBlock(taps, int(rows), int(mask), (True,) * layers, from_root=True)
