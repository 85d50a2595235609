"""Multi-token prediction layers that came with the target: weights of its own checkpoint, a layer of its own kind.

One layer drafts as many tokens as are asked for: it reads its own output for the token before. Of several each drafts
one token of a round, and the last the tokens behind. The layers' code is transformers' own, of any family, over slots.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from actors.engines.cache.pool import KVShape
from actors.engines.engine import PerRow, Trunk
from actors.engines.heads.head import Look
from actors.engines.heads.kinds import MtpConvention, convention_in
from actors.engines.weights.draft_vocabulary import DraftVocabulary
from actors.engines.weights.packed import pack_linears
from protocols.errors import ModelError

_names = itertools.count()


@dataclass(slots=True)
class _Slots:
    """In place of transformers' cache: keys and values go to the pool of the forward under way."""

    look: Look | None = None
    stage: int = 0

    def update(self, keys: Tensor, values: Tensor, layer: int, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        assert self.look is not None
        self.look.write(self.stage, keys[0], values[0])
        return keys, values

    def get_seq_length(self, layer: int = 0) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class _Stage:
    """One of the layers."""

    token_norm: nn.Module
    state_norm: nn.Module
    last_norm: nn.Module
    join: PerRow
    block: nn.Module


class Mtp:
    """See :class:`actors.engines.heads.head.Head`."""

    covered: DraftVocabulary | None = None

    def __init__(
        self, config: Any, weights: Mapping[str, Tensor], trunk: Trunk, convention: MtpConvention | None = None
    ) -> None:
        """``config``: the target's, of ``transformers``; ``weights``: by the checkpoint's names."""
        found = convention or convention_in(weights, trunk.layers)
        assert found is not None, "see `convention_in`"
        if getattr(config.get_text_config(), "kv_lora_rank", None):
            raise ModelError("a layer for more tokens with latent attention is not computed yet; choose --draft none")
        self.convention, self._trunk = found, trunk
        self.taps: tuple[int, ...] = (trunk.layers,)
        self.width = trunk.hidden
        self._kinds, mine = _kinds(config), _one_layer(config.get_text_config())
        self._name = f"duoactor_mtp_{next(_names)}"
        from transformers import AttentionInterface  # with all of transformers

        AttentionInterface.register(self._name, self._attention)
        mine._attn_implementation = self._name
        self._rotary = self._kinds.rotary(mine).to(trunk.device)
        self._stages = [self._stage(weights, mine, 0)]
        while self._has(weights, len(self._stages)):
            self._stages.append(self._stage(weights, mine, len(self._stages)))
        self.stages = len(self._stages)
        shape = KVShape.of(mine)
        assert shape is not None
        self.shape = KVShape(shape.heads * self.stages)
        self._slots = _Slots()

    def _has(self, weights: Mapping[str, Tensor], stage: int) -> bool:
        prefix, own = self.convention.prefix_of(stage, self._trunk.layers), self.convention
        block = prefix + own.block.format(stage=stage)
        return prefix + own.join in weights and any(name.startswith(block) for name in weights)

    def _stage(self, weights: Mapping[str, Tensor], mine: Any, stage: int) -> _Stage:
        """``mine``: the configuration of one layer."""
        found, trunk = self.convention, self._trunk
        prefix = found.prefix_of(stage, trunk.layers)
        own = {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}

        def norm(name: str) -> nn.Module:
            made = self._kinds.norm(mine.hidden_size, eps=mine.rms_norm_eps)
            made.weight = nn.Parameter(own[name], requires_grad=False)
            whole: nn.Module = made.to(trunk.device, trunk.dtype)
            return whole

        block = _loaded(self._kinds.layer(mine, 0), own, found.block.format(stage=stage))
        block = block.to(trunk.device, trunk.dtype).eval()
        if trunk.device.type == "cpu":
            pack_linears(block)
        norms = norm(found.token_norm), norm(found.state_norm), norm(found.last_norm)
        return _Stage(*norms, trunk.linear(own[found.join]), block)

    def feature(self, tapped: Tensor) -> Tensor:
        return self._trunk.norm(tapped) if self.convention.reads_normed else tapped

    def step(self, ids: Tensor, states: Tensor, look: Look, stage: int) -> tuple[Tensor, Tensor]:
        own = self._stages[stage]
        parts = [own.token_norm(self._trunk.embed(ids)), own.state_norm(states)]
        x = own.join(torch.cat(parts if self.convention.token_first else parts[::-1], 1))[None]
        places, self._slots.look, self._slots.stage = look.positions[None], look, stage
        out = own.block(
            x,
            position_embeddings=self._rotary(x, places),
            attention_mask=None,
            position_ids=places,
            past_key_values=self._slots,
        )
        made = (out[0] if isinstance(out, tuple) else out)[0]
        normed = own.last_norm(made)
        return normed, normed if self.convention.recycles_normed else made

    def logits(self, x: Tensor) -> Tensor:
        return self._trunk.logits(x).float()

    def _attention(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, None]:
        """See :meth:`actors.engines.generic.engine.TransformersEngine.attention`."""
        look, width = self._slots.look, query.shape[-1]
        assert look is not None
        scale = kwargs.get("scaling") or width**-0.5
        seen = look(self._slots.stage, query[0].transpose(0, 1).contiguous(), scale)
        return seen.view(1, query.shape[2], query.shape[1], width), None


@dataclass(frozen=True, slots=True)
class _Kinds:
    layer: Any
    norm: Any
    rotary: Any


def _kinds(config: Any) -> _Kinds:
    """The classes of the target's layers, norms and rotary embedding in transformers."""
    from transformers import AutoModel

    with torch.device("meta"):
        model: Any = AutoModel.from_config(_one_layer(config.get_text_config()))
    return _Kinds(type(model.layers[0]), type(model.norm), type(model.rotary_emb))


def _one_layer(text: Any) -> Any:
    """The configuration of a model of one layer with attention, and with experts where the last layers have them."""
    mine = copy.deepcopy(text)
    mine.num_hidden_layers = 1
    if getattr(mine, "layer_types", None):
        mine.layer_types = ["full_attention"]
    if getattr(mine, "mlp_layer_types", None):
        mine.mlp_layer_types = mine.mlp_layer_types[-1:]
    if hasattr(mine, "first_k_dense_replace"):
        mine.first_k_dense_replace = 0
    if getattr(mine, "mlp_only_layers", None):
        mine.mlp_only_layers = []
    if hasattr(mine, "decoder_sparse_step"):
        mine.decoder_sparse_step = 1
    return mine


def _loaded(block: nn.Module, own: Mapping[str, Tensor], prefix: str) -> nn.Module:
    """The layer with its weights; experts that are stored one by one are put together."""
    state: dict[str, Tensor] = {}
    for name, parameter in block.state_dict().items():
        found = own.get(prefix + name)
        if found is None:
            found = _experts(own, prefix, name, len(parameter))
        if found is None or found.shape != parameter.shape:
            raise ModelError(
                f"the checkpoint's layer for more tokens does not fit its config.json: {prefix}{name} is missing or of "
                "another shape; choose --draft none, or download it again"
            )
        state[name] = found
    block.load_state_dict(state)
    return block.requires_grad_(False)


def _experts(own: Mapping[str, Tensor], prefix: str, name: str, count: int) -> Tensor | None:
    """``experts.gate_up_proj`` or ``experts.down_proj`` of a checkpoint with a matrix for each expert."""
    whole, _, last = (prefix + name).rpartition(".")
    parts = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}.get(last)
    if parts is None or f"{whole}.0.{parts[0]}.weight" not in own:
        return None
    each = range(count)
    return torch.stack([torch.cat([own[f"{whole}.{e}.{part}.weight"] for part in parts]) for e in each])
