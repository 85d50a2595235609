"""Finds the regions of a KV pool that hold the beginning of a text, by chained hashes of its chunks, as vLLM's prefix
cache does. Here a chunk's hash is called a mark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Region:
    """Slots ``base .. base + size``; position p of the text lies in slot ``base + p``."""

    base: int
    size: int
    text: tuple[int, ...]  # the prompt; once the request has ended, its answer too
    salt: object  # only requests with an equal one share anything
    ready: int = 0  # tokens of the text, in whole chunks, with keys and values
    reused: int = 0  # tokens of it that an earlier request has computed
    source: Region | None = None  # the region to copy from before anything is computed
    readers: int = 0  # requests that read it
    marks: list[int] = field(default_factory=list)  # digests of the chunks that are ready


class PrefixIndex:
    """Tokens are compared as well before a region is used: hashes collide, and a client could aim at that."""

    def __init__(self, chunk: int) -> None:
        """``chunk``: how many tokens are shared at a time."""
        self.chunk = chunk
        self._holders: dict[int, dict[Region, None]] = {}  # regions that hold a chunk, the latest last, by its mark
        self._kept: dict[int, Region] = {}  # regions of ended requests, by their last mark

    def add(self, region: Region) -> None:
        """Index the chunks of a region that have become ready."""
        known = len(region.marks)
        last = region.marks[-1] if known else hash(region.salt)
        for mark in self._marks(last, region.text[known * self.chunk : region.ready]):
            region.marks.append(mark)
            self._holders.setdefault(mark, {})[region] = None

    def keep(self, region: Region) -> None:
        """The region's request has ended, and the region is kept for later ones."""
        self._kept[region.marks[-1]] = region

    def remove(self, region: Region) -> None:
        """The region is given up."""
        if region.marks and self._kept.get(region.marks[-1]) is region:
            del self._kept[region.marks[-1]]
        for mark in set(region.marks):
            holders = self._holders[mark]
            del holders[region]
            if not holders:
                del self._holders[mark]
        region.marks = []

    def longest(self, text: tuple[int, ...], salt: object, but: Region | None = None) -> tuple[Region | None, int]:
        """The region that holds most of the beginning of a text, and how many tokens that are. A kept region that holds
        nothing else is preferred; ``but`` is left out.

        The last token of a text never counts: it has to be computed for its logits."""
        found: Region | None = None
        count = 0
        for mark in self._marks(hash(salt), text[:-1]):
            holder = self._kept.get(mark) or self._other(mark, but)
            if holder is None:
                break
            found, count = holder, count + self.chunk
        if found is None or found.salt != salt or found.text[:count] != text[:count]:
            return None, 0
        return found, count

    def _other(self, mark: int, but: Region | None) -> Region | None:
        """The latest region that holds that chunk."""
        return next((region for region in reversed(self._holders.get(mark, {})) if region is not but), None)

    def shared(self, region: Region) -> bool:
        """Whether another region holds all that this one does."""
        return len(self._holders[region.marks[-1]]) > 1

    def beginnings(self, region: Region) -> list[Region]:
        """The kept regions that hold a beginning of this one's text and nothing else."""
        found = (self._kept.get(mark) for mark in region.marks)
        return [other for other in found if other is not None and other is not region]

    def _marks(self, mark: int, tokens: Sequence[int]) -> Iterator[int]:
        """The marks of the whole chunks in ``tokens``, which follow the chunk of ``mark``."""
        for end in range(self.chunk, len(tokens) + 1, self.chunk):
            mark = hash((mark, tokens[end - self.chunk : end]))
            yield mark
