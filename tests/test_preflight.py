"""A refusal of a draft model says what about its tokenizer differs."""

from dataclasses import replace

import pytest

from actors.preflight import differs
from protocols.messages import Hello, Role, TokenizerParts
from tests.world.models import INFO

BLOCKS = b"".join(bytes([n] * 4) for n in range(10))  # 320 token ids
TARGET = replace(INFO, tokenizer=TokenizerParts(320, BLOCKS, "merges", "special"))


def hello(**parts) -> Hello:
    given = {"entries": 320, "blocks": BLOCKS, "merges": "merges", "special": "special", **parts}
    return Hello(Role.DRAFTER, "d", "1", "gpt", 320, "another digest", tokenizer=TokenizerParts(**given))


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"blocks": BLOCKS[:12] + b"else" + BLOCKS[16:]}, "is among ids 96 to 127;"),
        ({"blocks": b"else" + BLOCKS[4:], "special": "x"}, "ids 0 to 31, and its special tokens are others"),
        ({"entries": 322, "blocks": BLOCKS + b"more"}, "its vocabulary has 322 entries, the target's 320"),
        ({"entries": 318, "blocks": BLOCKS[:-4] + b"less"}, "its vocabulary has 318 entries, the target's 320"),
        (
            {"entries": 322, "blocks": b"else" + BLOCKS[4:]},
            "(322 entries, the target's 320) that differs is among ids 0",
        ),
        ({"merges": "others"}, "the vocabularies are the same, but the merges differ"),
    ],
)
def test_the_part_that_differs_is_named(parts, words):
    sentence = differs(hello(**parts), TARGET)
    assert sentence.startswith("the tokenizer of draft model gpt is not that of target toy: ") and words in sentence


def test_a_peer_that_does_not_say_the_parts_is_told_the_sizes():
    assert "have 999 and 64 token ids" in differs(Hello(Role.DRAFTER, "d", "1", "gpt", 999, "other"), TARGET)


def test_equal_sizes_are_not_told_as_the_difference():
    sentence = differs(Hello(Role.DRAFTER, "d", "1", "gpt", 64, "other"), TARGET)
    assert "have 64 token ids each, but the digests of their tokenizers differ; use" in sentence


@pytest.mark.parametrize("fields", [{"vocab_size": 96}, {"vocab_size": 32}, {"max_context": 16}])
def test_padding_and_a_shorter_context_are_no_difference(fields):
    same = {"model_id": "small", "vocab_size": 64, "tokenizer_digest": INFO.tokenizer_digest, **fields}
    assert differs(Hello(Role.DRAFTER, "d", "1", **same), TARGET) is None


def test_a_drafter_without_a_model_fits_any_target():
    assert differs(Hello(Role.DRAFTER, "d", "1", "pld"), TARGET) is None
