"""A read-only datastore of token ids with a suffix array, and retrieval from it (REST; He et al., arXiv 2311.08252).

The longest suffix of the text, 16 down to 2 tokens, that occurs in the datastore is looked up. The continuations of
its occurrences form a trie with counts, and the most frequent connected nodes are the proposal.

Files of a datastore directory:

- ``tokens.npy``: every document's ids, each followed by a separator (the id ``vocab_size``), in file order;
- ``suffixes.npy``: the start of every suffix, sorted by its first 26 or more tokens;
- ``starts.npy``: ``starts[t]`` suffixes begin with a token below t (one more entry than there are ids);
- ``meta.json``: format, vocabulary size, tokenizer digest and the number of tokens.

Opening one maps the files, so it costs the same for any size; pages are read as they are needed and shared between
processes.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from actors.files import PART, whole_file
from actors.proposals import NOTHING, Proposal, likeliest
from protocols.errors import ConfigError, ModelError
from protocols.limits import Count

FORMAT = 1
ARRAYS = ("tokens", "suffixes", "starts")
ORDERED = 26  # tokens by which suffixes are in order, at least

Ids = npt.NDArray[Any]  # uint16 or uint32


class _Format(msgspec.Struct, frozen=True):
    """The field of ``meta.json`` that every format has."""

    format: int


class Meta(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of ``meta.json``."""

    vocab_size: Count
    tokenizer_digest: str
    tokens: Count  # separators included
    documents: Count
    format: int = FORMAT


class Datastore:
    """A sorted list of suffixes to search. Thread-safe: nothing in it changes."""

    def __init__(self, meta: Meta, tokens: Ids, suffixes: npt.NDArray[Any], starts: npt.NDArray[Any]) -> None:
        self.meta = meta
        self.tokens = tokens
        self.suffixes = suffixes
        self.starts = starts

    @classmethod
    def open(cls, directory: str | Path, tokenizer_digest: str = "") -> Datastore:
        """Map a datastore's files; an empty digest skips the comparison with the model's tokenizer.

        Raises ConfigError if there is no datastore, ModelError if it is damaged or made for another tokenizer.
        """
        path = Path(directory)
        if not (path / "meta.json").is_file():
            raise ConfigError(f"there is no datastore at {path}; build one with `duoactor datastore build`")
        try:
            content = (path / "meta.json").read_bytes()
            if (made := msgspec.json.decode(content, type=_Format).format) != FORMAT:  # its other fields are its own
                raise ModelError(f"the datastore at {path} has format {made} instead of {FORMAT}; rebuild it")
            meta = msgspec.json.decode(content, type=Meta)
            arrays = [np.load(path / f"{name}.npy", mmap_mode="r") for name in ARRAYS]
        except (OSError, ValueError, EOFError) as error:
            raise ModelError(f"the datastore at {path} is damaged ({error}); rebuild it") from None
        if tokenizer_digest and meta.tokenizer_digest != tokenizer_digest:
            raise ModelError(
                f"the datastore at {path} was built with another tokenizer than the model's; rebuild it with this model"
            )
        if [a.shape for a in arrays] != [(meta.tokens,), (meta.tokens,), (meta.vocab_size + 2,)]:
            raise ModelError(f"the datastore at {path} is damaged (its files differ in length); rebuild it")
        tokens, suffixes, starts = (np.asarray(array) for array in arrays)  # a plain view slices faster than memmap
        return cls(meta, tokens, suffixes, starts)

    @property
    def separator(self) -> int:
        return self.meta.vocab_size

    def find(self, pattern: Sequence[int]) -> tuple[int, int]:
        """The range [low, high) of ``suffixes`` that begin with ``pattern`` (at most ORDERED tokens); binary search."""
        wanted = list(pattern)
        first = wanted[0]
        if not 0 <= first < self.meta.vocab_size:
            return 0, 0
        low, high = int(self.starts[first]), int(self.starts[first + 1])
        within = range(low, high)
        return (
            low + bisect_left(within, wanted, key=lambda at: self._suffix(at, len(wanted))),
            low + bisect_right(within, wanted, key=lambda at: self._suffix(at, len(wanted))),
        )

    def _suffix(self, at: int, length: int) -> list[int]:
        start = int(self.suffixes[at])
        found: list[int] = self.tokens[start : start + length].tolist()
        return found


