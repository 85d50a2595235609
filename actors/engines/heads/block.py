"""Block drafters: DFlash (arXiv 2602.06036), DFlash2, DSpark. One pass over the root and masks gives a distribution at
each place ahead.

Keys and values of committed tokens come from the target's states alone: there is nothing to mend after a rejection.
DFlash's places do not know of one another; shared noise makes a tree of them nonetheless, since it says of each place
which of its tokens the target would choose. The later kinds also say how a token depends on the one before.
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
from actors.engines.decoder.torch.attention import PoolAttention, Stretch
from actors.engines.drafts.draft import SCRATCH, Draft
from actors.engines.drafts.ranking import Row, rank
from actors.engines.engine import PerRow, Trunk
from actors.engines.flat_batch import FlatBatch, Mask, align
from actors.engines.heads.block_parts import Convolution, convolution_in, pairs_in
from actors.engines.heads.draft import HeadDraft, HeadMirror
from actors.engines.heads.head import rms
from actors.engines.targets.states import States
from actors.models import Expansion, Leaf, ModelInfo
from protocols.errors import ModelError

Config = Mapping[str, Any]
Weights = Mapping[str, Tensor]
# Parts without which drafts would be wrong and nothing fail: of Domino, of DSpark's other kinds, sinks of attention
FURTHER = ("gru.", "markov_head.gate_proj", "markov_head.joint_proj", "sink")
FURTHER_KEYS = ("attention_value_scale", "output_multiplier")


@dataclass(frozen=True, slots=True)
class BlockConvention:
    """What a configuration says of the block."""

    taps: tuple[int, ...]  # the states that enter these layers of the target
    block: int  # rows: the root and masks
    mask_token: int
    windows: tuple[int, ...]  # of each layer, 0: it sees all
    causal: tuple[bool, ...]  # of each layer, within the block
    from_root: bool = False  # a row gives the token behind its place, the root's too; else the token at its place


def convention_of(config: Config, layers: int) -> BlockConvention:
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
    return BlockConvention(
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
    around_attention: Convolution | None
    around_mlp: Convolution | None


@dataclass(frozen=True, slots=True)
class BlockRows:
    """The places of the rows of a forward's blocks, and their visible slots."""

    slots: Tensor
    positions: Tensor
    places: Tensor  # in their block
    looks: Sequence[PoolAttention]  # of each layer


