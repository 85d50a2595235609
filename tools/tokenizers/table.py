"""Write the table of docs/weights.md: how texts are cut by each pattern of GGUF files that llama.cpp knows.

python -m tools.tokenizers.table
"""

from __future__ import annotations

import functools
import json
import re
import textwrap
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import pre_tokenizers

from actors.engines.text.gguf_tokenizer import NORMALISED, PATTERNS, build_tokenizer
from tools.pages import DOCS, renewed

KEPT, PAGE = Path(__file__).parents[2] / "tests/data/tokenizers", DOCS / "weights.md"
END, WHOLE = "<|endoftext|>", ("qzx", "\u0120qzx")  # as tools/tokenizers/with_llama_cpp.py has them


@dataclass(frozen=True, slots=True)
class Known:
    """Why ids differ: the models' own tokenizers do what llama.cpp does not."""

    why: str
    names: frozenset[str]
    explains: Callable[[str], bool]


def marked(text: str) -> bool:
    return any(unicodedata.category(one).startswith("M") for one in text)


def capitals(text: str) -> bool:
    return re.search(r"[^\W\d_]{2}|\w'[^\W\d_]", text) is not None and text != text.lower()


COMPOSED = Known(
    "letters and the marks behind them are composed (NFC)",
    NORMALISED,
    lambda text: unicodedata.normalize("NFC", text) != text,
)
MARKS = Known(
    "marks belong to the letters before them",
    frozenset({"tekken", "gpt-4o", "llama4", "kanana2", "minimax-m2", "talkie", "kimi-k2"}),
    marked,
)
CAPITALS = Known(
    "a capital behind small letters begins a word",
    MARKS.names | {"youtu", "tiny_aya", "cohere2moe"},
    capitals,
)
CODER = Known(
    "wide spaces stand alone",
    frozenset({"deepseek-coder"}),
    lambda text: re.search("[\u2000-\u200a\u2029\u3000]", text) is not None,
)
NUMBERS = Known(
    "digits in front of a letter are counted from their first",
    frozenset({"tiny_aya", "cohere2moe"}),
    lambda text: re.search(r"\d[^\W\d]", text) is not None,
)
AGAIN = Known("々 is Chinese", frozenset({"kimi-k2"}), lambda text: "々" in text)
REASONS = (COMPOSED, MARKS, CAPITALS, CODER, NUMBERS, AGAIN)


@functools.cache
def vocabulary() -> dict[str, Any]:
    merges = cuts()["merges"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*alphabet, *dict.fromkeys(merge.replace(" ", "") for merge in merges), *WHOLE, END]
    kinds = np.array([1] * (len(tokens) - 1) + [3])
    return {"model": "gpt2", "tokens": tokens, "token_type": kinds, "merges": merges, "add_bos_token": False}


@functools.cache
def cuts() -> Any:
    return json.loads((KEPT / "patterns.json").read_text())


def tokenizer(pre: str) -> Any:
    entries = vocabulary() | {"pre": pre}
    return build_tokenizer({f"tokenizer.ggml.{key}": value for key, value in entries.items()}, "x.gguf")


def different(pre: str) -> set[str]:
    """The texts that have other ids than in llama.cpp."""
    kept, ours = cuts(), tokenizer(pre)
    chosen = kept["patterns"][kept["names"][pre]]
    theirs = [ids[one] for ids, one in zip(kept["ids"], chosen, strict=True)]
    return {text for text, ids in zip(kept["texts"], theirs, strict=True) if ours.encode(text) != ids}


def rows() -> Iterator[str]:
    kept = cuts()
    found: dict[str, list[str]] = {}
    for name in sorted(kept["names"]):
        outcome = "refused"
        if name in PATTERNS:
            reasons = [known.why for known in REASONS if name in known.names]
            outcome = f"as the models' own: {', and '.join(reasons)}" if different(name) else "equal"
        found.setdefault(outcome, []).append(f"`{name}`")
    yield textwrap.fill(f"{len(kept['names'])} patterns of {kept['version']}, {len(kept['texts'])} texts:", 120)
    yield ""
    yield "| ids | patterns |"
    yield "|---|---|"
    for outcome, names in sorted(found.items()):
        yield f"| {outcome} | {', '.join(names)} |"


def page(text: str) -> str:
    """The page with its table as it is now."""
    return renewed(text, "patterns", rows())


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
