"""Counts of the tokens of a text, also along the paths of a window. Penalties need them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class Tally:
    """The distinct tokens of a text, in order of appearance, and how often the output holds each."""

    __slots__ = ("counts", "ids", "index")

    def __init__(self, prompt: Sequence[int]) -> None:
        self.ids: list[int] = list(dict.fromkeys(prompt))
        self.index: dict[int, int] = {token: i for i, token in enumerate(self.ids)}
        self.counts: list[int] = [0] * len(self.ids)

    def add(self, token: int) -> None:
        at = self.index.setdefault(token, len(self.ids))
        if at == len(self.ids):
            self.ids.append(token)
            self.counts.append(0)
        self.counts[at] += 1

    def along(self, paths: Sequence[Sequence[int]]) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.bool_]]:
        """``(ids, counts, seen)`` for texts that go on with each of ``paths``, of the shapes (k,), (rows, k), (rows,
        k): the distinct tokens, how often the output has each, and whether the text has it."""
        here = len(self.ids)
        extra: dict[int, int] = {}
        for path in paths:
            for token in path:
                if token not in self.index:
                    extra.setdefault(token, here + len(extra))
        ids = np.array([*self.ids, *extra], dtype=np.int64)
        counts = np.zeros((len(paths), len(ids)), dtype=np.float32)
        counts[:, :here] = self.counts
        seen = np.zeros(counts.shape, dtype=np.bool_)
        seen[:, :here] = True
        for row, path in enumerate(paths):
            for token in path:
                at = self.index.get(token, -1)
                at = at if at >= 0 else extra[token]
                counts[row, at] += 1
                seen[row, at] = True
        return ids, counts, seen
