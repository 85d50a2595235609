"""Build a retrieval datastore from text and JSONL files with a model's tokenizer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from actors.datastore import Meta, build
from protocols.errors import ConfigError

TEXT_FIELDS = ("text", "content", "prompt", "instruction", "question", "input", "completion", "response", "answer")
LIST_FIELDS = ("turns", "messages", "conversations")

Tokenize = Callable[[list[str]], list[list[int]]]
_BATCH = 256


def build_from_files(
    directory: str | Path,
    files: Sequence[str | Path],
    tokenize: Tokenize,
    vocab_size: int,
    tokenizer_digest: str,
    progress: Callable[[int, int], None] | None = None,
) -> Meta:
    """Write a datastore of ``files``: a .jsonl or .ndjson file gives a document per line, any other file one.

    ``tokenize`` turns texts into ids without special tokens (see :func:`without_specials`). ``progress`` is called with
    (files done, files in all). Raises ConfigError naming the file and, in JSONL, the line.
    """
    if not files:
        raise ConfigError("name at least one text or JSONL file to build a datastore from")

    def documents() -> Iterator[list[int]]:
        for number, file in enumerate(files):
            batch: list[str] = []
            for text in read_documents(Path(file)):
                batch.append(text)
                if len(batch) == _BATCH:
                    yield from tokenize(batch)
                    batch = []
            yield from tokenize(batch)
            if progress is not None:
                progress(number + 1, len(files))

    return build(directory, documents(), vocab_size, tokenizer_digest)


def build_for_model(
    directory: str | Path,
    files: Sequence[str | Path],
    model: str,
    progress: Callable[[int, int], None] | None = None,
) -> Meta:
    """:func:`build_from_files` with a model's tokenizer, and marked as that tokenizer's. ModelError if it has none."""
    from actors.engines.text.tokenizer import tokenizer_digest
    from actors.engines.weights.loading import load_config, load_tokenizer

    config = load_config(model)
    text = config.get_text_config()
    tokenizer = load_tokenizer(model)
    digest = tokenizer_digest(tokenizer)
    return build_from_files(directory, files, without_specials(tokenizer), int(text.vocab_size), digest, progress)


def without_specials(tokenizer: Any) -> Tokenize:
    """A model's tokenizer, without special tokens."""

    def tokenize(texts: list[str]) -> list[list[int]]:
        if not texts:
            return []
        ids: list[list[int]] = tokenizer(texts, add_special_tokens=False)["input_ids"]
        return ids

    return tokenize


def read_documents(path: Path) -> Iterator[str]:
    """The texts of one file, empty ones left out."""
    try:
        raw = path.read_text("utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"cannot read {path}: it is not UTF-8 text") from None
    if path.suffix not in (".jsonl", ".ndjson"):
        if raw.strip():
            yield raw
        return
    for number, line in enumerate(raw.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise ConfigError(f"{path} line {number} is not JSON ({error.msg})") from None
        parts = list(_texts(row))
        if not parts:
            known = ", ".join((*TEXT_FIELDS, *LIST_FIELDS))
            raise ConfigError(f"{path} line {number} has no text; it must be a string or have one of {known}")
        text = "\n".join(parts)
        if text.strip():
            yield text


def _texts(row: Any) -> Iterable[str]:
    """The texts of a JSON value in the order in which a reader would meet them."""
    if isinstance(row, str):
        yield row
    elif isinstance(row, dict):
        for field in TEXT_FIELDS:
            if isinstance(row.get(field), str):
                yield row[field]
        for field in LIST_FIELDS:
            if isinstance(row.get(field), list):
                for part in row[field]:
                    yield from _texts(part)
        if isinstance(row.get("value"), str):  # a turn of a ShareGPT conversation
            yield row["value"]