def build(
    directory: str | Path, documents: Iterable[Sequence[int]], vocab_size: int, tokenizer_digest: str = ""
) -> Meta:
    """Write a datastore of ``documents`` (token ids below ``vocab_size``); about 50 bytes of memory per token.

    An earlier one in the directory is replaced; who has it open goes on with it. Raises ConfigError when there is
    nothing to store, an id is outside the vocabulary, or the directory holds anything else.
    """
    path = Path(directory)
    _check_writable(path)
    width = np.uint16 if vocab_size < 2**16 else np.uint32
    parts: list[Ids] = []
    separator = np.array([vocab_size], dtype=width)
    for number, document in enumerate(documents):
        ids = np.asarray(document, dtype=np.int64)
        if ids.size and not (int(ids.min()) >= 0 and int(ids.max()) < vocab_size):
            raise ConfigError(f"document {number} holds a token id outside the vocabulary of {vocab_size}")
        if ids.size:
            parts += [ids.astype(width), separator]
    if not parts:
        raise ConfigError("the files hold no text to build a datastore from")
    tokens: Ids = np.concatenate(parts)
    meta = Meta(vocab_size, tokenizer_digest, len(tokens), len(parts) // 2)
    suffixes = suffix_array(tokens, vocab_size + 1)
    starts = np.zeros(vocab_size + 2, dtype=np.int64)
    np.cumsum(np.bincount(tokens, minlength=vocab_size + 1), out=starts[1:])

    path.mkdir(parents=True, exist_ok=True)
    (path / "meta.json").unlink(missing_ok=True)  # written last: what was interrupted is no datastore
    for name, array in zip(ARRAYS, (tokens, suffixes, starts), strict=True):
        with whole_file(path / f"{name}.npy") as file:  # a verifier that has mapped the old one keeps it
            np.save(file, array)
    with whole_file(path / "meta.json") as file:
        file.write(msgspec.json.format(msgspec.json.encode(meta), indent=1) + b"\n")
    return meta


def _check_writable(path: Path) -> None:
    """ConfigError unless a datastore may be written there."""
    own = {"meta.json", *(f"{name}.npy" for name in ARRAYS)}
    if path.is_dir() and not {entry.name for entry in path.iterdir() if entry.suffix != PART} <= own:
        raise ConfigError(f"{path} holds other files than a datastore's; name a new directory to write it to")
    if path.exists() and not path.is_dir():
        raise ConfigError(f"{path} is a file; name a directory to write the datastore to, and the texts behind it")


def suffix_array(tokens: Ids, symbols: int) -> npt.NDArray[Any]:
    """Starts of all suffixes of ``tokens`` (values below ``symbols``), in order of their first ORDERED tokens or more.

    Prefix doubling (Manber and Myers 1990). It starts from as many tokens as fit one integer, and stops at ``ORDERED``
    tokens, beyond which queries see no difference. An ended suffix sorts before its continuations.
    """
    count = len(tokens)
    bits = int(symbols).bit_length()  # room for 0 = "ended"
    span = max(1, 62 // bits)
    key = np.zeros(count, dtype=np.int64)
    for offset in range(span):
        key <<= bits
        key[: count - offset] |= tokens[offset:].astype(np.int64) + 1 if offset < count else 0
    while True:
        order = np.argsort(key, kind="stable")
        if span >= ORDERED:
            return order.astype(np.int32 if count < 2**31 else np.int64)
        ordered = key[order]
        rank = np.empty(count, dtype=np.int64)
        rank[order] = np.concatenate(([0], np.cumsum(ordered[1:] != ordered[:-1])))
        if int(rank.max()) == count - 1:
            return order.astype(np.int32 if count < 2**31 else np.int64)
        key = rank * (count + 1)
        key[: count - span] += rank[span:] + 1
        span *= 2


# --- retrieval --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Retrieval:
    """Open the datastore with the model's tokenizer digest, so that its ids mean the same."""

    datastore: Datastore
    longest: int = 16  # suffix lengths tried, longest first
    shortest: int = 2
    tokens: int = 10  # most tokens along one continuation
    nodes: int = 64  # most nodes of a proposal
    matches: int = 256  # occurrences looked at; of more, an even sample

    def open(self, prompt: Sequence[int]) -> RetrievalSession:
        session = RetrievalSession(self)
        session.extend(prompt)
        return session


class RetrievalSession:
    def __init__(self, options: Retrieval) -> None:
        self.options = options
        self._suffix: list[int] = []
        # A match can grow by one with each new token at most, which bounds the next search.
        self._bound = options.longest

    def extend(self, tokens: Sequence[int]) -> None:
        longest = self.options.longest
        self._suffix = [*self._suffix, *tokens[-longest:]][-longest:]
        self._bound = min(longest, self._bound + len(tokens))

    def propose(self, budget: int) -> Proposal:
        options = self.options
        budget = min(budget, options.nodes)
        length, low, high = self._match()
        self._bound = max(length, options.shortest - 1)  # shorter matches were not looked for
        if length < options.shortest or budget <= 0:
            return NOTHING
        return self._trie(length, low, high, budget)

    def _match(self) -> tuple[int, int, int]:
        """(length, low, high) of the longest suffix in the datastore; length 0 if even the shortest is not there."""
        find, suffix = self.options.datastore.find, self._suffix
        shortest = self.options.shortest
        best = (0, 0, 0)
        top = min(self._bound, len(suffix))
        bottom, probe = shortest, top  # the last match usually goes on: try the longest first, then halve
        while bottom <= top:
            low, high = find(suffix[len(suffix) - probe :])
            if low < high:
                best = (probe, low, high)
                bottom = probe + 1
            else:
                top = probe - 1
            probe = (bottom + top + 1) // 2
        return best

    def _trie(self, length: int, low: int, high: int, budget: int) -> Proposal:
        options, store = self.options, self.options.datastore
        picks: npt.NDArray[Any] = np.unique(np.linspace(low, high - 1, options.matches).astype(np.int64))
        rows = Counter[tuple[int, ...]]()
        for at in (store.suffixes[picks] + length).tolist():
            row = store.tokens[at : at + options.tokens].tolist()
            rows[tuple(itertools.takewhile(lambda token: token != store.separator, row))] += 1
        return likeliest(rows, length, budget)
