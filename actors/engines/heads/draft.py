"""A draft head as a draft model: it mirrors texts by the target's states, and expands the leaves of trees.

A row of the head is a token and the state before it. For a committed token that state is the target's; below the root
it is the head's own. So accepted tokens are computed again, with the target's states, in the step that expands the next
root.

The target may have no states of some tokens, because an earlier request had their prefix or because the states were
dropped. There the head uses keys and values that it still has of the text; rows do not see tokens that have none.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from actors.engines.drafts.draft import CHUNK, Draft
from actors.engines.drafts.mirror import Mirror
from actors.engines.drafts.ranking import Row
from actors.engines.flat_batch import FlatBatch, Mask, causal
from actors.engines.heads.engine import HeadEngine
from actors.engines.sampling.sampler import SamplerState
from actors.engines.targets.states import States, unpacked
from actors.models import Expansion, Leaf
from protocols.messages import HiddenStates, Sampling

if TYPE_CHECKING:
    from actors.engines.drafts.draft import LeafBatch
    from actors.engines.drafts.ranking import Candidates
    from actors.engines.targets.target import Target


class HeadMirror(Mirror):
    """A text of the head. ``computed``: tokens before this one have all that can be computed of them."""

    __slots__ = ("fed", "known", "source")

    def __init__(self, base: int, scratch: int, room: int, sampler: SamplerState, prefix: Sequence[int]) -> None:
        super().__init__(base, scratch, room, sampler, prefix)
        self.known: NDArray[np.bool_] = np.zeros(room, np.bool_)  # tokens with keys and values
        self.source: int | None = None  # the target's request
        self.fed = 0  # tokens before this one have the target's states, without a gap since the last ones came
        self.computed = HeadDraft.first_row

    def add_text(self, batch: FlatBatch, start: int, end: int) -> None:
        visible = causal(start, end)
        visible[:, :start] &= self.known[:start]
        slots, places = [*range(self.home + start, self.home + end)], [*range(start, end)]
        batch.add(self.home, self.tokens[start:end], places, slots, visible)
        self.known[start:end] = True

    def view(self, paths: Sequence[Sequence[int]]) -> tuple[int, Mask]:
        first, visible = super().view(paths)
        text = self.home - first
        visible[:, text : text + self.length] &= self.known[: self.length]
        return first, visible


class HeadDraft(Draft):
    """A :class:`actors.models.DraftModel` on the target's device."""

    kind: type[HeadMirror] = HeadMirror
    first_row = 1  # before the first token there is no state
    replays = True  # whether `duoactor replay` can say how often it would have been right
    computes_text = True  # rows of committed tokens; else their keys and values are the target's states alone
    engine: HeadEngine
    width = 0  # width of the states of all layers that it reads, where they are sent
    _mirrors: dict[int, HeadMirror]  # type: ignore[assignment]

    def __init__(self, engine: HeadEngine, states: States) -> None:
        super().__init__(engine)
        self.states = states

    def follow(self, handle: int, source: int) -> None:
        """Tell a mirror which request of the target it follows: it has that request's text and awaits its states."""
        self._mirrors[handle].source = source

    @property
    def taps(self) -> tuple[int, ...]:
        """See :class:`actors.models.DraftModel`."""
        return self.states.layers

    def listen(self, handle: int) -> None:
        """The states of the mirror's text are sent, from now on."""
        self.states.end(handle)
        self.follow(handle, handle)

    def receive(self, handle: int, message: HiddenStates) -> bool:
        """Take states that were sent. False: the head reads other states."""
        rows = unpacked(message, self.width)
        if rows is None or message.start + len(rows) > self._mirrors[handle].room:
            return False
        self.states.add(handle, message.start, rows)
        return True

    def reopen(self, handle: int, prefix: Sequence[int], prompt_len: int, sampling: Sampling) -> None:
        old = self._mirrors[handle]
        super().reopen(handle, prefix, prompt_len, sampling)
        new = self._mirrors[handle]
        new.computed = max(1, new.computed)
        new.known[: new.computed] = old.known[: new.computed]

    def missing(self, handle: int) -> int:
        m = self._mirrors[handle]
        self._feed(m)
        return max(0, min(m.length - 1, self._end(m)) - m.computed) if self.computes_text else 0

    def _end(self, m: HeadMirror) -> int:
        """The tokens before this one can be computed. Texts that no target has are measured with."""
        return m.length if m.source is None else min(m.length, m.fed + 1)

    def expand(self, leaves: Sequence[Leaf]) -> list[Expansion]:
        """See :class:`actors.models.DraftModel`. There are no children where the target's state before the root is not
        known."""
        fed = {leaf.handle: self._is_fed(self._mirrors[leaf.handle]) for leaf in leaves}
        found = iter(super().expand([leaf for leaf in leaves if fed[leaf.handle]]))
        return [next(found) if fed[leaf.handle] else Expansion(-1, (), ()) for leaf in leaves]

    def _is_fed(self, m: HeadMirror) -> bool:
        self._feed(m)
        return self._end(m) == m.length

    def _feed(self, m: HeadMirror) -> None:
        """Take the states that the target has computed since the last call."""
        found = None if m.source is None else self.states.take(m.source)
        if found is None:
            return
        position, tapped = found
        tapped = tapped[: max(0, m.room - position)]
        self.engine.feed(m.home + position, position, tapped)
        if position != m.fed:
            m.computed = max(m.computed, position + 1)
        m.fed = position + len(tapped)
        if not self.computes_text:
            m.known[position : m.fed], m.computed = True, m.fed

    def prefill(self, handle: int, limit: int) -> None:
        m = self._mirrors[handle]
        self._feed(m)
        goal = min(m.computed + limit, self._end(m)) if self.computes_text else 0
        while m.computed < goal:
            start, end = m.computed, min(m.computed + CHUNK, goal)
            m.add_text(batch := FlatBatch(), start, end)
            self.follows(batch.slots)
            self.engine.forward(batch, [end - start - 1] if end == m.length else [])
            m.computed = end

    def row_of(self, m: HeadMirror, index: int, leaf: Leaf, slot: int) -> Row:
        """The row of a leaf with that ``index`` in its call, to rank its candidates by."""
        depth, path = (0, list[int]()) if leaf.is_root else (1 + len(leaf.path), [leaf.token])
        if m.sampler.penalised:
            path = [*(m.held[above] for above in leaf.path), *path]
        return Row(index, slot, m.sampler, m.length + depth, path)

    def name(self, expansions: list[Expansion], rows: Sequence[Row], logits: Tensor) -> None:
        """Write the candidates of rows among the expansions of their call."""
        for row, (best, chances) in zip(rows, self._ranked(logits, rows), strict=True):
            expansions[row.index] = Expansion(row.slot, tuple(best), tuple(chances))

    def follows(self, slots: Sequence[int], before: Sequence[int] = (), depths: Sequence[int] = (0,)) -> None:
        """The rows in these slots read the states in those ``before``, or in the text one slot before."""
        self.engine.before[slots] = before or [slot - 1 for slot in slots]
        self.engine.depths[slots] = depths

    def _add_root(self, batch: LeafBatch, handle: int, index: int) -> None:
        self._feed(self._mirrors[handle])
        first = len(batch.slots)
        super()._add_root(batch, handle, index)
        self.follows(batch.slots[first:])

    def _add_nodes(self, batch: LeafBatch, handle: int, members: Sequence[int], leaves: Sequence[Leaf]) -> None:
        first = len(batch.slots)
        super()._add_nodes(batch, handle, members, leaves)
        m = self._mirrors[handle]
        paths = [leaves[index].path for index in members]
        above = [m.base + path[-1] if path else m.home + m.length - 1 for path in paths]
        self.follows(batch.slots[first:], above, [1 + len(path) for path in paths])

    def commit(self, handle: int, tokens: Sequence[int], slots: Sequence[int]) -> None:
        """See :class:`actors.models.DraftModel`. What the head computed with states of its own is given up."""
        super().commit(handle, tokens, [-1] * len(tokens))
        self.release(handle, [slot for slot in slots if slot >= 0])

    def _read(self, m: Mirror, start: int, end: int, select: Sequence[int]) -> Tensor:
        """Every row reads the target's states, and leaves them to the next."""
        m.add_text(batch := FlatBatch(), start, end)
        self.follows(batch.slots)
        states = self.engine.states[0][batch.slots]
        logits = self.engine.forward(batch, select)
        self.engine.states[0][batch.slots] = states
        return logits


class HeadReplay:
    """A head along finished texts (:meth:`actors.engines.drafts.draft.Draft.along`): the target computes them again,
    because the head reads its states."""

    def __init__(self, head: HeadDraft, target: Target) -> None:
        self._head, self._target = head, target
        self.info = target.info

    def along(self, prompt: Sequence[int], text: Sequence[int], sampling: Sampling) -> Iterator[list[Candidates]]:
        head = self._head
        before = head.mirrored([*prompt, *text[:-1]])
        if len(prompt) <= head.first_row or len(before) < len(prompt):
            return
        # a salt of its own: what a cached beginning spares the target has no states
        source = self._target.open(before, Sampling(max_tokens=1), cache_salt=uuid.uuid4().hex)
        handle = head.open(before, len(prompt), sampling)
        head.follow(handle, source)
        try:
            while self._target.prefill(source, CHUNK) is None:
                head.missing(handle)
            head.missing(handle)
            yield from head.read_along(handle, len(prompt), sampling)
        finally:
            head.close(handle)
            self._target.close(source)
