"""The drafter's model on top of an :class:`Engine`: a mirror of committed texts, and tree nodes in scratch slots.

A request's region holds its scratch slots in front and the canonical slots (one per position) behind them. Scratch
slots next to the text are taken first, so that one slice from the lowest in use to the committed length covers both and
little else: behind a thousand tokens a small model's step reads more bytes of keys and values than of its layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from msgspec.structs import replace
from torch import Tensor

from actors.engines.engine import Engine, Segment
from actors.engines.pool import RegionAllocator
from actors.engines.ranking import Row, choices_of, rank
from actors.engines.sampler import SamplerState
from actors.models import Expansion, Leaf, ModelInfo, common_prefix
from protocols.errors import CannotDraft, ModelError, PoolFull
from protocols.messages import Sampling

CHUNK = 256  # committed tokens computed in one forward
SPAN = 64  # segments end at multiples of this
SCRATCH = 128  # expanded tree nodes of one request


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
            raise PoolFull(f"all {len(self.held)} scratch slots hold tree nodes; release dead ones first")
        slot = self.free.pop()
        self.held[slot] = token
        return slot

    def give_back(self, slot: int) -> None:
        if self.held[slot] >= 0:
            self.held[slot] = -1
            self.free.append(slot)


@dataclass(slots=True)
class _Batch:
    """One forward: its rows, those whose candidates are asked for, and what to undo should it fail."""

    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    wanted: list[int] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    taken: list[tuple[_Mirror, int]] = field(default_factory=list)
    roots: list[_Mirror] = field(default_factory=list)


class Draft:
    """:class:`actors.models.DraftModel`. Owned by one compute thread."""

    def __init__(self, engine: Engine, candidates: int = 8, scratch_slots: int = SCRATCH) -> None:
        """``candidates``: how many children an expansion names; ``scratch_slots``: expanded nodes per request."""
        assert scratch_slots % SPAN == 0
        if engine.recurrence is not None:
            raise ModelError(
                f"model {engine.info.model_id} has recurrent layers, which cannot draft a tree: it runs as a target "
                "only; choose a draft model with attention in every layer, or --draft pld"
            )
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
        """Reserves room for ``prompt_len + max_tokens``, or for the draft's own context if that is shorter."""
        self._check(prefix, len(prefix))
        sampler = self._sampler(prefix, prompt_len, sampling)
        room = self._room(prefix, prompt_len, sampling)
        base = self._allocator.alloc(self._scratch + room)
        self._next_handle += 1
        self._mirrors[self._next_handle] = _Mirror(base, self._scratch, room, sampler, prefix)
        return self._next_handle

    def _sampler(self, prefix: Sequence[int], prompt_len: int, sampling: Sampling) -> SamplerState:
        """Of the biases those that concern tokens which the draft knows: it can guess no others."""
        known = tuple((token, bias) for token, bias in sampling.logit_bias if token < self.info.vocab_size)
        if len(known) < len(sampling.logit_bias):
            sampling = replace(sampling, logit_bias=known)
        return SamplerState(sampling, prefix[:prompt_len], prefix[prompt_len:])

    def _room(self, prefix: Sequence[int], prompt_len: int, sampling: Sampling) -> int:
        room = min(max(len(prefix) + 1, prompt_len + sampling.max_tokens), self.info.max_context)
        return -(-room // SPAN) * SPAN

    def reopen(self, handle: int, prefix: Sequence[int], prompt_len: int, sampling: Sampling) -> None:
        """The next turn of a chat needs more room than the last one: its mirror grows, or moves."""
        old = self._mirrors[handle]
        self._check(prefix, len(prefix))
        sampler = self._sampler(prefix, prompt_len, sampling)
        base, room = old.base, max(old.room, self._room(prefix, prompt_len, sampling))
        computed = min(old.computed, common_prefix(old.tokens, prefix))
        if room > old.room and not self._allocator.resize(base, self._scratch + room):
            base = self._allocator.alloc(self._scratch + room)
            self.engine.pool.duplicate(old.base + self._scratch, base + self._scratch, computed)
            self._allocator.free(old.base)
        self._mirrors[handle] = mirror = _Mirror(base, self._scratch, room, sampler, prefix)
        mirror.computed = computed

    def missing(self, handle: int) -> int:
        mirror = self._mirrors[handle]
        return max(0, mirror.length - 1 - mirror.computed)

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
            raise PoolFull("the committed text has outgrown the slots reserved for it; open the request again")
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
        for token in (max(tokens, default=0), min(tokens, default=0)):
            if not 0 <= token < info.vocab_size:
                raise CannotDraft(
                    f"the text holds token {token} and draft model {info.model_id} knows {info.vocab_size} tokens"
                )

    # --- expansion ---------------------------------------------------------------------------------------------------

    def expand(self, leaves: Sequence[Leaf]) -> list[Expansion]:
        groups: dict[int, list[int]] = {}
        for index, leaf in enumerate(leaves):
            if leaf.is_root or self._mirrors[leaf.handle].length + len(leaf.path) < self.info.max_context:
                groups.setdefault(leaf.handle, []).append(index)
        expansions = [Expansion(-1, (), ())] * len(leaves)  # of leaves beyond the context
        if not groups:
            return expansions
        batch = _Batch()
        try:
            for handle, members in groups.items():
                if leaves[members[0]].is_root:
                    assert len(members) == 1, "a root is the only leaf of its request"
                    self._add_root(batch, handle, members[0])
                else:
                    self._add_nodes(batch, handle, members, [leaves[index] for index in members])
            select = None if len(batch.wanted) == len(batch.tokens) else batch.wanted
            candidates = self._candidates(batch, select)
        except BaseException:
            for mirror, slot in batch.taken:
                mirror.give_back(slot)
            raise
        for mirror in batch.roots:
            mirror.computed = mirror.length
        for row, (ids, probs) in zip(batch.rows, candidates, strict=True):
            expansions[row.index] = Expansion(row.slot, tuple(ids), tuple(probs))
        return expansions

    def _candidates(self, batch: _Batch, select: list[int] | None) -> list[tuple[list[int], list[float]]]:
        """Of every row that is asked for, best first, with the draft's confidence in each."""
        forward = (batch.tokens, batch.positions, batch.slots, batch.segments, select)
        if not any(row.sampler.penalised for row in batch.rows):
            picks = self.engine.pick(*forward, choices_of(batch.rows), self.candidates)
            if picks is not None:
                return list(zip(picks.ids.tolist(), picks.probabilities.tolist(), strict=True))
        return rank(self.engine.forward(*forward)[:, : self.info.vocab_size], batch.rows, self.candidates)

    def _add_root(self, batch: _Batch, handle: int, index: int) -> None:
        m = self._mirrors[handle]
        self.prefill(handle, self.missing(handle) + 1 - CHUNK)
        start = min(m.computed, m.length - 1)
        home = m.base + self._scratch
        batch.tokens += m.tokens[start:]
        batch.positions += range(start, m.length)
        batch.slots += range(home + start, home + m.length)
        batch.segments.append(self._text(m, start, m.length))
        batch.wanted.append(len(batch.tokens) - 1)
        batch.rows.append(Row(index, -1, m.sampler, m.length, []))
        batch.roots.append(m)

    def _add_nodes(self, batch: _Batch, handle: int, members: Sequence[int], leaves: Sequence[Leaf]) -> None:
        m = self._mirrors[handle]
        self.prefill(handle, m.length - m.computed)
        taken: list[int] = []
        for leaf in leaves:
            taken.append(m.take(leaf.token))
            batch.taken.append((m, taken[-1]))
        batch.segments.append(self._nodes(m, leaves, taken))
        batch.wanted += range(len(batch.tokens), len(batch.tokens) + len(taken))
        batch.slots += [m.base + slot for slot in taken]
        for index, leaf, slot in zip(members, leaves, taken, strict=True):
            position = m.length + len(leaf.path)
            batch.tokens.append(leaf.token)
            batch.positions.append(position)
            path = [*(m.held[above] for above in leaf.path), leaf.token] if m.sampler.penalised else []
            batch.rows.append(Row(index, slot, m.sampler, position + 1, path))

    # --- replay ------------------------------------------------------------------------------------------------------

    def along(
        self, prompt: Sequence[int], text: Sequence[int], sampling: Sampling
    ) -> Iterator[tuple[Tensor, list[tuple[list[int], list[float]]]]]:
        """What expanding the root would have named before each token of ``text``, ``CHUNK`` places in one forward.

        Yields logits ``(places, vocabulary)`` and the candidates and confidences of each place, from the first on, and
        ends where this model cannot mirror what stands before.
        """
        before = self._mirrored([*prompt, *text[:-1]])
        first = len(prompt) - 1
        if len(before) <= first:
            return
        handle = self.open(before, len(prompt), sampling)
        m = self._mirrors[handle]
        sampler = self._sampler(prompt, len(prompt), sampling)
        home = m.base + self._scratch
        try:
            for start in range(0, len(before), CHUNK):
                end = min(start + CHUNK, len(before))
                wanted = range(max(start, first), end)
                logits = self.engine.forward(
                    before[start:end],
                    range(start, end),
                    range(home + start, home + end),
                    [self._text(m, start, end)],
                    [place - start for place in wanted] or [end - start - 1],
                )[:, : self.info.vocab_size]
                if wanted:
                    paths = [before[len(prompt) : place + 1] if sampler.penalised else [] for place in wanted]
                    rows = [Row(0, -1, sampler, place + 1, path) for place, path in zip(wanted, paths, strict=True)]
                    yield logits, rank(logits, rows, self.candidates)
        finally:
            self.close(handle)

    def _mirrored(self, text: list[int]) -> list[int]:
        """The beginning of a text that can be drafted for: its next token has a position too."""
        unknown = (place for place, token in enumerate(text) if not 0 <= token < self.info.vocab_size)
        return text[: min(next(unknown, len(text)), self.info.max_context - 1)]

    # --- forwards ----------------------------------------------------------------------------------------------------

    def prefill(self, handle: int, limit: int) -> None:
        """At most ``CHUNK`` tokens in one forward."""
        m = self._mirrors[handle]
        goal = min(m.computed + limit, m.length)
        while m.computed < goal:
            start, end = m.computed, min(m.computed + CHUNK, goal)
            home = m.base + self._scratch
            at = list(range(start, end))
            self.engine.forward(
                m.tokens[start:end], at, [home + p for p in at], [self._text(m, start, end)], [end - start - 1]
            )
            m.computed = end

    def _text(self, m: _Mirror, start: int, end: int) -> Segment:
        """Rows for the committed tokens ``start .. end``, each of which sees the text up to itself."""
        span = -(-end // SPAN) * SPAN
        visible = np.zeros((end - start, span), dtype=np.bool_)
        for row, position in enumerate(range(start, end)):
            visible[row, : position + 1] = True
        return Segment(end - start, m.base + self._scratch, span, visible, m.room)

    def _nodes(self, m: _Mirror, leaves: Sequence[Leaf], slots: Sequence[int]) -> Segment:
        """Rows for tree nodes in scratch ``slots``: each sees the committed text, its ancestors and itself."""
        start = min(slot for leaf, own in zip(leaves, slots, strict=True) for slot in (own, *leaf.path)) // SPAN * SPAN
        home = self._scratch - start
        visible = np.zeros((len(leaves), home - (-m.length // SPAN) * SPAN), dtype=np.bool_)
        visible[:, home : home + m.length] = True
        for view, leaf, slot in zip(visible, leaves, slots, strict=True):
            view[slot - start] = True
            for above in leaf.path:
                view[above - start] = True
        return Segment(len(leaves), m.base + start, visible.shape[1], visible, m.room)