class Dflash:
    """The arithmetic of a drafter's layers, for rows of blocks and for states of committed tokens."""

    def __init__(self, config: Config, weights: Weights, trunk: Trunk) -> None:
        own, convention = dict(config.get("dflash_config") or {}), convention_of(config, trunk.layers)
        config = flat(config)
        named = (*weights, *filter(own.get, own))
        later = next((name for name in named if any(part in name for part in (*FURTHER, *FURTHER_KEYS))), "")
        if later or config.get("rope_is_neox_style") is False:
            raise ModelError(f"it has {later or 'an interleaved rotation'}, which duoactor does not compute yet")
        self.convention, self._trunk = convention, trunk
        hidden, parts = int(config["hidden_size"]), len(convention.taps)
        if hidden != trunk.hidden or weights["fc.weight"].shape[1] != parts * trunk.hidden:
            read = weights["fc.weight"].shape[1] // parts
            raise ModelError(f"it reads states of {read} numbers and the target's have {trunk.hidden}")
        if (deepest := max(convention.taps)) > trunk.layers:
            raise ModelError(f"it reads layer {deepest} and the target has {trunk.layers}")
        if convention.mask_token >= trunk.vocabulary and "mask_embedding" not in weights:
            raise ModelError(f"its mask is token {convention.mask_token} and the target knows {trunk.vocabulary}")
        self._embedding = weights.get("embed_tokens.weight")
        if self._embedding is not None:
            self._embedding = self._embedding.to(trunk.device, trunk.dtype)
        head, ids = weights.get("lm_head.weight"), weights.get("d2t")
        self._head = trunk.logits if head is None else trunk.linear(head)
        self._ids = None if ids is None else (ids.cpu() + torch.arange(len(ids))).to(trunk.device)
        self._pairs = pairs_in(weights, trunk, int(own.get("selector_top_k", 16)))
        self.heads = int(config["num_attention_heads"])
        kv_heads = int(config.get("num_key_value_heads") or self.heads)
        width = int(config.get("head_dim") or hidden // self.heads)
        self.head_width = width
        self.shape = KVShape.alike(int(config["num_hidden_layers"]), kv_heads, width)
        self._eps = float(config.get("rms_norm_eps", 1e-6))
        small = {name: tensor for name, tensor in weights.items() if tensor.ndim == 1}
        self._small = {name: tensor.to(trunk.device, trunk.dtype) for name, tensor in small.items()}
        self._join = trunk.linear(weights["fc.weight"])
        self._layers = [self._layer(weights, f"layers.{index}") for index in range(len(self.shape.heads))]
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
            convolution_in(weights, f"{name}.attention_conv", self._trunk),
            convolution_in(weights, f"{name}.mlp_conv", self._trunk),
        )

    def remember(self, pool: KVPool, tapped: Tensor, slots: Tensor, positions: Tensor) -> None:
        """Write the keys and values of committed tokens."""
        context = rms(self._join(tapped), self._small["hidden_norm.weight"], self._eps)
        turns = self._rotary(context[None], positions[None])
        for place, layer in enumerate(self._layers):
            pool.write(place, slots, *self._keyed(layer, context, turns))

    def block(self, pool: KVPool, ids: Tensor, rows: BlockRows) -> Tensor:
        """What logits are made of, of every row."""
        x = self._trunk.embed(ids) if self._embedding is None else self._embedding[ids]
        if "mask_embedding" in self._small:
            x = torch.where((ids == self.convention.mask_token)[:, None], self._small["mask_embedding"], x)
        turns = self._rotary(x[None], rows.positions[None])
        width = self.head_width
        for place, layer in enumerate(self._layers):

            def attend(read: Tensor, place: int = place, layer: _BlockLayer = layer) -> Tensor:
                pool.write(place, rows.slots, *self._keyed(layer, read, turns))
                queries = self._turned(layer.query(read).view(len(read), -1, width), layer.query_norm, turns)
                return layer.out(rows.looks[place](place, queries.transpose(0, 1).contiguous()))

            def mlp(read: Tensor, layer: _BlockLayer = layer) -> Tensor:
                gate, up = layer.gate_up(read).chunk(2, 1)
                return layer.down(functional.silu(gate) * up)

            x = x + _around(layer.around_attention, attend, rms(x, layer.input_norm, self._eps), rows.places)
            x = x + _around(layer.around_mlp, mlp, rms(x, layer.inner_norm, self._eps), rows.places)
        return rms(x, self._small["norm.weight"], self._eps)

    def logits(self, x: Tensor) -> Tensor:
        """Of the tokens that it covers."""
        return self._head(x).float()

    def behind(self, logits: Tensor, x: Tensor, before: Tensor) -> Tensor:
        """Logits of all tokens, each row behind a token. ``logits``: made of ``x``."""
        if self._pairs is not None:
            logits = self._pairs(logits, x, before)
        if self._ids is None:
            return logits
        whole = logits.new_full((len(logits), self._trunk.vocabulary), -torch.inf)
        return whole.index_copy_(1, self._ids, logits)

    def _keyed(self, layer: _BlockLayer, x: Tensor, turns: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Keys and values ``(kv_heads, rows, width)``."""
        keys, values = layer.key_value(x).view(len(x), -1, self.head_width).chunk(2, 1)
        return self._turned(keys, layer.key_norm, turns), values.transpose(0, 1)

    def _turned(self, x: Tensor, norm: Tensor | None, turns: tuple[Tensor, Tensor]) -> Tensor:
        """From ``(rows, heads, width)`` to ``(heads, rows, width)``."""
        x = (x if norm is None else rms(x, norm, self._eps)).transpose(0, 1)
        first, second = x.chunk(2, -1)
        return x * turns[0] + torch.cat([-second, first], -1) * turns[1]


def _around(convolution: Convolution | None, part: PerRow, x: Tensor, places: Tensor) -> Tensor:
    """A part of a layer, with the convolutions before and behind it."""
    if convolution is None:
        return part(x)
    before, behind = convolution.weights(x).unbind(1)
    return convolution.apply(part(convolution.apply(x, before, places)), behind, places)


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
    def blocks(self, batch: FlatBatch, masks: Sequence[Sequence[Mask]]) -> tuple[Tensor, Tensor]:
        """Of all rows float32 logits, and the states behind them. ``masks``: by layer, of each segment."""
        ids, slots, positions = (
            torch.tensor(part, dtype=torch.int64, device=self.device)
            for part in (batch.tokens, batch.slots, batch.positions)
        )
        looks: list[PoolAttention] = []
        for layer in masks:
            stretches = []
            for segment, visible in zip(batch.segments, layer, strict=True):
                mask = torch.from_numpy(np.where(visible, np.float32(0), np.float32(-np.inf)))
                stretches.append(Stretch(segment.base, segment.span, mask.to(self.device, self.dtype)))
            looks.append(PoolAttention(self.pool, stretches, self.head.heads, self.head.head_width**-0.5, exact=False))
        places = torch.cat([torch.arange(segment.rows) for segment in batch.segments]).to(self.device)
        x = self.head.block(self.pool, ids, BlockRows(slots, positions, places, looks))
        return self.head.logits(x), x


class BlockMirror(HeadMirror):
    __slots__ = ("ahead", "ahead_of")

    ahead: Sequence[tuple[Tensor, Tensor]]  # at each place behind the root: logits, and the states behind them
    ahead_of: int  # tokens of the text behind which they are; 0: there are none


class BlockDraft(HeadDraft):
    """A :class:`actors.models.DraftModel`: expansions of one text share the root's forward."""

    kind = BlockMirror
    blocks: BlockEngine
    _mirrors: dict[int, BlockMirror]  # type: ignore[assignment]

    def __init__(self, engine: BlockEngine, states: States, candidates: int = 8) -> None:
        Draft.__init__(self, engine, candidates, SCRATCH)  # type: ignore[arg-type]
        self.blocks, self.states = engine, states

    def missing(self, handle: int) -> int:
        """Nothing: what the target has states of is read as it comes."""
        self._feed(self._mirrors[handle])
        return 0

    def prefill(self, handle: int, limit: int) -> None:
        self._feed(self._mirrors[handle])

    def _feed(self, m: HeadMirror) -> None:
        found = None if m.source is None else self.states.take(m.source)
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
        found: list[tuple[Tensor, Tensor]] = []
        before: list[int] = []
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
                found.append(m.ahead[depth])
                before.append(leaf.token)
        if not rows:
            return expansions
        logits, x = (torch.stack(part) for part in zip(*found, strict=True))
        with torch.inference_mode():
            logits = self.blocks.head.behind(logits, x, torch.tensor(before, device=x.device))
        ranked = rank(logits[:, : self.info.vocab_size], rows, self.candidates)
        for row, (ids, probs) in zip(rows, ranked, strict=True):
            expansions[row.index] = Expansion(row.slot, tuple(ids), tuple(probs))
        return expansions

    def _look_ahead(self, handles: Sequence[int]) -> None:
        """Compute the blocks of several texts in one forward."""
        batch, masks = FlatBatch(), [list[Mask]() for _ in self.blocks.head.convention.windows]
        mirrors = [self._mirrors[handle] for handle in dict.fromkeys(handles)]
        counts: list[int] = []
        for m in mirrors:
            self._feed(m)
            self._add_block(m, batch, masks)
            counts.append(batch.segments[-1].rows)
        if not mirrors:
            return
        made = self.blocks.blocks(batch, masks)
        first = 0 if self.blocks.head.convention.from_root else 1
        for m, logits, x in zip(mirrors, *(torch.split(part, counts) for part in made), strict=True):
            m.ahead, m.ahead_of = [*zip(logits[first:], x[first:], strict=True)], m.length

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
