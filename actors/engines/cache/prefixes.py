"""The prefix cache: regions of a KV pool, of open requests and of texts that are kept for later prompts.

A prompt reuses the whole chunks that it shares with an earlier one. Its logits are the same as after a prefill of all
its tokens. Where a row's bits depend on the shape of its forward, chunks are those of the prompt's forwards, counted
from its first token, and decoded tokens are not shared: the answer in the next turn of a chat is computed as a prompt,
as it would be without a cache. Elsewhere chunks are short, and the next turn begins after the last answer.

The slots of a request are consecutive: its bits and the speed of attention depend on that. So two requests never read
the same slots. A kept region that no other request needs (the last turn of a chat) becomes the new request's and grows
in place; from any other region the request copies its prefix, which takes milliseconds where computing it takes
seconds. Until it has, it is counted as a reader of the region, which is not given up meanwhile.

A region holds what its request needs now, and grows with it: in place if the next slots are free, else at another
place, or after the other regions were moved together. Its base changes no bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from actors.engines.cache.pool import RegionAllocator
from actors.engines.cache.prefix_index import PrefixIndex, Region
from protocols.errors import PoolFull


class PrefixCache:
    """It only keeps account: the owner of the pool asks what is to be copied (``take``, ``take_moves``)."""

    def __init__(self, allocator: RegionAllocator, chunk: int, most: float = math.inf) -> None:
        """``chunk``: how many tokens are shared at a time. ``most``: slots that are kept, but for the latest text,
        which is kept whatever it takes."""
        self.allocator, self._most = allocator, most
        self.open_regions: dict[Region, None] = {}
        self.kept: dict[Region, None] = {}  # texts of requests that have ended; the least recently used first
        self._index = PrefixIndex(chunk)
        self._floor = allocator.used  # slots at the beginning that are not regions here, and never move
        self._moves: list[tuple[int, int, int]] = []  # (from, to, how many)

    @property
    def cached(self) -> int:
        """Slots that are kept, and free as soon as a request needs them."""
        return sum(region.size for region in self.kept)

    def open(self, size: int, tokens: Sequence[int], salt: object = "") -> Region:
        """A region of ``size`` slots for a request with that text. Kept regions are given up for it if that makes
        enough room, the least recently used first. Raises PoolFull."""
        text = tuple(tokens)
        source, count = self._index.longest(text, salt)
        if source is not None and self._replaces(source, count) and self.allocator.resize(source.base, size):
            del self.kept[source]
            self._index.remove(source)
            region = Region(source.base, size, text, salt, count, count)
            self._index.add(region)
        else:
            try:
                base = self._alloc(size, source)
            except PoolFull:
                if source is None:
                    raise
                base, source = self._alloc(size), None
            region = Region(base, size, text, salt)
            self._read(region, source)
        self.open_regions[region] = None
        return region

    def take(self, region: Region) -> tuple[int, int] | None:
        """What a request copies to its base before it computes anything: (first slot, how many); None: nothing. It may
        be more than when the region was opened, because other requests have computed more since."""
        source, count = self._index.longest(region.text, region.salt, region)
        self._read(region, None)
        if source is None or count <= region.ready:
            return None
        region.ready = region.reused = count
        self._index.add(region)
        if self._replaces(source, count):
            self._free(source)
        elif source in self.kept:
            del self.kept[source]
            self.kept[source] = None  # the last to be given up
        return source.base, count

    def grow(self, region: Region, size: int) -> None:
        """Make an open region larger; its base may change. Raises PoolFull, and has changed nothing then."""
        if not self.allocator.resize(region.base, size) and not self._move(region, size):
            free = self.allocator.slots - self.allocator.used + self.cached
            raise PoolFull(f"the request needs {size - region.size} KV slots more and the pool has {free} free")
        region.size = size

    @property
    def moving(self) -> bool:
        """Whether slots have moved that are not copied yet."""
        return bool(self._moves)

    def take_moves(self) -> list[tuple[int, int, int]]:
        """Slots that have moved since the last call: (from, to, how many). They must be copied in this order, before
        anything else is read or written."""
        moves, self._moves = self._moves, []
        return moves

    def computed(self, region: Region, done: int) -> None:
        """The first ``done`` tokens of the text are computed: whole chunks of them may be shared."""
        ready = done // self._index.chunk * self._index.chunk
        if ready > region.ready:
            region.ready = ready
            self._index.add(region)

    def close(self, region: Region, text: Sequence[int] = ()) -> None:
        """The request has ended. Its region is kept, cut to whole chunks, unless another region holds all of them.
        ``text``: prompt and answer, if the answer is computed and may be shared as well."""
        if text:
            region.text = tuple(text)
            self.computed(region, len(text))
        del self.open_regions[region]
        self._read(region, None)
        if region.ready == 0 or self._index.shared(region):
            self._free(region)
            return
        for other in self._index.beginnings(region):
            if not other.readers:
                self._free(other)
        region.size, region.text, region.reused = region.ready, region.text[: region.ready], 0
        self.allocator.resize(region.base, region.size)
        self.kept[region] = None
        self._index.keep(region)
        for idle in self._idle(region):
            if self.cached <= self._most:
                break
            self._free(idle)

    # --- parts -------------------------------------------------------------------------------------------------------

    def _regions(self) -> list[Region]:
        return [*self.kept, *self.open_regions]

    def _replaces(self, source: Region, count: int) -> bool:
        """Whether a region is of no use any more once a request has taken ``count`` of its tokens."""
        return source in self.kept and not source.readers and source.ready == count

    def _alloc(self, size: int, needed: Region | None = None) -> int:
        """The base of ``size`` free slots; kept regions are given up for them, but not ``needed``. Raises PoolFull."""
        idle = self._idle(needed)
        if self.allocator.gap(size, {region.base for region in idle}) is not None:
            while self.allocator.gap(size) is None:
                self._free(idle.pop(0))
        elif self._give_up(size, needed):
            self._gather()
        return self.allocator.alloc(size)

    def _move(self, region: Region, size: int) -> bool:
        """Move an open region to where it can have ``size`` slots. Returns whether there is such a place."""
        try:
            base = self.allocator.alloc(size)
        except PoolFull:
            if not self._give_up(size - region.size):
                return False
            self._gather(region)
            return self.allocator.resize(region.base, size)
        self._moves.append((region.base, base, region.size))
        self.allocator.free(region.base)
        region.base = base
        return True

    def _idle(self, needed: Region | None = None) -> list[Region]:
        """The kept regions that can be given up, the least recently used first."""
        return [region for region in self.kept if not region.readers and region is not needed]

    def _give_up(self, size: int, needed: Region | None = None) -> bool:
        """Give up kept regions until ``size`` slots are free, wherever they are. Where that is not possible, give up
        none and return False."""
        idle, free = self._idle(needed), self.allocator.slots - self.allocator.used
        if free + sum(region.size for region in idle) < size:
            return False
        while free < size:
            free += idle[0].size
            self._free(idle.pop(0))
        return True

    def _gather(self, growing: Region | None = None) -> None:
        """Move regions together, so that the free slots are consecutive: after ``growing``, else after all."""
        ordered = sorted(self._regions(), key=lambda region: region.base)
        behind = ordered.index(growing) + 1 if growing is not None else len(ordered)
        places: dict[int, int] = {}
        at = self._floor
        for region in ordered[:behind]:
            places[region.base], at = at, at + region.size
        at = self.allocator.slots
        for region in reversed(ordered[behind:]):
            at -= region.size
            places[region.base] = at
        self.allocator.arrange(places)
        for region in (*ordered[:behind], *reversed(ordered[behind:])):
            if (place := places[region.base]) != region.base:
                self._moves.append((region.base, place, region.size))
                region.base = place

    def _free(self, region: Region) -> None:
        self.kept.pop(region, None)
        self._index.remove(region)
        self.allocator.free(region.base)

    @staticmethod
    def _read(region: Region, source: Region | None) -> None:
        """``region`` is going to copy from ``source``; None: it has done so, or does not need to."""
        if region.source is not None:
            region.source.readers -= 1
        region.source = source
        if source is not None:
            source.readers += 1
