"""A bounded memory of earlier requests' texts, shared by all requests of a process: how did they continue?

After SuffixDecoding (arXiv 2411.04975): agents, templates and retries repeat what was written before. Hash chains, as
in zlib, lead to the occurrences of a context: for the last 8 tokens, else for the last 3, the places behind their
occurrences, newest first. The continuations at the places with the longest match form a trie with counts, so that a
score tells how often a token followed this context. All tokens are in one ring: the oldest text is overwritten first,
and a chain that leads to overwritten tokens is noticed by comparing them. It takes 28 bytes for each token.

Texts are read piece by piece when their requests have ended, because other streams decode meanwhile.
"""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from actors.models import DEFAULT_NODES
from actors.proposals import NOTHING, Proposal, likeliest

KEYS = (8, 3)  # lengths of the contexts that are looked up, the longest first
LONGEST = 32  # tokens of a match that are compared
PLACES = 16  # places of a chain that are looked at
PIECE = 2048  # tokens that are read at once, in half a millisecond
FACTOR = 0x9E3779B97F4A7C15  # the golden ratio of 2^64: Knuth's multiplicative hash
MASK = (1 << 64) - 1

_Tokens = npt.NDArray[np.int32]


class Memory:
    """Requests of different scopes do not find each other's texts. Not thread-safe."""

    def __init__(self, max_tokens: int, secret: bytes = b"") -> None:
        """``secret``: known to this process alone. A hash with it tells scopes apart by 64 bits, so that nobody can
        find a salt with the bits of another scope."""
        self._secret = secret
        self.end = LONGEST + max_tokens
        self.tokens: _Tokens = np.full(self.end + 1, -1, dtype=np.int32)  # -1 stands between texts
        self.owners = np.zeros(self.end + 1, dtype=np.uint64)
        bits = max(8, (max_tokens - 1).bit_length())
        self._shift = 64 - bits
        # by length: the newest place of each bucket, 0: none; and the next older one of each place
        self._chains = [(key, np.zeros(1 << bits, np.int32), np.zeros(self.end + 1, np.int32)) for key in KEYS]
        # views: an element of an array costs three times as much
        self.at, self._bytes = self.tokens.data, self.tokens.data.cast("B")
        self.owner_at = self.owners.data
        self._views = [(key, heads.data, before.data) for key, heads, before in self._chains]
        self._write = LONGEST  # place of the next token; a -1 is there
        self._unread: deque[tuple[Sequence[int], int]] = deque()  # texts with their owners
        self._waiting = 0  # tokens of these texts
        self._done = 0  # tokens read of the first one

    # --- reading texts -----------------------------------------------------------------------------------------------

    def remember(self, text: Sequence[int], scope: str = "") -> None:
        """Take the text of a request that has ended. It is read later, by :meth:`read`."""
        text = text[-(self.end - LONGEST) :]
        if len(text) <= KEYS[-1]:
            return
        self._unread.append((text, self.owner(scope)))
        self._waiting += len(text)
        while self._waiting > self.end - LONGEST:  # the first would be overwritten before it could be used
            self._forget_first()

    def read(self) -> bool:
        """Read the next piece. Returns whether there was one."""
        if not self._unread:
            return False
        text, holder = self._unread[0]
        if self._done == 0 and self._write > LONGEST:
            self._write += 1  # the -1 behind the last text stays
        if self._write >= self.end:
            self._write = LONGEST
        start = self._done
        stop = min(start + PIECE, len(text), start + self.end - self._write)
        self._index(np.asarray(text[start:stop], dtype=np.int32), holder)
        self._done = stop
        if stop == len(text):
            self._forget_first()
        return True

    def _forget_first(self) -> None:
        text, _ = self._unread.popleft()
        self._waiting -= len(text)
        self._done = 0

    def _index(self, piece: _Tokens, holder: int) -> None:
        begin, stop = self._write, self._write + len(piece)
        context = min(self._done, KEYS[0]) if begin > LONGEST else 0  # tokens of this text in front of the piece
        self.tokens[begin:stop] = piece
        self.tokens[stop] = -1
        self.owners[begin:stop] = holder
        self._write = stop
        known = self.tokens[begin - context : stop].astype(np.uint64)
        for key, heads, before in self._chains:
            if len(known) <= key:
                continue
            # a context ends in front of its place, which may be the piece's last token but not the -1 behind it
            hashes = np.full(len(known) - key, holder, dtype=np.uint64)
            for offset in range(key):
                hashes = (hashes ^ known[offset : offset + len(hashes)]) * np.uint64(FACTOR)
            buckets = (hashes >> np.uint64(self._shift)).astype(np.int64)
            places = np.arange(stop - len(hashes), stop, dtype=np.int32)
            fresh = places >= begin
            self._chain(heads, before, buckets[fresh], places[fresh])

    @staticmethod
    def _chain(heads: _Tokens, before: _Tokens, buckets: npt.NDArray[np.int64], places: _Tokens) -> None:
        """Put places, which ascend, in front of the chains of their buckets."""
        order = np.argsort(buckets, kind="stable")
        buckets, places = buckets[order], places[order]
        first = np.ones(len(places), dtype=np.bool_)
        first[1:] = buckets[1:] != buckets[:-1]
        before[places] = np.where(first, heads[buckets], np.roll(places, 1))
        last = np.roll(first, -1)
        heads[buckets[last]] = places[last]

    def owner(self, scope: str) -> int:
        return int.from_bytes(blake2b(scope.encode(), key=self._secret, digest_size=8).digest(), "little")

    # --- finding continuations ---------------------------------------------------------------------------------------

    def places(self, suffix: Sequence[int], holder: int) -> tuple[int, list[int]]:
        """The length of the longest known context that ``suffix`` ends with, and the places behind its occurrences,
        newest first. ``holder``: the :meth:`owner` of the texts that may be found."""
        best, found, known = 0, list[int](), min(len(suffix), LONGEST)
        wanted = suffix[-known:]
        spelt = int.from_bytes(array("i", wanted).tobytes())
        for key, heads, before in self._views:
            if known < key or best:
                continue
            value = holder
            for token in wanted[-key:]:
                value = ((value ^ token) * FACTOR) & MASK
            place = heads[value >> self._shift]
            for _ in range(PLACES):
                if not place:
                    break
                if self.owner_at[place] == holder and self.at[place] >= 0:
                    # the lowest bit that differs is in the last token that does
                    other = int.from_bytes(self._bytes[4 * (place - known) : 4 * place]) ^ spelt
                    length = ((other & -other).bit_length() - 1) // 32 if other else known
                    if length > best and length >= key:
                        best, found = length, [place]
                    elif best and length == best:
                        found.append(place)
                place = before[place]
        return best, found


class Remembered:
    """The proposer that finds one request's context in a memory: its own session, too."""

    def __init__(self, memory: Memory, scope: str = "") -> None:
        self._memory, self._owner = memory, memory.owner(scope)
        self._suffix: list[int] = []

    def open(self, prompt: Sequence[int]) -> Remembered:
        self.extend(prompt)
        return self

    def extend(self, tokens: Sequence[int]) -> None:
        self._suffix = [*self._suffix, *tokens[-LONGEST:]][-LONGEST:]

    def propose(self, budget: int) -> Proposal:
        length, places = self._memory.places(self._suffix, self._owner)
        if not places or budget <= 0:
            return NOTHING
        depth = min(DEFAULT_NODES, budget)
        rows = Counter(_until_the_end(self._memory.at[place : place + depth].tolist()) for place in places)
        return likeliest(rows, length, budget)


def _until_the_end(row: list[int]) -> tuple[int, ...]:
    return tuple(row[: row.index(-1)] if -1 in row else row)
