"""The drafter's model on top of an :class:`Engine`: a mirror of committed texts, and tree nodes in scratch slots.

A request's region holds its scratch slots in front and the canonical slots (one per position) behind them. Scratch
slots next to the text are taken first, so that one slice from the lowest in use to the committed length covers both and
little else: behind a thousand tokens a small model's step reads more bytes of keys and values than of its layers.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actors.engines.engine import Engine, Segment
from actors.engines.noise import gumbel_host, keys
from actors.engines.pool import RegionAllocator
from actors.engines.sampler import SamplerState
from actors.models import Expansion, Leaf, ModelInfo
from protocols.errors import CannotDraft, PoolFull
from protocols.messages import Sampling

CHUNK = 256  # committed tokens computed in one forward
SPAN = 64  # segments end at multiples of this
SCRATCH = 128  # expanded tree nodes of one request
RANKED = 256  # likeliest tokens that compete once noise is added; 64 hold 0.87 of a small draft's mass at T=1, 256 0.94

Value = TypeVar("Value", bound=np.generic)


class _Mirror:
    """One request. Scratch slots are numbered from 0; ``computed`` committed tokens have their K/V in place."""

    __slots__ = ("base", "computed", "free", "held", "length", "room", "sampler", "tokens")

    def __init__(self, base: int, scratch: int, room: int, sampler: SamplerState, prefix: Sequence[int]) -> None:
        self.base = base
        self.room = room  # tokens of the text at most
        self.sampler = sampler
        self.tokens = list(prefix)
        self.length = len(prefix)
        self.computed = 0
        self.free = list(range(scratch))
        self.held = [-1] * scratch  # the token in each scratch slot; -1: free

    def take(self, token: int) -> int:
        if not self.free:
            raise PoolFull(f"All {len(self.held)} scratch slots hold tree nodes; release dead ones first.")
        slot = self.free.pop()
        self.held[slot] = token
        return slot

    def give_back(self, slot: int) -> None:
        if self.held[slot] >= 0:
            self.held[slot] = -1
            self.free.append(slot)


class Draft:
    """:class:`actors.models.DraftModel`. Owned by one compute thread."""

    def __init__(self, engine: Engine, candidates: int = 8, scratch_slots: int = SCRATCH) -> None:
        """``candidates``: how many children an expansion names; ``scratch_slots``: expanded nodes per request."""
        assert scratch_slots % SPAN == 0
        self.engine = engine
        self.candidates = min(candidates, engine.info.vocab_size)
        self._scratch = scratch_slots
        self._allocator = RegionAllocator(engine.pool.slots)
        self._mirrors: dict[int, _Mirror] = {}
        self._next_handle = 0

    @staticmethod
    def full_request(max_context: int) -> int:
        """Slots that a request of the whole context takes."""
        return SCRATCH + -(-max_context // SPAN) * SPAN

    @property
    def info(self) -> ModelInfo:
        return self.engine.info

    @property
    def scratch_slots(self) -> int:
        return self._scratch

    def open(self, prefix: Sequence[int], prompt_len: int, sampling: Sampling) -> int:
        """Reserves room for ``prompt_len + max_tokens``, or for the draft's own context if that is shorter; the first
        root expansion computes the prefix."""
        self._check(prefix, len(prefix))
        room = min(max(len(prefix) + 1, prompt_len + sampling.max_tokens), self.info.max_context)
        size = self._scratch + -(-room // SPAN) * SPAN
        base = self._allocator.alloc(size)
        sampler = SamplerState(sampling, prefix[:prompt_len], prefix[prompt_len:])
        self._next_handle += 1
        self._mirrors[self._next_handle] = _Mirror(base, self._scratch, room, sampler, prefix)
        return self._next_handle

    def close(self, handle: int) -> None:
        mirror = self._mirrors.pop(handle, None)
        if mirror is not None:
            self._allocator.free(mirror.base)

    def release(self, handle: int, slots: Sequence[int]) -> None:
        """Slots that are free already (those of committed tokens) stay so."""
        mirror = self._mirrors[handle]
        for slot in slots:
            mirror.give_back(slot)

    def commit(self, handle: int, tokens: Sequence[int], slots: Sequence[int]) -> None:
        m = self._mirrors[handle]
        self._check(tokens, m.length + len(tokens))
        if m.length + len(tokens) > m.room:
            raise PoolFull("The committed text has outgrown the slots reserved for it; open the request again.")
        home = m.base + self._scratch
        source: list[int] = []
        target: list[int] = []
        for position, slot in enumerate(slots, m.length):
            if slot < 0:
                continue
            if m.computed == position:  # behind a gap it is of no use: the next root expansion computes all again
                source.append(m.base + slot)
                target.append(home + position)
                m.computed += 1
            m.give_back(slot)
        if source:
            self.engine.pool.copy(source, target)
        m.tokens.extend(tokens)
        m.length += len(tokens)
        m.sampler.append(tokens)

    def _check(self, tokens: Sequence[int], length: int) -> None:
        """CannotDraft if the model has no embedding for one of ``tokens``, or no position for ``length`` of them."""
        info = self.info
        if length > info.max_context:
            raise CannotDraft(
                f"the text has {length} tokens and the context of draft model {info.model_id} holds {info.max_context}"
            )
        if max(tokens, default=0) >= info.vocab_size:
            raise CannotDraft(
                f"the text holds token {max(tokens)} and draft model {info.model_id} knows {info.vocab_size} tokens"
            )

    # --- expansion ---------------------------------------------------------------------------------------------------

    def expand(self, leaves: Sequence[Leaf]) -> list[Expansion]:
        expansions = [Expansion(-1, (), ())] * len(leaves)  # of leaves beyond the context
        groups: dict[int, list[int]] = {}
        for index, leaf in enumerate(leaves):
            if leaf.is_root or self._mirrors[leaf.handle].length + len(leaf.path) < self.info.max_context:
                groups.setdefault(leaf.handle, []).append(index)
        if not groups:
            return expansions
        tokens: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        segments: list[Segment] = []
        wanted: list[int] = []  # rows whose logits are asked for
        rows: list[_Row] = []
        for handle, members in groups.items():
            m = self._mirrors[handle]
            root = leaves[members[0]].is_root
            if root:
                assert len(members) == 1, "a root is the only leaf of its request"
                start = self._catch_up(m, CHUNK)
                tokens += m.tokens[start:]
                positions += range(start, m.length)
                segments.append(self._text(m, start, m.length))
                slots += range(m.base + self._scratch + start, m.base + self._scratch + m.length)
                m.computed = m.length
                wanted.append(len(tokens) - 1)
                rows.append(_Row(members[0], -1, m.sampler, m.length, []))
                continue
            self._catch_up(m, 0)
            chosen = [leaves[index] for index in members]
            taken = [m.take(leaf.token) for leaf in chosen]
            segments.append(self._nodes(m, chosen, taken))
            wanted += range(len(tokens), len(tokens) + len(taken))
            slots += [m.base + slot for slot in taken]
            for index, leaf, slot in zip(members, chosen, taken, strict=True):
                tokens.append(leaf.token)
                position = m.length + len(leaf.path)
                positions.append(position)
                path = [*(m.held[above] for above in leaf.path), leaf.token] if m.sampler.penalised else []
                rows.append(_Row(index, slot, m.sampler, position + 1, path))
        select = None if len(wanted) == len(tokens) else wanted
        logits = self.engine.forward(tokens, positions, slots, segments, select)[:, : self.info.vocab_size]
        for row_, (ids, probs) in zip(rows, rank(logits, rows, self.candidates), strict=True):
            expansions[row_.index] = Expansion(row_.slot, tuple(ids), tuple(probs))
        return expansions

    def _catch_up(self, m: _Mirror, leave: int) -> int:
        """Compute committed tokens until at most ``leave`` are missing; where the missing ones (or the last) start."""
        while m.length - m.computed > leave:
            start, end = m.computed, min(m.computed + CHUNK, m.length)
            home = m.base + self._scratch
            at = list(range(start, end))
            self.engine.forward(
                m.tokens[start:end], at, [home + p for p in at], [self._text(m, start, end)], [end - start - 1]
            )
            m.computed = end
        return min(m.computed, m.length - 1)

    def _text(self, m: _Mirror, start: int, end: int) -> Segment:
        """Rows for the committed tokens ``start .. end``, each of which sees the text up to itself."""
        span = -(-end // SPAN) * SPAN
        visible = np.arange(span) <= np.arange(start, end)[:, None]
        return Segment(end - start, m.base + self._scratch, span, visible, m.room)

    def _nodes(self, m: _Mirror, leaves: Sequence[Leaf], slots: Sequence[int]) -> Segment:
        """Rows for tree nodes in scratch ``slots``: each sees the committed text, its ancestors and itself."""
        lowest = min(min(slots), min((min(leaf.path) for leaf in leaves if leaf.path), default=self._scratch))
        start = lowest // SPAN * SPAN
        home = self._scratch - start
        visible = np.zeros((len(leaves), home - (-m.length // SPAN) * SPAN), dtype=np.bool_)
        visible[:, home : home + m.length] = True
        for view, leaf, slot in zip(visible, leaves, slots, strict=True):
            view[slot - start] = True
            for above in leaf.path:
                view[above - start] = True
        return Segment(len(leaves), m.base + start, visible.shape[1], visible, m.room)


class _Row:
    """A row whose candidates are asked for: the leaf's index, its slot, and what sampling depends on."""

    __slots__ = ("index", "path", "position", "sampler", "slot")

    def __init__(self, index: int, slot: int, sampler: SamplerState, position: int, path: list[int]) -> None:
        self.index = index
        self.slot = slot
        self.sampler = sampler
        self.position = position  # of the candidates
        self.path = path


