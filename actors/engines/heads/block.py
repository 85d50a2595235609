"""Block drafters: DFlash (arXiv 2602.06036). One pass over the root and masks gives a distribution at each place ahead.

Keys and values of committed tokens come from the target's states alone: there is nothing to mend after a rejection. The
places of a block do not know of one another; shared noise makes a tree of them nonetheless, since it says of each place
which of its tokens the target would choose.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from actors.engines.cache.pool import KVPool, KVShape
from actors.engines.decoder.torch.attention import Attention, Stretch
from actors.engines.drafts.draft import SCRATCH, Draft
from actors.engines.drafts.ranking import Row, rank
from actors.engines.engine import PerRow, Trunk
from actors.engines.flat_batch import FlatBatch, Mask, align
from actors.engines.heads.draft import HeadDraft, HeadMirror
from actors.engines.heads.head import rms
from actors.engines.targets.states import States
from actors.models import Expansion, Leaf, ModelInfo
from protocols.errors import ModelError

Config = Mapping[str, Any]
Weights = Mapping[str, Tensor]
# Parts of later kinds, without which their drafts would be wrong: DFlash2, DSpark and Domino
FURTHER = ("conv.", "candidate_selector.", "markov_head.", "confidence_head.", "gru.")


@dataclass(frozen=True, slots=True)
class BlockConvention:
    """What a configuration says of the block."""

    taps: tuple[int, ...]  # the states that enter these layers of the target
    block: int  # rows: the root and masks
    mask_token: int
    windows: tuple[int, ...]  # of each layer, 0: it sees all
    causal: tuple[bool, ...]  # of each layer, within the block


def convention_of(config: Config, layers: int) -> BlockConvention:
    """``layers``: of the target. ``target_layer_ids`` are layers that states leave. Without a word on it a block is
    causal in sliding layers alone, as vLLM has it."""
    own = dict(config.get("dflash_config") or {})
    number = int(config["num_hidden_layers"])
    ids = own.get("target_layer_ids") or config.get("target_layer_ids") or _spread(number, layers)
    kinds = config.get("layer_types") or ["full_attention"] * number
    window = int(config.get("sliding_window") or own.get("swa_window_size") or 0)
    sliding = [kind == "sliding_attention" for kind in kinds]
    said = own.get("causal", config.get("is_causal"))
    causal = [bool(one if said is None else said) for one in sliding]
    mask = own.get("mask_token_id", config.get("mask_token_id"))
    if mask is None:
        raise ModelError("its config.json names no mask_token_id")
    block = int(config.get("block_size") or own.get("block_size") or 16)
    taps = tuple(int(layer) + 1 for layer in ids)
    return BlockConvention(taps, block, int(mask), tuple(window * one for one in sliding), tuple(causal))


def _spread(count: int, layers: int) -> list[int]:
    """As many layers as the drafter has, evenly from the second to the third from the end."""
    if count == 1:
        return [layers // 2]
    return [round(1 + place * (layers - 4) / (count - 1)) for place in range(count)]


@dataclass(slots=True)
class _BlockLayer:
    input_norm: Tensor
    query_norm: Tensor | None
    key_norm: Tensor | None
    query: PerRow
    key_value: PerRow
    out: PerRow
    inner_norm: Tensor
    gate_up: PerRow
    down: PerRow


class Dflash:
    """The arithmetic of a drafter's layers, for rows of blocks and for states of committed tokens."""

    def __init__(self, config: Config, weights: Weights, trunk: Trunk) -> None:
        later = next((name for name in weights if any(part in name for part in FURTHER)), None)
        if later is not None:
            raise ModelError(f"it has {later}, of a later kind than DFlash, which duoactor does not run yet")
        self.convention, self._trunk = convention_of(config, trunk.layers), trunk
        hidden, parts = int(config["hidden_size"]), len(self.convention.taps)
        if hidden != trunk.hidden or weights["fc.weight"].shape[1] != parts * trunk.hidden:
            read = weights["fc.weight"].shape[1] // parts
            raise ModelError(f"it reads states of {read} numbers and the target's have {trunk.hidden}")
        if (deepest := max(self.convention.taps)) > trunk.layers:
            raise ModelError(f"it reads layer {deepest} and the target has {trunk.layers}")
        if self.convention.mask_token >= trunk.vocabulary and "mask_embedding" not in weights:
            raise ModelError(f"its mask is token {self.convention.mask_token} and the target knows {trunk.vocabulary}")
        self.heads = int(config["num_attention_heads"])
        kv_heads = int(config.get("num_key_value_heads") or self.heads)
        width = int(config.get("head_dim") or hidden // self.heads)
        self.shape = KVShape(int(config["num_hidden_layers"]), kv_heads, width)
        self._eps = float(config.get("rms_norm_eps", 1e-6))
        small = {name: tensor for name, tensor in weights.items() if tensor.ndim == 1}
        self._small = {name: tensor.to(trunk.device, trunk.dtype) for name, tensor in small.items()}
        self._join = trunk.linear(weights["fc.weight"])
        self._layers = [self._layer(weights, f"layers.{index}") for index in range(self.shape.layers)]
        self._rotary = _rotary(config, trunk.device)

    def _layer(self, weights: Weights, name: str) -> _BlockLayer:
        def matrix(*parts: str) -> PerRow:
            return self._trunk.linear(torch.cat([weights[f"{name}.{part}_proj.weight"] for part in parts]))

        small = self._small
        return _BlockLayer(
            small[f"{name}.input_layernorm.weight"],
            small.get(f"{name}.self_attn.q_norm.weight"),
            small.get(f"{name}.self_attn.k_norm.weight"),
            matrix("self_attn.q"),
            matrix("self_attn.k", "self_attn.v"),
            matrix("self_attn.o"),
            small[f"{name}.post_attention_layernorm.weight"],
            matrix("mlp.gate", "mlp.up"),
            matrix("mlp.down"),
        )

    def remember(self, pool: KVPool, tapped: Tensor, slots: Tensor, positions: Tensor) -> None:
        """Write the keys and values of committed tokens."""
        context = rms(self._join(tapped), self._small["hidden_norm.weight"], self._eps)
        turns = self._rotary(context[None], positions[None])
        for place, layer in enumerate(self._layers):
            pool.write(place, slots, *self._keyed(layer, context, turns))

    def block(self, pool: KVPool, ids: Tensor, slots: Tensor, positions: Tensor, looks: Sequence[Attention]) -> Tensor:
        """What logits are made of, of every row. ``looks``: of each layer."""
        x = self._trunk.embed(ids)
        if "mask_embedding" in self._small:
            x = torch.where((ids == self.convention.mask_token)[:, None], self._small["mask_embedding"], x)
        turns = self._rotary(x[None], positions[None])
        width = self.shape.width
        for place, layer in enumerate(self._layers):
            read = rms(x, layer.input_norm, self._eps)
            pool.write(place, slots, *self._keyed(layer, read, turns))
            queries = self._turned(layer.query(read).view(len(x), -1, width), layer.query_norm, turns)
            x = x + layer.out(looks[place](place, queries.transpose(0, 1).contiguous()))
            gate, up = layer.gate_up(rms(x, layer.inner_norm, self._eps)).chunk(2, 1)
            x = x + layer.down(functional.silu(gate) * up)
        return rms(x, self._small["norm.weight"], self._eps)

    def logits(self, x: Tensor) -> Tensor:
        return self._trunk.logits(x).float()

    def _keyed(self, layer: _BlockLayer, x: Tensor, turns: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Keys and values ``(kv_heads, rows, width)``."""
        keys, values = layer.key_value(x).view(len(x), -1, self.shape.width).chunk(2, 1)
        return self._turned(keys, layer.key_norm, turns), values.transpose(0, 1)

    def _turned(self, x: Tensor, norm: Tensor | None, turns: tuple[Tensor, Tensor]) -> Tensor:
        """From ``(rows, heads, width)`` to ``(heads, rows, width)``."""
        x = (x if norm is None else rms(x, norm, self._eps)).transpose(0, 1)
        first, second = x.chunk(2, -1)
        return x * turns[0] + torch.cat([-second, first], -1) * turns[1]


def _rotary(config: Config, device: torch.device) -> Any:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    left_out = ("architectures", "model_type", "torch_dtype", "layer_types", "dflash_config", "auto_map")
    return LlamaRotaryEmbedding(LlamaConfig(**{k: v for k, v in config.items() if k not in left_out})).to(device)


class BlockEngine:
    """What :class:`actors.engines.drafts.draft.Draft` asks of an engine; it computes blocks instead of rows."""

    recurrence = best = draft_vocabulary = None
    text_matters = has_spare_cpus = False

    def __init__(self, head: Dflash, trunk: Trunk, info: ModelInfo, slots: int) -> None:
        self.head, self.info, self.device, self.dtype = head, info, trunk.device, trunk.dtype
        self.pool = KVPool(head.shape, slots, trunk.dtype, trunk.device)

    @torch.inference_mode()
    def feed(self, slot: int, position: int, tapped: Tensor) -> None:
        """The target's states of the tokens from ``position`` on, in the slots from ``slot`` on."""
        count = torch.arange(len(tapped), device=self.device)
        self.head.remember(self.pool, tapped.to(self.device, self.dtype), slot + count, position + count)

    @torch.inference_mode()
    def blocks(self, batch: FlatBatch, masks: Sequence[Sequence[Mask]]) -> Tensor:
        """float32 logits of all rows. ``masks``: by layer, of each segment."""
        ids, slots, places = (
            torch.tensor(part, dtype=torch.int64, device=self.device)
            for part in (batch.tokens, batch.slots, batch.positions)
        )
        looks: list[Attention] = []
        for layer in masks:
            stretches = []
            for segment, visible in zip(batch.segments, layer, strict=True):
                mask = torch.from_numpy(np.where(visible, np.float32(0), np.float32(-np.inf)))
                stretches.append(Stretch(segment.base, segment.span, mask.to(self.device, self.dtype)))
            looks.append(Attention(self.pool, stretches, self.head.heads, self.head.shape.width**-0.5, exact=False))
        return self.head.logits(self.head.block(self.pool, ids, slots, places, looks))


class BlockMirror(HeadMirror):
    __slots__ = ("ahead", "ahead_of")

    ahead: Tensor  # the logits at each place behind the root
    ahead_of: int  # tokens of the text behind which they are; 0: there are none


class BlockDraft(HeadDraft):
    """A :class:`actors.models.DraftModel` whose expansions of one text share a forward, that of the root."""

    kind = BlockMirror
    blocks: BlockEngine
    _mirrors: dict[int, BlockMirror]  # type: ignore[assignment]

    def __init__(self, engine: BlockEngine, states: States, candidates: int = 8) -> None:
        Draft.__init__(self, engine, candidates, SCRATCH)  # type: ignore[arg-type]
        self.blocks, self._states = engine, states

    def missing(self, handle: int) -> int:
        """Nothing: what the target has states of is read as it comes."""
        self._feed(self._mirrors[handle])
        return 0

    def prefill(self, handle: int, limit: int) -> None:
        self._feed(self._mirrors[handle])

    def _feed(self, m: HeadMirror) -> None:
        found = None if m.source is None else self._states.take(m.source)
        if found is not None:
            position, tapped = found
            tapped = tapped[: max(0, m.room - position)]
            self.blocks.feed(m.home + position, position, tapped)
            m.known[position : position + len(tapped)] = True
            m.computed = position + len(tapped)

    def expand(self, leaves: Sequence[Leaf]) -> list[Expansion]:
        """See :class:`actors.models.DraftModel`."""
        self._look_ahead([leaf.handle for leaf in leaves if leaf.is_root])
        rows: list[Row] = []
        logits: list[Tensor] = []
        expansions: list[Expansion] = []
        for index, leaf in enumerate(leaves):
            m, depth = self._mirrors[leaf.handle], 0 if leaf.is_root else 1 + len(leaf.path)
            if not leaf.is_root and m.ahead_of != m.length:
                self._look_ahead([leaf.handle])
            slot = -1 if leaf.is_root else m.take(leaf.token)
            expansions.append(Expansion(slot, (), ()))
            if depth < len(m.ahead) and m.length + depth < self.info.max_context:
                path = list[int]()
                if m.sampler.penalised and not leaf.is_root:
                    path = [*(m.held[above] for above in leaf.path), leaf.token]
                rows.append(Row(index, slot, m.sampler, m.length + depth, path))
                logits.append(m.ahead[depth])
        for row, (ids, probs) in zip(rows, self._ranked(logits, rows), strict=True):
            expansions[row.index] = Expansion(row.slot, tuple(ids), tuple(probs))
        return expansions

    def _ranked(self, logits: Any, rows: Sequence[Row]) -> Any:
        return rank(torch.stack(logits)[:, : self.info.vocab_size], rows, self.candidates) if rows else []

    def _look_ahead(self, handles: Sequence[int]) -> None:
        """Compute the blocks of these texts in one forward."""
        batch, masks = FlatBatch(), [list[Mask]() for _ in self.blocks.head.convention.windows]
        mirrors = [self._mirrors[handle] for handle in dict.fromkeys(handles)]
        counts: list[int] = []
        for m in mirrors:
            self._feed(m)
            self._add_block(m, batch, masks)
            counts.append(batch.segments[-1].rows)
        if not mirrors:
            return
        for m, logits in zip(mirrors, torch.split(self.blocks.blocks(batch, masks), counts), strict=True):
            m.ahead, m.ahead_of = logits[1:], m.length

    def _add_block(self, m: BlockMirror, batch: FlatBatch, masks: Sequence[list[Mask]]) -> None:
        """PerRow of the root and of masks, in the slots of the places where they stand. The next tokens' own keys and
        values take their place."""
        convention = self.blocks.head.convention
        root = m.length - 1
        rows = min(convention.block, m.room - root)
        places = [*range(root, root + rows)]
        visible = np.zeros((rows, align(root + rows)), np.bool_)
        visible[:, :root], visible[:, root : root + rows] = m.known[:root], True
        m.known[root : root + rows] = False
        tokens = [m.tokens[root], *[convention.mask_token] * (rows - 1)]
        batch.add(m.home, tokens, places, [m.home + place for place in places], visible, m.room)
        columns = np.arange(visible.shape[1])[None]
        at = np.array(places)[:, None]
        for layer, window, causal in zip(masks, convention.windows, convention.causal, strict=True):
            mine = visible & (columns <= at) if causal else visible
            layer.append(mine & (at - columns < window) if window else mine)
