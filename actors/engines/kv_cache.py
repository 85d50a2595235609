"""Which slots of its KV pool the target's requests hold: room for a text that grows, what an earlier prompt left there,
and what has to be copied before the next forward."""

from __future__ import annotations

from collections.abc import Sequence

from actors.engines.engine import Pool
from actors.engines.flat_batch import SPAN, align
from actors.engines.pool import RegionAllocator
from actors.engines.prefix_index import Region
from actors.engines.prefixes import PrefixCache
from actors.models import DEFAULT_NODES
from protocols.errors import PoolFull, RequestError
from protocols.messages import FailureCode

CHUNK = 256  # rows of a prompt's forward, counted from position 0, where bits depend on the shapes that it runs in
TRASH = SPAN  # slots that padding rows write to


def full_request(max_context: int) -> int:
    """Slots that a request of the whole context takes, with a window of the default size."""
    return align(max_context + DEFAULT_NODES)


def _spacious(tokens: int, most_nodes: int) -> int:
    """Slots for a text of so many tokens that goes on: a quarter more, so that the copies of a region that grew again
    and again cost no more than four times what writing it did; and at least a chunk, so that they are rare."""
    return align(tokens + max(CHUNK, tokens // 4) + most_nodes)


class KVCache:
    def __init__(self, pool: Pool, chunk: int) -> None:
        """``chunk``: tokens that are shared together."""
        self._pool = pool
        self._allocator = RegionAllocator(pool.slots)
        self.trash = self._allocator.alloc(TRASH)
        self._prefixes = PrefixCache(self._allocator, chunk)

    @property
    def slots(self) -> int:
        """All of them, those for padding rows too."""
        return self._pool.slots

    @property
    def room(self) -> int:
        """Slots for requests."""
        return self.slots - TRASH

    @property
    def used(self) -> int:
        return self._allocator.used - self._prefixes.cached

    @property
    def cached(self) -> int:
        """Slots that are kept for later prompts, and free as soon as a request needs them."""
        return self._prefixes.cached

    def open(self, shared: Sequence[int], length: int, text: int, most_nodes: int, salt: object) -> Region:
        """Takes slots for the tokens that there are and some more, and one per node of the largest window behind them.

        ``shared``: what may be shared of the ``length`` tokens that there are; ``text``: tokens of prompt and output at
        most; ``salt``: only texts of an equal one share what is computed. Raises PoolFull while there is no room,
        RequestError ("context_length") if the whole text will never fit.
        """
        size = align(text + most_nodes)
        if size > self.room:
            raise RequestError(
                FailureCode.CONTEXT_LENGTH,
                f"prompt and max_tokens make {text} tokens, which take {size} KV slots with their draft window, and "
                f"the pool has {self.room}; ask for fewer tokens or start the verifier with more kv_tokens",
            )
        return self._prefixes.open(min(size, _spacious(length + 1, most_nodes)), shared, salt)

    def reserve(self, region: Region, length: int, text: int, most_nodes: int) -> None:
        """Room for the next window behind ``length`` tokens; where the region begins may change. Raises PoolFull."""
        needed = align(length + most_nodes)
        if needed <= region.size:
            return
        try:
            self._prefixes.grow(region, min(align(text + most_nodes), _spacious(length, most_nodes)))
        except PoolFull:
            self._prefixes.grow(region, needed)

    def close(self, region: Region, text: Sequence[int] = ()) -> None:
        """``text``: prompt and answer, where both have been computed as a prompt would be."""
        self._prefixes.close(region, text)

    def computed(self, region: Region, done: int) -> None:
        """The first ``done`` tokens have been computed, and may be shared."""
        self._prefixes.computed(region, done)

    def settle(self) -> None:
        """Copy what has got another place. Before each forward, since it is the compute thread that may use torch's
        threads."""
        for source, target, count in self._prefixes.take_moves():
            if abs(source - target) >= count:
                self._pool.duplicate(source, target, count)
            else:
                self._pool.copy(range(source, source + count), range(target, target + count))

    def reuse(self, region: Region) -> int:
        """Take over what is computed already of the beginning of this prompt: how many tokens."""
        copied = self._prefixes.take(region)
        if copied is not None:
            base, count = copied
            self._pool.duplicate(base, region.base, count)
        return region.ready