def rank(logits: Tensor, rows: Sequence[_Row], count: int) -> list[tuple[list[int], list[float]]]:
    """The ``count`` best candidates of every row and the draft's confidence in each (see :class:`Expansion`)."""
    if any(row.sampler.penalised for row in rows):
        logits = _penalised(logits, rows)
    greedy = [row.sampler.greedy for row in rows]
    if all(greedy):
        return _rank_greedy(logits, count)
    if not any(greedy):
        return _rank_noisy(logits, rows, count)
    out: list[tuple[list[int], list[float]]] = [([], [])] * len(rows)
    for kind in (True, False):
        chosen = [i for i, is_greedy in enumerate(greedy) if is_greedy is kind]
        part = logits[chosen]
        found = _rank_greedy(part, count) if kind else _rank_noisy(part, [rows[i] for i in chosen], count)
        for i, answer in zip(chosen, found, strict=True):
            out[i] = answer
    return out


def _penalised(logits: Tensor, rows: Sequence[_Row]) -> Tensor:
    parts: list[Tensor] = []
    start = 0
    for sampler, members in itertools.groupby(rows, key=lambda row: row.sampler):  # a request's rows are consecutive
        paths = [row.path for row in members]
        parts.append(sampler.penalise(logits[start : start + len(paths)], paths))
        start += len(paths)
    return torch.cat(parts)


