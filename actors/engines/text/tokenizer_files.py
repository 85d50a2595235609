"""Ids in a directory's tokenizer files, held against what a vocabulary can have: readers make room for the largest."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from actors.engines.decoder.bounds import MOST_SIZE
from protocols.errors import ModelError

NAMES = ("tokenizer.json", "tokenizer_config.json", "added_tokens.json", "vocab.json")


def check_token_ids(directory: Path) -> None:
    """Raise ModelError for an id that no vocabulary has, and for files that are no JSON."""
    for file in (directory / name for name in NAMES):
        if not file.is_file():
            continue
        try:
            ids = [*_ids(file.name, json.loads(file.read_text(encoding="utf-8")))]
        except (ValueError, RecursionError):
            raise ModelError(f"{file} cannot be read as JSON: download it again") from None
        except (AttributeError, KeyError, TypeError):
            raise ModelError(f"{file} has no vocabulary as other tokenizers have it; download it again") from None
        for one in ids:
            if type(one) is not int or not 0 <= one < MOST_SIZE:
                raise ModelError(f"{one!r} in {file} is no number of a token; download it again")


def _ids(name: str, content: Any) -> Iterator[Any]:
    if name == "tokenizer_config.json":
        for one in content.get("added_tokens_decoder") or {}:
            yield int(one)
    elif name != "tokenizer.json":
        yield from content.values()
    else:
        vocabulary = (content.get("model") or {}).get("vocab") or {}
        yield from vocabulary.values() if isinstance(vocabulary, dict) else ()
        for token in content.get("added_tokens") or ():
            yield token["id"]
        for processor in _processors(content.get("post_processor")):
            for token in (processor.get("special_tokens") or {}).values() if processor["type"] in _TEMPLATES else ():
                yield from token["ids"]


_TEMPLATES = ("TemplateProcessing",)


def _processors(found: Any) -> Iterator[dict[str, Any]]:
    if found is None:
        return
    if found["type"] == "Sequence":
        for one in found["processors"]:
            yield from _processors(one)
    else:
        yield found
