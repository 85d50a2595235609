"""Tokenizers built from GGUF metadata against the same vocabularies in tokenizer.json's form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from actors.engines.text.gguf_tokenizer import PATTERNS, build_tokenizer, end_ids
from actors.engines.weights.gguf_loading import GGUFFile
from protocols.errors import ModelError

EVERY = "".join(chr(c) for c in range(1, 0x3100)) + "中文、日本語 한국어 😀👩‍👩‍👧 e\u0301 ﬁ"
TEXTS = [
    EVERY,
    EVERY[::-1],
    "The quick  brown   fox\n\n\n\tjumps over 12345 lazy dogs; don't, DON'T, we'll\r\n  x = [1, 22, 333];\n",
    " leading",
    "  two",
    "",
    " ",
    "\n",
    "<|im_start|>user\nhi<|im_end|>",
]
CORPUS = [*TEXTS[2:], "def main(argument):\n    return argument + 10 * 2000\n" * 5, "the then there other mother " * 5]


def byte_level(split: Any) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = split, decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def metadata_of(tokenizer: Tokenizer, **more: Any) -> dict[str, Any]:
    import json

    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    kinds = np.array([3 if token.startswith("<|") else 1 for token in tokens], np.int32)
    known = {
        "model": "gpt2",
        "tokens": tokens,
        "merges": [" ".join(pair) for pair in model["merges"]],
        "token_type": kinds,
        "bos_token_id": 1,
        "eos_token_id": 0,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in (known | more).items()}


BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace("{1,3}", "")
ORIGINALS = {
    "gpt-2": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "smollm": pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    ),
    "llama-bpe": pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3), "isolated"), BYTES]),
    "qwen2": pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(QWEN2), "isolated"), BYTES]),
}


@pytest.mark.parametrize("pre", ORIGINALS)
def test_byte_level_tokenizers_are_the_originals(pre: str) -> None:
    original = byte_level(ORIGINALS[pre])
    if pre == "qwen2":
        original.normalizer = normalizers.NFC()
    made = build_tokenizer(metadata_of(original, pre=pre, add_bos_token=False), "x.gguf")
    for text in TEXTS:
        expected = original.encode(text).ids
        assert made.encode(text) == expected
        assert made.decode(expected) == original.decode(expected, skip_special_tokens=False)
    assert set(made.all_special_tokens) == {"<|im_start|>", "<|endoftext|>"}


def test_every_pattern_cuts_a_text_of_every_kind_of_character() -> None:
    original = byte_level(ORIGINALS["gpt-2"])
    for pre in PATTERNS:
        made = build_tokenizer(metadata_of(original, pre=pre, add_bos_token=False), "x.gguf")
        assert made.decode(made.encode("don't 12345 \n\n ÄÖ 中文")) == "don't 12345 \n\n ÄÖ 中文"


def test_the_first_token_of_a_text_is_as_the_file_says() -> None:
    original = byte_level(ORIGINALS["llama-bpe"])
    for given, begins in (({"add_bos_token": True}, True), ({"add_bos_token": False}, False), ({}, True)):
        ids = build_tokenizer(metadata_of(original, pre="llama-bpe", **given), "x.gguf").encode("hi")
        assert (ids[0] == 1) is begins
    assert build_tokenizer(metadata_of(original, pre="gpt-2"), "x.gguf").encode("hi")[0] != 1


def test_an_unknown_pattern_is_refused() -> None:
    metadata = metadata_of(byte_level(ORIGINALS["gpt-2"]), pre="novel-bpe")
    with pytest.raises(
        ModelError, match=r"x\.gguf cuts text by the pattern 'novel-bpe'.*tokenizer\.json beside the file"
    ):
        build_tokenizer(metadata, "x.gguf")


@pytest.mark.parametrize("model", ["gpt2", "gemma4"])
def test_a_tokenizer_without_tokens_is_refused(model: str) -> None:
    with pytest.raises(ModelError, match=r"x has no tokenizer\.ggml\.tokens; download it again, or put"):
        build_tokenizer({"tokenizer.ggml.model": model, "tokenizer.ggml.pre": "gpt-2"}, "x")


@pytest.mark.parametrize("model", ["gpt2", "gemma4"])
def test_a_vocabulary_without_merges_is_refused(model: str) -> None:
    """Every letter would be a token of its own, and the answers noise."""
    whole = metadata_of(byte_level(ORIGINALS["gpt-2"]), model=model, pre="gpt-2")
    lacking = {key: value for key, value in whole.items() if not key.endswith("merges")}
    for metadata in (lacking, lacking | {"tokenizer.ggml.merges": []}):
        with pytest.raises(ModelError, match=r"x has no tokenizer\.ggml\.merges, so no text would become its token"):
            build_tokenizer(metadata, "x")
    bytes_alone = [token for token in whole["tokenizer.ggml.tokens"] if len(token) == 1]
    build_tokenizer(
        lacking
        | {"tokenizer.ggml.tokens": bytes_alone, "tokenizer.ggml.token_type": np.ones(len(bytes_alone), np.int32)},
        "x",
    )


def test_pieces_with_scores_join_the_best_first_and_others_are_bytes() -> None:
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), "▁", "a", "b", "c", "bc", "ab", "▁a", "  "]
    kinds = np.array([2, 3, 3, *[6] * 256, *[1] * 7, 4], np.int32)
    scores = np.array([0.0] * 259 + [-10, -11, -12, -13, -1, -2, -3, -1000], np.float32)
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    made = build_tokenizer(metadata, "x.gguf")
    assert made.convert_ids_to_tokens(made.encode("abc")) == ["<s>", "▁a", "bc"]
    assert made.convert_ids_to_tokens(made.encode("ab  c", add_special_tokens=False)) == ["▁", "ab", "▁▁", "c"]
    assert made.decode(made.encode("abc 中\n"), skip_special_tokens=True) == "abc 中\n"
    metadata["tokenizer.ggml.add_space_prefix"] = False
    assert build_tokenizer(metadata, "x").convert_ids_to_tokens(build_tokenizer(metadata, "x").encode("ab")) == [
        "<s>",
        "ab",
    ]


def test_a_turn_ends_where_the_file_or_the_names_of_its_tokens_say() -> None:
    metadata = metadata_of(byte_level(ORIGINALS["gpt-2"]))
    assert end_ids(metadata, "x.gguf") == {0, 2}
    assert end_ids({**metadata, "tokenizer.ggml.eot_token_id": 7}, "x.gguf") == {0, 2, 7}


def test_tools_are_shown_by_a_template_of_their_own_if_the_file_has_one() -> None:
    begin, content, names = "tokenizer.chat_template", "{{ messages[0].content }}", ("rag", "tool_use")
    several = {f"{begin}s": list(names), **{f"{begin}.{name}": f"{name}: {content}" for name in names}}
    metadata = metadata_of(byte_level(ORIGINALS["gpt-2"]), pre="gpt-2") | several
    made = build_tokenizer({**metadata, begin: f"plain: {content}"}, "x.gguf")
    asked, tools = [{"role": "user", "content": "Hi"}], [{"type": "function", "function": {"name": "f"}}]
    shown = [made.apply_chat_template(asked, tools=given, tokenize=False) for given in (None, tools)]
    assert shown == ["plain: Hi", "tool_use: Hi"]
    assert build_tokenizer(metadata, "x.gguf").chat_template is None  # as in llama.cpp, which needs the plain one


def test_a_tokenizer_beside_the_file_is_taken_instead(tmp_path: Path) -> None:
    original = byte_level(ORIGINALS["gpt-2"])
    original.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "x.gguf").write_bytes(b"")
    made = GGUFFile(str(tmp_path / "x.gguf")).tokenizer()
    assert made.encode(TEXTS[2]) == original.encode(TEXTS[2]).ids
