"""Drafts with recurrent layers: a text has the state before its root, and records of its root's row and of each node's.

A node's row goes on from a state that lives for one forward: the text's, after the records of the root and of the
node's path. What a verdict accepts becomes the text's by its records.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from actors.engines.drafts.draft import Draft, LeafBatch
from actors.engines.drafts.mirror import Mirror
from actors.engines.drafts.ranking import Candidates, Row
from actors.engines.engine import Engine
from actors.engines.flat_batch import FlatBatch, RecurrentState
from actors.engines.sampling.sampler import SamplerState
from actors.models import Expansion, Leaf
from protocols.errors import CannotDraft, PoolFull
from protocols.messages import Sampling


class RecurrentMirror(Mirror):
    """``computed``: tokens that ``state`` is after; the root is not among them."""

    __slots__ = ("records", "root", "state")
    state: RecurrentState

    def __init__(self, base: int, scratch: int, room: int, sampler: SamplerState, prefix: Sequence[int]) -> None:
        super().__init__(base, scratch, room, sampler, prefix)
        self.root: Any = None  # its record, once it is expanded
        self.records: dict[int, Any] = {}  # records of nodes, by slot

    def add_text(self, batch: FlatBatch, start: int, end: int) -> None:
        super().add_text(batch, start, end)
        batch.segments[-1].state, batch.segments[-1].prompt = self.state, True

    def text_computed(self, end: int) -> None:
        self.state.keep(range(end - self.computed))
        super().text_computed(end)


class RecurrentDraft(Draft):
    """A :class:`actors.models.DraftModel` on an engine with a recurrence."""

    kind = RecurrentMirror
    _mirrors: dict[int, RecurrentMirror]  # type: ignore[assignment]

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        assert engine.recurrence is not None
        self._recurrence = engine.recurrence

    def _new(self) -> RecurrentState:
        return cast(RecurrentState, self._recurrence.new())

    def open(self, prefix: Sequence[int], prompt_len: int, sampling: Sampling) -> int:
        if len(self._mirrors) >= self._recurrence.limit:
            raise PoolFull(f"there is room for the recurrent states of {self._recurrence.limit} requests")
        if len(prefix) < 2 and not self._recurrence.pieces_agree:
            raise CannotDraft("the text has one token, behind which this draft model has no state to go on from")
        handle = super().open(prefix, prompt_len, sampling)
        self._mirrors[handle].state = self._new()
        return handle

    def reopen(self, handle: int, prefix: Sequence[int], prompt_len: int, sampling: Sampling) -> None:
        old = self._mirrors[handle]
        super().reopen(handle, prefix, prompt_len, sampling)
        new = self._mirrors[handle]
        goes_on = old.computed <= min(new.computed, len(prefix) - 1)
        new.state, new.computed = (old.state, old.computed) if goes_on else (self._new(), 0)

    def release(self, handle: int, slots: Sequence[int]) -> None:
        super().release(handle, slots)
        for slot in slots:
            self._mirrors[handle].records.pop(slot, None)

    def commit(self, handle: int, tokens: Sequence[int], slots: Sequence[int]) -> None:
        m = self._mirrors[handle]
        computed, records = m.computed, []
        if m.root is not None:
            m.computed, records = m.length, [m.root]
            for slot in slots:
                if slot not in m.records:
                    break
                records.append(m.records[slot])
        super().commit(handle, tokens, slots)
        m.root = records.pop() if len(records) == 1 + len(tokens) else None
        m.state.extend(records)
        m.computed = computed + len(records)
        for slot in slots:
            m.records.pop(slot, None)

    def prefill(self, handle: int, limit: int) -> None:
        """See :class:`actors.models.DraftModel`. The root is left out."""
        super().prefill(handle, min(limit, self.missing(handle)))

    def expand(self, leaves: Sequence[Leaf]) -> list[Expansion]:
        """See :class:`actors.models.DraftModel`. Roots are computed before nodes, which go on from them."""
        found: dict[int, Expansion] = {}
        for roots in (True, False):
            members = [index for index, leaf in enumerate(leaves) if leaf.is_root == roots]
            if members:
                found |= zip(members, super().expand([leaves[index] for index in members]), strict=True)
        return [found[index] for index in range(len(leaves))]

    def _add_root(self, batch: LeafBatch, handle: int, index: int) -> None:
        m = self._mirrors[handle]
        self.prefill(handle, self.missing(handle))
        m.add_text(batch, m.length - 1, m.length)
        batch.segments[-1].state, batch.segments[-1].prompt = m.state, False
        batch.owners.append(m)
        batch.wanted.append(len(batch.tokens) - 1)
        batch.rows.append(Row(index, -1, m.sampler, m.length, []))

    def _add_nodes(self, batch: LeafBatch, handle: int, members: Sequence[int], leaves: Sequence[Leaf]) -> None:
        m = self._mirrors[handle]
        if m.root is None:
            super().expand([Leaf(handle, 0, (), is_root=True)])
        for index in members:
            super()._add_nodes(batch, handle, [index], leaves)
            path = [m.records[slot] for slot in leaves[index].path]
            assert m.root is not None
            batch.segments[-1].state = m.state.after([m.root, *path])
            batch.owners.append(m)

    def _candidates(self, batch: LeafBatch, select: list[int] | None) -> list[Candidates]:
        found = super()._candidates(batch, select)
        for mirror, row, segment in zip(batch.owners, batch.rows, batch.segments, strict=True):
            assert isinstance(mirror, RecurrentMirror)
            record = cast(RecurrentState, segment.state).record(0)
            if row.slot < 0:
                mirror.root = record
            else:
                mirror.records[row.slot] = record
        return found


def draft_on(engine: Engine) -> Draft:
    """The draft model that an engine runs as."""
    return Draft(engine) if engine.recurrence is None else RecurrentDraft(engine)
