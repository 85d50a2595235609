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

from actors.engines.cache.pool import KVPool, KVShape
from actors.engines.compute.rows import BatchRows
from actors.engines.decoder.cpu.rings import Rings
from actors.engines.decoder.families import describe
from actors.engines.decoder.spec import Attention
from actors.engines.decoder.torch.attention import PoolAttention, Stretch
from actors.engines.drafts.ranking import Row
from actors.engines.engine import Engine, PerRow, Trunk
from actors.engines.flat_batch import SPAN, align
from actors.engines.heads.draft import HeadDraft, HeadMirror
from actors.engines.heads.engine import HeadEngine
from actors.engines.heads.head import Head, rms
from actors.engines.heads.layer import HeadLayers, Weights, read_layers
from actors.engines.targets.states import States
from actors.engines.targets.target import Target
from actors.models import Expansion, Leaf
from protocols.errors import ModelError

SLIDING = "sliding_attention"
ROOT, BEFORE = -1, -2  # values that stand in place of a scratch slot


@dataclass(frozen=True, slots=True)
class _Sight:
    """Rows of one text in a forward: they see this many of the target's slots from ``first`` on, and of layers that
    keep a ring the slots from ``ring`` on."""

    first: int
    ring: int
    tokens: int
    rows: int


class Assistant(Head):
    """The arithmetic of an assistant's layers over the target's keys and values."""

    width, shape = 0, KVShape(())

    def __init__(self, config: Any, weights: Weights, trunk: Trunk, engine: Engine, target: Any) -> None:
        """``config`` and ``target``: the assistant's and the target's configurations, of ``transformers``; ``engine``:
        the target's."""
        text, self._trunk, self.taps = config.get_text_config(), trunk, (trunk.layers,)
        self._check(config, weights, trunk)
        rings = engine.recurrence if isinstance(engine.recurrence, Rings) else None
        self._ring = 0 if rings is None else rings.length
        places, kinds = _last_layers(target.get_text_config(), rings is not None), text.layer_types
        pools = {kind: engine.pool if rings is None or kind != SLIDING else rings.pool for kind in places}
        self._window, eps, spec = int(text.sliding_window or 0), float(text.rms_norm_eps), describe(text)
        self._reads: list[_TargetLayer] = []
        for kind, mixer in zip(kinds, spec.attentions, strict=True):
            if kind not in places:
                raise ModelError(f"it reads a {kind} layer and the target has none with keys of its own")
            pool = pools[kind]
            self._reads.append(_TargetLayer(kind, pool, places[kind]))
            self._reads[-1].check(mixer)
        self._keys = _TargetKeys(self._reads)
        self._layers = HeadLayers(spec, read_layers(spec, weights), trunk)
        self._join, self._back = (trunk.linear(weights[f"{name}_projection.weight"]) for name in ("pre", "post"))
        last = weights["model.norm.weight"].to(trunk.device, trunk.dtype)
        self._norm: PerRow = lambda x: rms(x, last, eps)
        self.nothing = torch.zeros(trunk.hidden, dtype=trunk.dtype, device=trunk.device)
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

    @torch.inference_mode()
    def read(self, tapped: Tensor) -> Tensor:
        """The states that rows read: outputs of the target's last layer."""
        return self._trunk.norm(tapped.to(self._trunk.device, self._trunk.dtype))

    @torch.inference_mode()
    def rows(self, ids: Tensor, states: Tensor, sights: Sequence[_Sight]) -> tuple[Tensor, Tensor]:
        """Float32 logits of rows of tokens and the states before them, and the states that the rows after read."""
        x = self._join(torch.cat([self._trunk.embed(ids), states], 1))
        roots = torch.tensor([sight.tokens for sight in sights for _ in range(sight.rows)], device=x.device)
        by_kind = {one.kind: self._stretches(one, sights) for one in self._reads}
        sight = _InPlace(self._reads, by_kind)
        rows = BatchRows(ids, roots, self._keys, roots, sight)
        for index in range(len(self._reads)):
            x = self._layers.step(index, x, rows)
        normed = self._norm(x)
        made = self._clusters(normed) if self._head is None else self._head(normed)  # type: ignore[misc]
        return made.float(), self._back(normed)

    def _stretches(self, read: _TargetLayer, sights: Sequence[_Sight]) -> list[Stretch]:
        """Layers with windows see one token more than the target's, as transformers has it."""
        stretches, kind, pool = [], read.kind, read.pool
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
        return stretches


