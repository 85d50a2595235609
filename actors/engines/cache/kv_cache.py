"""The target's KV slots: each request's region, which grows with its text; prefixes that earlier requests have left;
and the copies that are due before the next forward."""

from __future__ import annotations

import math
from collections.abc import Sequence

from actors.engines.cache.pool import KVPool, RegionAllocator
from actors.engines.cache.prefix_index import Region
from actors.engines.cache.prefixes import PrefixCache
from actors.engines.flat_batch import SPAN, align
from actors.models import DEFAULT_NODES
from protocols.errors import PoolFull, RequestError
from protocols.messages import FailureCode

CHUNK = 256  # rows of a prompt's forward, counted from position 0, where a row's bits depend on the forward's shape
SHARED = 16  # tokens that are shared at a time where bits allow it: a system prompt may have fewer than 64
TRASH = SPAN  # slots that padding rows write to


def full_request(max_context: int) -> int:
    """Slots of a request that fills the whole context, with a window of the default size."""
    return align(max_context + DEFAULT_NODES)


def fits(slots: int, context: int) -> bool:
    """Whether a pool of so many slots has room for a request that fills the context."""
    return full_request(context) <= slots - TRASH


def longest_text(slots: int, most_nodes: int) -> int:
    """Tokens of the longest request with a window of ``most_nodes`` that a pool of so many slots has room for."""
    return max(0, (slots - TRASH) // SPAN * SPAN - most_nodes)


def _with_slack(tokens: int, most_nodes: int) -> int:
    """Slots for a text that will grow: a quarter more than it needs, and at least a chunk more. So a region that grows
    many times is copied rarely, at no more than four times the cost of writing it once."""
    return align(tokens + max(CHUNK, tokens // 4) + most_nodes)


class KVCache:
    """It only keeps account of slots and has the pool copy them; :class:`PrefixCache` decides which."""

    def __init__(self, pool: KVPool, chunk: int, kept: float = math.inf) -> None:
        """``chunk``: how many tokens are shared at a time. ``kept``: bytes for texts that no request has open."""
        self._pool = pool
        self._allocator = RegionAllocator(pool.slots)
        self.trash = self._allocator.alloc(TRASH)
        self._prefixes = PrefixCache(self._allocator, chunk, kept / max(1, pool.slot_bytes))

    @property
    def slots(self) -> int:
        """All slots, including those of padding rows."""
        return self._pool.slots

    @property
    def room(self) -> int:
        """Slots for requests."""
        return self.slots - TRASH

    @property
    def used(self) -> int:
        """Slots of open requests."""
        return self._allocator.used - self._prefixes.cached - TRASH

    @property
    def cached(self) -> int:
        """Slots that are kept for later prompts, and free as soon as a request needs them."""
        return self._prefixes.cached

    def open(self, shared: Sequence[int], length: int, text: int, most_nodes: int, salt: object) -> Region:
        """A region for a text of ``length`` tokens that will grow, and behind it a slot for each node of the largest
        window.

        ``shared``: the beginning of the text that may be shared with others; ``salt``: only texts with an equal one
        share anything; ``text``: tokens of prompt and output at most. Raises PoolFull while there is no room, and
        RequestError ("context_length") if the whole text can never fit.
        """
        size = align(text + most_nodes)
        if size > self.room:
            raise RequestError(
                FailureCode.CONTEXT_LENGTH,
                f"prompt and max_tokens make {text} tokens, which take {size} KV slots with their draft window, and "
                f"the pool has {self.room}; ask for fewer tokens or start the verifier with more kv_tokens",
            )
        return self._prefixes.open(min(size, _with_slack(length + 1, most_nodes)), shared, salt)

    def reserve(self, region: Region, length: int, text: int, most_nodes: int) -> None:
        """Make room for the next window behind ``length`` tokens. The region's base may change. Raises PoolFull."""
        needed = align(length + most_nodes)
        if needed <= region.size:
            return
        try:
            self._prefixes.grow(region, min(align(text + most_nodes), _with_slack(length, most_nodes)))
        except PoolFull:
            self._prefixes.grow(region, needed)

    def close(self, region: Region, text: Sequence[int] = ()) -> None:
        """The request has ended. ``text``: prompt and answer, if both may be shared; else only what
        :meth:`computed` has named is kept."""
        self._prefixes.close(region, text)

    def computed(self, region: Region, done: int) -> None:
        """The first ``done`` tokens of the text are computed, and may be shared."""
        self._prefixes.computed(region, done)

    def give_back(self) -> None:
        """Give the system the memory of slots that no text has, unless a text is to be copied from there."""
        if self._prefixes.moving:
            return
        for base, count in self._allocator.give_back():
            self._pool.give_back(base, count)

    def settle(self) -> None:
        """Copy regions that have moved. Called before each forward and not when they move, because only the compute
        thread may use torch's threads."""
        for source, target, count in self._prefixes.take_moves():
            if abs(source - target) >= count:
                self._pool.duplicate(source, target, count)
            else:
                self._pool.copy(range(source, source + count), range(target, target + count))

    def reuse(self, region: Region) -> int:
        """Take over what earlier requests have computed of this text. Returns how many of its tokens are there now."""
        copied = self._prefixes.take(region)
        if copied is not None:
            base, count = copied
            self._pool.duplicate(base, region.base, count)
        return region.ready
