"""The longest text that one token can stand for, so that a prompt which cannot fit is refused before it is tokenized.

Known of tokenizers that keep every byte of a text, or are known to drop it. Others may drop any, or have a single token
for any number of unknown characters.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Iterator
from typing import Any

from actors.engines.text.plain import LETTERS

# Factor by which NFC shortens a text at most, in bytes of UTF-8: a character has three times the bytes of its canonical
# decomposition at most (U+1FEF), and that three times those of its composition (U+0390).
NFC_SHORTENS = 9


def fewest_tokens(backend: Any) -> Callable[[str], int]:
    """What gives a number of tokens that a text has at least, zero where nothing is known of the tokenizer."""
    normalizers = list(_parts(backend.normalizer, "normalizers"))
    longest, dropped = _longest(backend) if all(map(_keeps, normalizers)) else (0, b"")
    composes = any(part["type"] == "NFC" for part in normalizers)

    def fewest(text: str) -> int:
        if not longest:
            return 0
        size = len(text.encode(errors="replace").translate(None, dropped))
        if composes and not (len(normalizers) == 1 and unicodedata.is_normalized("NFC", text)):
            size = 0 if dropped else size // NFC_SHORTENS
        return size // longest

    return fewest


def _longest(backend: Any) -> tuple[int, bytes]:
    """The bytes of a normalized text that one token stands for at most, and the bytes that have no token and are
    dropped. (0, b""): not known."""
    splitters = list(_parts(backend.pre_tokenizer, "pretokenizers"))
    added = backend.get_added_tokens_decoder().values()
    if type(backend.model).__name__ != "BPE" or backend.truncation or not all(map(_splits, splitters)):
        return 0, b""
    if any(token.lstrip or token.rstrip for token in added):  # it includes adjacent spaces
        return 0, b""
    names = backend.get_vocab(with_added_tokens=False)
    if any(part["type"] == "ByteLevel" for part in splitters):
        lengths, dropped = (
            [len(name) for name in names],
            bytes(byte for letter, byte in LETTERS.items() if letter not in names),
        )
    elif backend.model.byte_fallback and all(f"<0x{byte:02X}>" in names for byte in range(256)):
        lengths, dropped = [len(name.encode()) for name in names], b""
    else:
        return 0, b""
    return max([*lengths, *(len(token.content.encode()) for token in added)]), dropped


def _parts(component: Any, of_sequence: str) -> Iterator[dict[str, Any]]:
    """The descriptions of a component of a tokenizer, those within a sequence one by one."""

    def flat(one: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if one["type"] != "Sequence":
            yield one
        for part in one.get(of_sequence, ()):
            yield from flat(part)

    if component is not None:
        yield from flat(json.loads(component.__getstate__()))


def _keeps(normalizer: dict[str, Any]) -> bool:
    """Whether a normalizer shortens no text, but for NFC."""
    match normalizer:
        case {"type": "NFC" | "Prepend"}:
            return True
        case {"type": "Replace", "pattern": {"String": old}, "content": new}:
            return len(old.encode()) <= len(new.encode())
    return False


def _splits(pre_tokenizer: dict[str, Any]) -> bool:
    """Whether a pre-tokenizer drops no character."""
    match pre_tokenizer:
        case {"type": "ByteLevel" | "Digits" | "Metaspace"}:
            return True
        case {"type": "Split", "behavior": behavior}:
            return bool(behavior != "Removed")
    return False