def _rank_greedy(logits: Tensor, count: int) -> list[tuple[list[int], list[float]]]:
    probs, ids = logits.softmax(-1).topk(count)
    return list(zip(ids.tolist(), probs.tolist(), strict=True))


def _rank_noisy(logits: Tensor, rows: Sequence[_Row], count: int) -> list[tuple[list[int], list[float]]]:
    """Add the shared noise to the ``RANKED`` likeliest tokens only: it is random access."""
    settings = [row.sampler.sampling for row in rows]
    ids, values = _likeliest(logits, min(RANKED, logits.shape[1]))
    filtered = any(s.top_k or s.top_p < 1 or s.min_p for s in settings)
    if filtered:
        best_first = np.argsort(-values, axis=1)
        ids, values = _picked(ids, best_first), _picked(values, best_first)
    scaled = values * np.array([1.0 / s.temperature for s in settings], dtype=np.float32)[:, None]
    scores = scaled + gumbel_host([keys(s.seed, r.position) for s, r in zip(settings, rows, strict=True)], ids)
    if filtered:
        scores[_removed(logits, scaled, settings)] = -np.inf
    order = np.argsort(-scores, axis=1)[:, :count]
    best = _picked(scores, order)
    scores -= best[:, :1]
    mass = np.exp(best - best[:, :1]) / np.add.reduce(np.exp(scores, out=scores), 1, keepdims=True)
    return list(zip(_picked(ids, order).tolist(), mass.tolist(), strict=True))


def _picked(table: NDArray[Value], columns: NDArray[np.int64]) -> NDArray[Value]:
    """``np.take_along_axis(table, columns, 1)`` without its overhead: half the time for a row."""
    picked: NDArray[Value] = table[np.arange(len(table))[:, None], columns]
    return picked


def _likeliest(logits: Tensor, count: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The ids and values ``(rows, count)`` of the largest logits, in no order."""
    if logits.device.type == "cpu" and count < logits.shape[1]:  # five times as fast as topk for 256 of 8 rows
        host: NDArray[np.float32] = logits.numpy(force=True)
        ids = np.argpartition(host, -count, axis=1)[:, -count:]
        return ids, _picked(host, ids)
    best = logits.topk(count)
    return best.indices.numpy(force=True), best.values.numpy(force=True)


def _removed(logits: Tensor, scaled: NDArray[np.float32], settings: Sequence[Sampling]) -> NDArray[np.bool_]:
    """What top_k, top_p and min_p take away from ``scaled`` (best first); only near enough to the target's rule."""
    width = scaled.shape[1]
    removed = np.zeros(scaled.shape, dtype=np.bool_)
    for i, s in enumerate(settings):
        if 0 < s.top_k < width:
            removed[i, s.top_k :] = True
        if s.top_p < 1:
            if 0 < s.top_k <= width:
                mass = np.exp(scaled[i, : s.top_k] - scaled[i, 0]).sum()
            else:
                mass = float((logits[i] * (1.0 / s.temperature) - float(scaled[i, 0])).exp_().sum())
            probs = np.exp(scaled[i] - scaled[i, 0]) / mass
            removed[i] |= np.cumsum(probs) - probs >= s.top_p
        if s.min_p:
            removed[i] |= scaled[i] < scaled[i, 0] + np.log(s.min_p)
    removed[:, 0] = False
    return removed
