"""A read-only datastore of token ids with a suffix array, in memory-mapped files (for REST, arXiv 2311.08252).

Files of a datastore directory:

- ``tokens.npy``: every document's ids, each followed by a separator (the id ``vocab_size``), in file order;
- ``suffixes.npy``: the start of every suffix, sorted by its first 26 or more tokens;
- ``starts.npy``: ``starts[t]`` suffixes begin with a token below t (one more entry than there are ids);
- ``meta.json``: format, vocabulary size, tokenizer digest and the number of tokens.

Opening one maps the files, so it costs the same for any size; pages are read as they are needed and shared between
processes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from protocols.errors import ConfigError, ModelError

FORMAT = 1
ARRAYS = ("tokens", "suffixes", "starts")
ORDERED = 26  # tokens by which suffixes are in order, at least

Ids = npt.NDArray[Any]  # uint16 or uint32


@dataclass(frozen=True, slots=True)
class Meta:
    vocab_size: int
    tokenizer_digest: str
    tokens: int  # separators included
    documents: int


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
            raw = json.loads((path / "meta.json").read_text())
            if raw["format"] != FORMAT:
                raise ModelError(f"the datastore at {path} has format {raw['format']} instead of {FORMAT}; rebuild it")
            meta = Meta(raw["vocab_size"], raw["tokenizer_digest"], raw["tokens"], raw["documents"])
            arrays = [np.load(path / f"{name}.npy", mmap_mode="r") for name in ARRAYS]
        except (OSError, ValueError, KeyError, TypeError, EOFError) as error:
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
        begin = low = self._bound(wanted, low, high, upper=False)
        return begin, self._bound(wanted, low, high, upper=True)

    def _bound(self, wanted: list[int], low: int, high: int, *, upper: bool) -> int:
        tokens, suffixes, length = self.tokens, self.suffixes, len(wanted)
        while low < high:
            middle = (low + high) >> 1
            at = int(suffixes[middle])
            found = tokens[at : at + length].tolist()
            if found < wanted or (upper and found == wanted):
                low = middle + 1
            else:
                high = middle
        return low


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
        part = path / f"{name}.part.npy"
        np.save(part, array)
        part.replace(path / f"{name}.npy")  # a verifier that has mapped the old file keeps it
    fields = {
        "format": FORMAT,
        "vocab_size": vocab_size,
        "tokenizer_digest": tokenizer_digest,
        "tokens": meta.tokens,
        "documents": meta.documents,
    }
    (path / "meta.json").write_text(json.dumps(fields, indent=1) + "\n")
    return meta


def _check_writable(path: Path) -> None:
    """ConfigError unless a datastore may be written there."""
    own = {"meta.json", *(f"{name}{ending}" for name in ARRAYS for ending in (".npy", ".part.npy"))}
    if path.is_dir() and not {entry.name for entry in path.iterdir()} <= own:
        raise ConfigError(f"{path} holds other files than a datastore's; name a new directory to write it to")
    if path.exists() and not path.is_dir():
        raise ConfigError(f"{path} is a file; name a directory to write the datastore to, and the texts behind it")


def suffix_array(tokens: Ids, symbols: int) -> npt.NDArray[Any]:
    """Starts of all suffixes of ``tokens`` (values below ``symbols``), in order of their first ORDERED tokens or more.

    Prefix doubling (Manber and Myers 1990) that starts from as many tokens as fit one integer and stops as soon as
    queries cannot tell the difference. An ended suffix sorts before its continuations.
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
