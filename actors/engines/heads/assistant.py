"""Gemma 4's assistants: a few layers that have no keys and values of their own and read the target's in place.

All rows of a round stand where the root does, and see what the target has computed: the text up to the root. So there
is nothing to read ahead of a prompt, and nothing to mend after a rejection.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from actors.engines.cache.memory import MAX_REQUESTS
from actors.engines.cache.pool import KVPool, KVShape, attention_layers, of_layer
from actors.engines.decoder.cpu.rings import Rings
from actors.engines.decoder.torch.attention import PoolAttention, Stretch
from actors.engines.drafts.draft import SCRATCH, Draft
from actors.engines.drafts.mirror import Mirror
from actors.engines.drafts.ranking import Row, rank
from actors.engines.engine import Engine, PerRow, Trunk
from actors.engines.flat_batch import SPAN, align
from actors.engines.heads.draft import HeadDraft, HeadMirror
from actors.engines.heads.head import rms
from actors.engines.sampling.sampler import SamplerState
from actors.engines.targets.states import States
from actors.engines.targets.target import Target
from actors.models import Expansion, Leaf, ModelInfo
from protocols.errors import ModelError

SLIDING = "sliding_attention"
Weights = Mapping[str, Tensor]


@dataclass(slots=True)
class _Reader:
    """A layer of the assistant."""

    kind: str  # of the target's layers; it reads the last one's keys and values
    width: int  # of a head
    input_norm: Tensor
    query_norm: Tensor
    query: PerRow
    out: PerRow
    behind_attention: Tensor
    inner_norm: Tensor
    gate_up: PerRow
    down: PerRow
    behind_mlp: Tensor
    scale: Tensor


@dataclass(frozen=True, slots=True)
class _Sight:
    """Rows of one text in a forward: they see this many of the target's slots from ``first`` on, and of layers that
    keep a ring the slots from ``ring`` on."""

    first: int
    ring: int
    tokens: int
    rows: int


class Assistant:
    """The arithmetic of an assistant's layers over the target's keys and values."""

    def __init__(self, config: Any, weights: Weights, trunk: Trunk, engine: Engine, target: Any) -> None:
        """``config`` and ``target``: the assistant's and the target's configurations, of ``transformers``; ``engine``:
        the target's."""
        text, self._trunk, self._dtype = config.get_text_config(), trunk, engine.dtype
        self._check(config, weights, trunk)
        rings = engine.recurrence if isinstance(engine.recurrence, Rings) else None
        self._ring = 0 if rings is None else rings.length
        self._places = _last_layers(target.get_text_config(), rings is not None)
        self._pools = {kind: engine.pool if rings is None or kind != SLIDING else rings.pool for kind in self._places}
        self.heads = int(text.num_attention_heads)
        self._eps, self._window = float(text.rms_norm_eps), int(text.sliding_window or 0)
        small = {name: tensor for name, tensor in weights.items() if tensor.ndim == 1 and tensor.is_floating_point()}
        self._small = {name: tensor.to(trunk.device, trunk.dtype) for name, tensor in small.items()}
        self._layers = [self._layer(text, weights, index) for index in range(text.num_hidden_layers)]
        self._join, self._back = (trunk.linear(weights[f"{name}_projection.weight"]) for name in ("pre", "post"))
        from transformers.activations import ACT2FN
        from transformers.models.gemma4.modeling_gemma4 import Gemma4TextRotaryEmbedding

        self.nothing = torch.zeros(trunk.hidden, dtype=trunk.dtype, device=trunk.device)
        self._act, self._rotary = ACT2FN[text.hidden_activation], Gemma4TextRotaryEmbedding(text).to(trunk.device)
        table = weights["model.embed_tokens.weight"]
        self._clusters = _Clusters(config, weights, table, trunk) if config.use_ordered_embeddings else None
        self._head = None if self._clusters else trunk.linear(table)

    def _check(self, config: Any, weights: Weights, trunk: Trunk) -> None:
        """Raise ModelError for an assistant of another target, or of a kind that is not read."""
        if config.backbone_hidden_size != trunk.hidden:
            raise ModelError(f"it reads states of {config.backbone_hidden_size} numbers and the target's have "
                             f"{trunk.hidden}")  # fmt: skip
        if (known := len(weights["model.embed_tokens.weight"])) != trunk.vocabulary:
            raise ModelError(f"it knows {known} tokens and the target {trunk.vocabulary}")
        if later := next((name for name in weights if name.endswith("bias")), ""):
            raise ModelError(f"it has {later}, which duoactor does not compute yet")

    def _layer(self, text: Any, weights: Weights, index: int) -> _Reader:
        name, kind, width = f"model.layers.{index}", text.layer_types[index], of_layer(text, index, "head_dim")
        if kind not in self._places:
            raise ModelError(f"it reads a {kind} layer and the target has none with keys of its own")
        pool = self._pools[kind]
        assert isinstance(pool, KVPool)
        kv_heads, _, own = pool.keys[self._places[kind]].shape
        if own != width or self.heads % kv_heads:
            raise ModelError(f"its {kind} layers have {self.heads} heads of {width} numbers and the target's keys "
                             f"{kv_heads} of {own}")  # fmt: skip

        def matrix(*parts: str) -> PerRow:
            return self._trunk.linear(torch.cat([weights[f"{name}.{part}_proj.weight"] for part in parts]))

        def norm(part: str) -> Tensor:
            return self._small[f"{name}.{part}.weight"]

        return _Reader(
            kind,
            width,
            norm("input_layernorm"),
            norm("self_attn.q_norm"),
            matrix("self_attn.q"),
            matrix("self_attn.o"),
            norm("post_attention_layernorm"),
            norm("pre_feedforward_layernorm"),
            matrix("mlp.gate", "mlp.up"),
            matrix("mlp.down"),
            norm("post_feedforward_layernorm"),
            self._small[f"{name}.layer_scalar"],
        )

    @torch.inference_mode()
    def feature(self, tapped: Tensor) -> Tensor:
        """What rows read out of what the target's last layer gave."""
        return self._trunk.norm(tapped.to(self._trunk.device, self._trunk.dtype))

    @torch.inference_mode()
    def step(self, ids: Tensor, states: Tensor, sights: Sequence[_Sight]) -> tuple[Tensor, Tensor]:
        """Of rows of tokens and the states before them float32 logits, and the states that the rows behind read."""
        x = self._join(torch.cat([self._trunk.embed(ids), states], 1))
        roots = [sight.tokens for sight in sights for _ in range(sight.rows)]
        positions = torch.tensor([roots], device=x.device)
        kinds = {layer.kind for layer in self._layers}
        turns = {kind: self._rotary(x[None], positions, kind) for kind in kinds}
        looks = {kind: self._look(kind, sights) for kind in kinds}
        for layer in self._layers:
            queries = layer.query(rms(x, layer.input_norm, self._eps)).view(len(x), self.heads, layer.width)
            queries = self._turned(rms(queries, layer.query_norm, self._eps), *turns[layer.kind])
            seen = looks[layer.kind](self._places[layer.kind], queries.to(self._dtype)).to(x.dtype)
            x = x + rms(layer.out(seen), layer.behind_attention, self._eps)
            gate, up = layer.gate_up(rms(x, layer.inner_norm, self._eps)).chunk(2, 1)
            x = (x + rms(layer.down(self._act(gate) * up), layer.behind_mlp, self._eps)) * layer.scale
        normed = rms(x, self._small["model.norm.weight"], self._eps)
        made = self._clusters(normed) if self._head is None else self._head(normed)  # type: ignore[misc]
        return made.float(), self._back(normed)

    def _turned(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """``(rows, heads, width)``, in the order of the keys."""
        first, second = x.chunk(2, -1)
        turned = x * cos[0, :, None] + torch.cat([-second, first], -1) * sin[0, :, None]
        return torch.stack(turned.chunk(2, -1), -1).flatten(2) if self._trunk.neighbours else turned

    def _look(self, kind: str, sights: Sequence[_Sight]) -> PoolAttention:
        """Layers with windows see one token more than the target's, as transformers has it."""
        stretches, pool = [], self._pools[kind]
        assert isinstance(pool, KVPool)
        for sight in sights:
            least = max(0, sight.tokens - 1 - self._window) if kind == SLIDING else 0
            if kind == SLIDING and self._ring:
                start, slots = sight.ring, torch.arange(min(self._ring, align(sight.tokens)))
                places = slots + (sight.tokens - 1 - slots) // self._ring * self._ring
            else:
                begin = least // SPAN * SPAN
                start, places = sight.first + begin, torch.arange(begin, begin + align(sight.tokens - begin))
            hidden = (places < least) | (places >= sight.tokens)
            mask = torch.zeros(sight.rows, len(places)).masked_fill(hidden, -torch.inf)
            stretches.append(Stretch(start, len(places), mask.to(pool.device, pool.dtype)))
        return PoolAttention(pool, stretches, self.heads, 1.0, exact=False)


class _Clusters:
    """Logits of the tokens in the likeliest clusters alone; the others have none."""

    def __init__(self, config: Any, weights: Weights, table: Tensor, trunk: Trunk) -> None:
        count, self._vocabulary = int(config.num_centroids), len(table)
        order = weights["masked_embedding.token_ordering"].long()
        self._most = int(config.centroid_intermediate_top_k)
        self._score = trunk.linear(weights["masked_embedding.centroids.weight"])
        self._tokens = order.view(count, -1).to(trunk.device)
        self._rows = table[order].view(count, -1, table.shape[1]).to(trunk.device, trunk.dtype)

    def __call__(self, x: Tensor) -> Tensor:
        best = self._score(x).topk(self._most, 1).indices
        logits = torch.einsum("rcth,rh->rct", self._rows[best], x).flatten(1)
        whole = logits.new_full((len(x), self._vocabulary), -torch.inf)
        return whole.scatter_(1, self._tokens[best].flatten(1), logits)


def _last_layers(text: Any, apart: bool) -> dict[str, int]:
    """The place in its pool of the last layer of each kind that has keys and values of its own. ``apart``: each kind
    has a pool."""
    if not str(text.model_type).startswith("gemma4"):
        raise ModelError("it reads keys and values of Gemma 4")
    kinds = [text.layer_types[layer] for layer in attention_layers(text)]
    return {kind: kinds.count(kind) - 1 if apart else place for place, kind in enumerate(kinds)}


class AssistantMirror(HeadMirror):
    __slots__ = ("made", "root", "state")

    def __init__(self, base: int, scratch: int, room: int, sampler: SamplerState, prefix: Sequence[int]) -> None:
        super().__init__(base, scratch, room, sampler, prefix)
        self.state: Tensor | None = None  # the target's, of the token before the root
        self.root: Tensor | None = None  # the state that the assistant made of the root
        self.made: dict[int, Tensor] = {}  # and of nodes, by scratch slot


class _NoEngine:
    """What :class:`actors.engines.drafts.draft.Draft` asks of an engine; its slots hold nothing."""

    draft_vocabulary = None

    def __init__(self, info: ModelInfo, target: Target) -> None:
        self.info, slots = info, target.kv_slots + MAX_REQUESTS * SCRATCH
        self.pool = KVPool(KVShape(()), slots, target.engine.dtype, target.engine.device)


class AssistantDraft(HeadDraft):
    """A :class:`actors.models.DraftModel` without keys and values."""

    kind = AssistantMirror
    _mirrors: dict[int, AssistantMirror]  # type: ignore[assignment]

    def __init__(self, model: Assistant, info: ModelInfo, target: Target, states: States, candidates: int = 8) -> None:
        Draft.__init__(self, _NoEngine(info, target), candidates, SCRATCH)  # type: ignore[arg-type]
        self._model, self._target, self.states = model, target, states

    def missing(self, handle: int) -> int:
        """Nothing: the target has read the text."""
        self._feed(self._mirrors[handle])
        return 0

    def prefill(self, handle: int, limit: int) -> None:
        self._feed(self._mirrors[handle])

    def _feed(self, m: Mirror) -> None:
        assert isinstance(m, AssistantMirror)
        found = None if m.source is None else self.states.take(m.source)
        if found is not None:
            position, tapped = found
            m.fed, m.root = position + len(tapped), None
            m.state = self._model.feature(tapped[-1:])[0]

    def expand(self, leaves: Sequence[Leaf]) -> list[Expansion]:
        """See :class:`actors.models.DraftModel`. There are no children where the target's state is not known."""
        by_text: dict[int, list[int]] = {}
        for index, leaf in enumerate(leaves):
            by_text.setdefault(leaf.handle, []).append(index)
        expansions = [Expansion(-1, (), ())] * len(leaves)
        rows: list[Row] = []
        tokens: list[int] = []
        states: list[Tensor] = []
        sights: list[_Sight] = []
        for handle, members in by_text.items():
            m = self._mirrors[handle]
            self._feed(m)
            first, ring = (0, 0) if m.source is None else self._target.first_slots(m.source)
            before = len(rows)
            for index in members:
                leaf = leaves[index]
                slot, above = -1 if leaf.is_root else m.take(leaf.token), self._above(m, leaf)
                expansions[index] = Expansion(slot, (), ())
                depth = 0 if leaf.is_root else 1 + len(leaf.path)
                if above is not None and m.length + depth < self.info.max_context:
                    path = [*(m.held[place] for place in leaf.path), leaf.token] if depth else []
                    rows.append(Row(index, slot, m.sampler, m.length + depth, path if m.sampler.penalised else []))
                    tokens.append(leaf.token if depth else m.tokens[-1])
                    states.append(above)
            if len(rows) > before:
                sights.append(_Sight(first, ring, m.length - 1, len(rows) - before))
        if not rows:
            return expansions
        ids = torch.tensor(tokens, device=states[0].device)
        logits, made = self._model.step(ids, torch.stack(states), sights)
        for row, state in zip(rows, made, strict=True):
            m = self._mirrors[leaves[row.index].handle]
            if row.slot < 0:
                m.root = state
            else:
                m.made[row.slot] = state
        found = rank(logits[:, : self.info.vocab_size], rows, self.candidates)
        for row, (best, chances) in zip(rows, found, strict=True):
            expansions[row.index] = Expansion(row.slot, tuple(best), tuple(chances))
        return expansions

    def _above(self, m: AssistantMirror, leaf: Leaf) -> Tensor | None:
        """The state that a leaf reads. A text that the target does not have is read for the time that it takes."""
        if m.source is None:
            return self._model.nothing
        if leaf.is_root:
            return m.state if m.fed == m.length - 1 else None
        return m.made.get(leaf.path[-1]) if leaf.path else m.root
