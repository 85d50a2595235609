"""One request as the draft model holds it: its committed text, and tree nodes in scratch slots.

A request's region has its scratch slots in front, and the canonical slots (one for each position) after them. Scratch
slots next to the text are used first. So one slice, from the lowest slot in use to the committed length, covers both
and little else. That matters because after a thousand tokens, a small model's step reads more bytes of keys and values
than of its layers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from actors.engines.flat_batch import SPAN, FlatBatch, Mask, align, causal
from actors.engines.sampling.sampler import SamplerState
from protocols.errors import PoolFull


class Mirror:
    """Scratch slots are numbered from 0 within the region."""

    __slots__ = ("base", "computed", "free", "held", "home", "length", "room", "sampler", "tokens")

    def __init__(self, base: int, scratch: int, room: int, sampler: SamplerState, prefix: Sequence[int]) -> None:
        self.base = base  # the region's beginning
        self.home = base + scratch  # the slot of the first token
        self.room = room  # tokens of the text at most
        self.sampler = sampler
        self.tokens = list(prefix)  # committed
        self.length = len(prefix)
        self.computed = 0  # tokens from the first on with K/V in canonical slots
        self.free = list(range(scratch))
        self.held = [-1] * scratch  # the token in each scratch slot; -1: free

    def take(self, token: int) -> int:
        """A scratch slot for a node with that token. Raises PoolFull."""
        if not self.free:
            raise PoolFull(f"all {len(self.held)} scratch slots hold tree nodes; release dead ones first")
        slot = self.free.pop()
        self.held[slot] = token
        return slot

    def give_back(self, slot: int) -> None:
        """Free a scratch slot, unless it is free."""
        if self.held[slot] >= 0:
            self.held[slot] = -1
            self.free.append(slot)

    def add_text(self, batch: FlatBatch, start: int, end: int) -> None:
        """Add the committed tokens ``start .. end`` to a batch. Each sees the text up to itself."""
        slots = [*range(self.home + start, self.home + end)]
        batch.add(self.home, self.tokens[start:end], [*range(start, end)], slots, causal(start, end))

    def text_computed(self, end: int) -> None:
        """The text is computed up to there."""
        self.computed = end

    def view(self, paths: Sequence[Sequence[int]]) -> tuple[int, Mask]:
        """What leaves see: the committed text, and the scratch slots of their ancestors and themselves, ``paths``.
        Returns the first slot of the pool in the mask, and the mask with a row for each leaf."""
        start = min(min(path) for path in paths) // SPAN * SPAN
        home = len(self.held) - start
        visible: Mask = np.zeros((len(paths), home + align(self.length)), dtype=np.bool_)
        visible[:, home : home + self.length] = True
        for row, path in zip(visible, paths, strict=True):
            for slot in path:
                row[slot - start] = True
        return self.base + start, visible
