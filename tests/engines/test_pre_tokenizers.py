"""Texts of GGUF vocabularies cut as llama.cpp cuts them, by the name of the pattern (tests/data/pre_tokenizers)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from actors.engines.text.gguf_tokenizer import NORMALISED, PATTERNS, build_tokenizer
from protocols.errors import ModelError

KEPT = json.loads((Path(__file__).parents[1] / "data" / "pre_tokenizers" / "ids.json").read_text())
# Where the models' own tokenizer.json says otherwise than llama.cpp, it is what they were trained with.
DECOMPOSED = {"naïve café cafe\u0301 n\u0303", "a\u0301b c\u0327d"}  # NFC joins a letter and the mark behind it
MARKED = {*DECOMPOSED, "हिन्दी में पाठ"}  # marks belong to words there, and end them in llama.cpp
CASED = {
    "CamelCaseWords XMLHttpRequest iPhone A1B2C3",
    "ABCdef aBC Abc",
    "mixed日本語English123中文",
}  # llama.cpp does not tell capitals there
DIFFERENT: dict[str, set[str]] = {
    **dict.fromkeys(NORMALISED, DECOMPOSED),
    **dict.fromkeys(("tekken", "gpt-4o", "llama4", "kanana2", "minimax-m2"), MARKED),
    **dict.fromkeys(("youtu", "tiny_aya", "cohere2moe"), CASED),
}


def tokenizer(pre: str):
    last = len(KEPT["tokens"]) - 1
    entries = {
        "model": "gpt2",
        "pre": pre,
        "tokens": KEPT["tokens"],
        "token_type": np.array([1] * last + [3]),
        "merges": KEPT["merges"],
        "add_bos_token": False,
    }
    return build_tokenizer({f"tokenizer.ggml.{key}": value for key, value in entries.items()}, "x.gguf")


@pytest.mark.parametrize("pre", PATTERNS)
def test_texts_are_cut_as_llama_cpp_cuts_them(pre: str):
    ours, theirs = tokenizer(pre), KEPT["ids"][KEPT["names"][pre]]
    different = {text for text, ids in zip(KEPT["texts"], theirs, strict=True) if ours.encode(text) != ids}
    assert different <= DIFFERENT.get(pre, set())
    assert len(different) >= min(1, len(DIFFERENT.get(pre, ())))


def test_an_unknown_pattern_is_refused():
    with pytest.raises(ModelError, match="cuts text by the pattern 'falcon', which duoactor does not know; give"):
        tokenizer("falcon")
