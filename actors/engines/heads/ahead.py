"""Block heads: one pass over the root and masks gives a distribution at each place ahead.

The places do not know of one another; shared noise makes a tree of them nonetheless, since it says of each place
which of its tokens the target would choose. Some kinds also say how a token depends on the one before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from actors.engines.drafts.draft import CHUNK
from actors.engines.drafts.ranking import Row
from actors.engines.flat_batch import FlatBatch, align
from actors.engines.heads.draft import HeadDraft, HeadMirror
from actors.engines.heads.engine import HeadEngine
from actors.engines.targets.states import States
from actors.models import Expansion, Leaf


class AheadMirror(HeadMirror):
    __slots__ = ("ahead", "ahead_of")

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        # at each place after the root: logits, and the states after them; ``ahead_of``: tokens of the text
        self.ahead: Sequence[tuple[Tensor, Tensor]] = ()
        self.ahead_of = 0


class AheadDraft(HeadDraft):
    """A :class:`actors.models.DraftModel`: expansions of one text share the root's forward."""

    kind = AheadMirror
    replays = False
    _mirrors: dict[int, AheadMirror]  # type: ignore[assignment]

    def __init__(self, engine: HeadEngine, states: States) -> None:
        super().__init__(engine, states)
        assert engine.head.block is not None
        self._block, self.computes_text = engine.head.block, engine.head.width > 0

    def expand(self, leaves: Sequence[Leaf]) -> list[Expansion]:
        """See :class:`actors.models.DraftModel`."""
        texts = {leaf.handle: self._mirrors[leaf.handle] for leaf in leaves}
        roots = {leaf.handle for leaf in leaves if leaf.is_root}
        self._look_ahead({one: m for one, m in texts.items() if one in roots or m.ahead_of != m.length})
        rows: list[Row] = []
        found: list[tuple[Tensor, Tensor]] = []
        before: list[int] = []
        expansions: list[Expansion] = []
        for index, leaf in enumerate(leaves):
            m, depth = self._mirrors[leaf.handle], 0 if leaf.is_root else 1 + len(leaf.path)
            slot = -1 if leaf.is_root else m.take(leaf.token)
            expansions.append(Expansion(slot, (), ()))
            if depth < len(m.ahead) and m.length + depth < self.info.max_context:
                rows.append(self.row_of(m, index, leaf, slot))
                found.append(m.ahead[depth])
                before.append(leaf.token)
        if rows:
            logits, x = (torch.stack(part) for part in zip(*found, strict=True))
            if (pairs := self.engine.head.pairs) is not None:
                with torch.inference_mode():
                    logits = pairs(logits, x, torch.tensor(before, device=x.device))
            self.name(expansions, rows, logits)
        return expansions

    def _look_ahead(self, texts: Mapping[int, AheadMirror]) -> None:
        """Compute the blocks of several texts in one forward."""
        batch, skipped = FlatBatch(), 0 if self._block.from_root else 1
        mirrors: list[AheadMirror] = []
        for handle, m in texts.items():
            m.ahead, m.ahead_of = (), m.length
            self.prefill(handle, self.missing(handle) + 1 - CHUNK)
            if self._is_fed(m) or not self.computes_text:
                self._add_block(m, batch)
                mirrors.append(m)
        if not mirrors:
            return
        made = self.engine.ahead(batch)
        counts = [segment.rows for segment in batch.segments]
        for m, logits, x in zip(mirrors, *(torch.split(part, counts) for part in made), strict=True):
            first = len(x) - self._rows_of(m) + skipped
            m.ahead = [*zip(logits[first:], x[first:], strict=True)]

    def _rows_of(self, m: AheadMirror) -> int:
        """The root and the masks that there is room for."""
        return min(self._block.rows, m.room - m.length + 1)

    def _add_block(self, m: AheadMirror, batch: FlatBatch) -> None:
        """Add the missing text, the root, and masks, in the slots of their places.

        The next tokens' own keys and values take the place of the masks'."""
        root = m.length - 1
        start = min(m.computed, root) if self.computes_text else root
        end = root + self._rows_of(m)
        visible = np.zeros((end - start, align(end)), np.bool_)
        visible[:, :start], visible[:, start:end] = m.known[:start], True
        m.known[start:end] = False
        slots = [*range(m.home + start, m.home + end)]
        tokens = [*m.tokens[start:], *[self._block.mask_token] * (end - m.length)]
        batch.add(m.home, tokens, [*range(start, end)], slots, visible)
        self.follows(slots, depths=[max(0, place - root) for place in range(start, end)])
        self.engine.before[slots[m.length - start :]] = self.engine.pool.slots
        if self.computes_text:
            m.known[start : m.length], m.computed = True, m.length