@dataclass(frozen=True, slots=True)
class _TargetLayer:
    """A layer of the target that a layer of the assistant reads keys and values of."""

    kind: str
    pool: KVPool
    place: int  # its place in the pool

    def check(self, mixer: Attention) -> None:
        """``mixer``: the assistant's."""
        kv_heads, _, own = self.pool.keys[self.place].shape
        if own != mixer.width or mixer.heads % kv_heads:
            raise ModelError(f"its {self.kind} layers have {mixer.heads} heads of {mixer.width} numbers and the "
                             f"target's keys {kv_heads} of {own}")  # fmt: skip


class _TargetKeys:
    """See :class:`actors.engines.compute.rows.LayerKeys`."""

    def __init__(self, read: Sequence[_TargetLayer]) -> None:
        self.keys = [one.pool.keys[one.place] for one in read]
        self.values = [one.pool.values[one.place] for one in read]


class _InPlace:
    """A :class:`~actors.engines.compute.rows.SlotSight` of the target's slots."""

    def __init__(self, read: Sequence[_TargetLayer], stretches: Mapping[str, Sequence[Stretch]]) -> None:
        self._read, self._stretches = read, stretches
        self._attention: dict[str, PoolAttention] = {}

    def __call__(self, place: int, attention: Attention, queries: Tensor, sinks: Tensor | None) -> Tensor:
        read = self._read[place]
        if read.kind not in self._attention:
            heads = attention.heads, read.pool.keys[read.place].shape[0]
            stretches = self._stretches[read.kind]
            self._attention[read.kind] = PoolAttention(read.pool, stretches, heads, attention.scale, exact=False)
        return self._attention[read.kind](read.place, queries.to(read.pool.dtype)).to(queries.dtype)


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
    mixers = zip(text.layer_types, describe(text).attentions, strict=True)
    kinds = [kind for kind, mixer in mixers if mixer.shares is None]
    return {kind: kinds.count(kind) - 1 if apart else place for place, kind in enumerate(kinds)}


class AssistantMirror(HeadMirror):
    __slots__ = ("made",)

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        # states by the scratch slot of their node, of the root, and of the token before it
        self.made: dict[int, Tensor] = {}


class AssistantDraft(HeadDraft):
    """A :class:`actors.models.DraftModel` without keys and values."""

    kind = AssistantMirror
    replays = computes_text = False
    _mirrors: dict[int, AssistantMirror]  # type: ignore[assignment]

    def __init__(self, model: Assistant, engine: HeadEngine, target: Target) -> None:
        """``engine``: of the model."""
        super().__init__(engine, States(model.taps))
        self._model, self._target = model, target

    def _feed(self, m: HeadMirror) -> None:
        assert isinstance(m, AssistantMirror)
        found = None if m.source is None else self.states.take(m.source)
        if found is not None:
            position, tapped = found
            m.fed, m.made = position + len(tapped), {BEFORE: self._model.read(tapped[-1:])[0]}

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
                row = self.row_of(m, index, leaf, slot)
                if above is not None and row.position < self.info.max_context:
                    rows.append(row)
                    tokens.append(m.tokens[-1] if leaf.is_root else leaf.token)
                    states.append(above)
            if len(rows) > before:
                sights.append(_Sight(first, ring, m.length - 1, len(rows) - before))
        if not rows:
            return expansions
        ids = torch.tensor(tokens, device=states[0].device)
        logits, made = self._model.rows(ids, torch.stack(states), sights)
        for row, state in zip(rows, made, strict=True):
            self._mirrors[leaves[row.index].handle].made[row.slot] = state
        self.name(expansions, rows, logits)
        return expansions

    def _above(self, m: AssistantMirror, leaf: Leaf) -> Tensor | None:
        """The state that a leaf reads. A text that the target does not have is read for the time that it takes."""
        if not leaf.is_root:
            return m.made.get(leaf.path[-1] if leaf.path else ROOT)
        if m.source is None:
            return self._model.nothing
        return m.made.get(BEFORE) if m.fed == m.length - 1 else None
