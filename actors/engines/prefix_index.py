"""Which regions of a KV pool hold the beginning of a text: found by a hash of all tokens up to each chunk's end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Region:
    """Slots ``base .. base + size``; position p of the text lies in slot ``base + p``."""

    base: int
    size: int
    text: tuple[int, ...]  # the prompt; once the request has ended, its answer too
    salt: object  # only requests of an equal one have anything in common
    ready: int = 0  # tokens of the text, in whole chunks, whose keys and values are there
    reused: int = 0  # of those, which an earlier request computed
    source: Region | None = None  # what is to be copied from
    readers: int = 0  # requests whose source this is
    marks: list[int] = field(default_factory=list)  # of the chunks that are ready


class PrefixIndex:
    """A mark may be that of another text as well (it is a hash, which a client could aim at): whoever is found by one
    has its tokens compared."""

    def __init__(self, chunk: int) -> None:
        """``chunk``: tokens that are shared together."""
        self.chunk = chunk
        self._holders: dict[int, dict[Region, None]] = {}  # by mark, the latest last
        self._kept: dict[int, Region] = {}  # of requests that ended, by their last mark

    def add(self, region: Region) -> None:
        """More of a region is ready."""
        known = len(region.marks)
        last = region.marks[-1] if known else hash(region.salt)
        for mark in self._marks(last, region.text[known * self.chunk : region.ready]):
            region.marks.append(mark)
            self._holders.setdefault(mark, {})[region] = None

    def keep(self, region: Region) -> None:
        """Its request has ended."""
        self._kept[region.marks[-1]] = region

    def remove(self, region: Region) -> None:
        """It is given up."""
        if region.marks and self._kept.get(region.marks[-1]) is region:
            del self._kept[region.marks[-1]]
        for mark in set(region.marks):
            holders = self._holders[mark]
            del holders[region]
            if not holders:
                del self._holders[mark]
        region.marks = []

    def longest(self, text: tuple[int, ...], salt: object, but: Region | None = None) -> tuple[Region | None, int]:
        """The region that has most of a text, one that is kept and has nothing else before others, and how many
        tokens. The last token is always computed anew: the first logits are its own."""
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
        """The latest that holds so much."""
        return next((region for region in reversed(self._holders.get(mark, {})) if region is not but), None)

    def shared(self, region: Region) -> bool:
        """Whether another holds all that this one does."""
        return len(self._holders[region.marks[-1]]) > 1

    def beginnings(self, region: Region) -> list[Region]:
        """Those that are kept, hold less than it, and nothing else."""
        found = (self._kept.get(mark) for mark in region.marks)
        return [other for other in found if other is not None and other is not region]

    def _marks(self, mark: int, tokens: Sequence[int]) -> Iterator[int]:
        """Behind ``mark``, of each whole chunk."""
        for end in range(self.chunk, len(tokens) + 1, self.chunk):
            mark = hash((mark, tokens[end - self.chunk : end]))
            yield mark
