"""Texts and vocabularies of GGUF files read as the packaged llama.cpp reads them (tests/data/tokenizers)."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from actors.engines.text.gguf_tokenizer import ADDS_BOS, ANSWER_FOLLOWS, PATTERNS, build_tokenizer, end_ids
from protocols.errors import ModelError
from tools.tokenizers.table import KEPT, PAGE, REASONS, different, page, tokenizer, vocabulary

KINDS = json.loads((KEPT / "kinds.json").read_text())
CUTS = json.loads((KEPT / "patterns.json").read_text())
CASES: dict[str, dict[str, Any]] = KINDS["cases"]
# Where the models' own tokenizers are other than llama.cpp, theirs are followed
OWN = {"gemma4": "its template writes the first token", "Phi 3.5": "its marks take spaces, whatever its name"}


def metadata(case: dict[str, Any]) -> dict[str, Any]:
    said = {"general.architecture": case.get("architecture", "llama"), "general.name": case.get("name", "")}
    entries = KINDS["vocabularies"][case["of"]] | case["entries"]
    return said | {f"tokenizer.ggml.{key}": np.array(of) if key in ARRAYS else of for key, of in entries.items()}


ARRAYS = ("scores", "token_type")


@pytest.mark.parametrize("pre", PATTERNS)
def test_texts_are_cut_as_llama_cpp_cuts_them(pre: str) -> None:
    texts = different(pre)
    reasons = [known for known in REASONS if pre in known.names]
    assert texts <= {text for known in reasons for text in texts if known.explains(text)}
    assert bool(texts) is bool(reasons)


def test_every_pattern_is_one_that_llama_cpp_knows_and_begins_texts_as_there() -> None:
    assert PATTERNS.keys() <= CUTS["names"].keys()
    assert PATTERNS.keys() & CUTS["begins"] == ADDS_BOS
    assert len(CUTS["texts"]) > 300


@pytest.mark.parametrize("pre", sorted(CUTS["names"].keys() - PATTERNS.keys()))
def test_other_patterns_are_refused(pre: str) -> None:
    with pytest.raises(ModelError, match=f"cuts text by the pattern {pre!r}, which duoactor does not know; give"):
        tokenizer(pre)


@pytest.mark.parametrize("name", sorted(CASES.keys() - OWN.keys()))
def test_vocabularies_and_flags_are_read_as_llama_cpp_reads_them(name: str) -> None:
    made, told = build_tokenizer(metadata(CASES[name]), "x.gguf"), CASES[name]["told"]
    assert [made.encode(text, add_special_tokens=False) for text in KINDS["texts"]] == told["ids"]
    assert [made.encode(text) for text in KINDS["texts"]] == told["around"]


def test_marks_of_phi_3_take_the_spaces_behind_them_whatever_the_files_name() -> None:
    made = build_tokenizer(metadata(CASES["Phi 3.5"]), "x.gguf")
    assert [made.encode(text) for text in KINDS["texts"]] == CASES["Phi 3"]["told"]["around"]
    assert CASES["Phi 3.5"]["told"] != CASES["Phi 3"]["told"]


def test_gemma_4_begins_a_text_with_nothing() -> None:
    made, told = build_tokenizer(metadata(CASES["gemma4"]), "x.gguf"), CASES["gemma4"]["told"]
    assert [made.encode(text) for text in KINDS["texts"]] == told["ids"] != told["around"]


@pytest.mark.parametrize("name", CASES)
def test_texts_and_turns_end_as_in_llama_cpp(name: str) -> None:
    said = metadata(CASES[name])
    tokens, ends = said["tokenizer.ggml.tokens"], end_ids(said, "x.gguf")
    infill = {"<|fim_pad|>", "<|file_sep|>", "<|repo_name|>"}  # of code between two pieces: not of chats
    assert {tokens[i] for i in ends} == {tokens[i] for i in CASES[name]["told"]["ends"]} - infill


def test_the_end_of_thoughts_ends_no_turn() -> None:
    for marks in ANSWER_FOLLOWS:
        said = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["<|end|>", *marks]}
        assert end_ids(said, "x.gguf") == {1, 2}
    assert end_ids({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["<|end|>"]}, "x.gguf") == {0}


@pytest.mark.parametrize("kind", ["bert", "t5", "rwkv", "plamo2", "plamo3", "no_vocab", "whitespace", "hybriddna"])
def test_other_kinds_of_vocabularies_are_refused(kind: str) -> None:
    said = metadata(CASES["bytes"]) | {"tokenizer.ggml.model": kind}
    with pytest.raises(ModelError, match=f"has a tokenizer of kind {kind}, which duoactor does not build; give"):
        build_tokenizer(said, "x.gguf")


def test_the_vocabulary_of_the_cuts_is_whole() -> None:
    assert len(set(vocabulary()["tokens"])) == len(vocabulary()["tokens"])


def test_the_page_shows_the_outcomes() -> None:
    assert page(PAGE.read_text()) == PAGE.read_text(), "run python -m tools.tokenizers.table"
