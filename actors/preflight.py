"""Differences between a draft's tokenizer and the target's, in a sentence."""

from __future__ import annotations

from actors.models import ModelInfo
from protocols.messages import Hello, TokenizerParts


def differs(hello: Hello, info: ModelInfo) -> str | None:
    """:func:`tokenizers_differ` of a draft and a target that is loaded."""
    return tokenizers_differ(hello, info.model_id, info.tokenizer_digest, info.tokenizer, info.vocab_size)


def tokenizers_differ(
    hello: Hello, target: str, digest: str, parts: TokenizerParts | None, vocab_size: int = 0
) -> str | None:
    """None if they are the same, or if the drafter has no model: copies of ids fit any target.

    Models of one tokenizer may pad their vocabularies to different sizes, and differ in their contexts: neither is
    looked at here. Ids that the draft does not know it cannot draft for, and texts longer than its context it is not
    lent.
    """
    if hello.tokenizer_digest == digest or (not hello.tokenizer_digest and not hello.vocab_size):
        return None
    return (
        f"the tokenizer of draft model {hello.model_id} is not that of target {target}: "
        f"{_difference(hello, parts, vocab_size)}; use a draft model of the same family, or --draft sam, which needs "
        "none"
    )


def _difference(hello: Hello, target: TokenizerParts | None, vocab_size: int) -> str:
    draft = hello.tokenizer
    if draft is None or target is None:
        if hello.vocab_size == vocab_size:
            return f"their models have {vocab_size} token ids each, but the digests of their tokenizers differ"
        return f"their models have {hello.vocab_size} and {vocab_size} token ids"
    first = _first_difference(draft, target)
    shared = min(draft.entries, target.entries)
    special = "" if draft.special == target.special else ", and its special tokens are others"
    if draft.entries != target.entries and (first is None or first + TokenizerParts.BLOCK > shared):
        return f"its vocabulary has {draft.entries} entries, the target's {target.entries}{special}"
    if first is not None:
        sizes = f" ({draft.entries} entries, the target's {target.entries})" if draft.entries != target.entries else ""
        last = first + TokenizerParts.BLOCK - 1
        return f"the first entry of its vocabulary{sizes} that differs is among ids {first} to {last}{special}"
    if draft.merges != target.merges:
        return f"the vocabularies are the same, but the merges differ{special}"
    return f"their digests differ{special}"


def _first_difference(draft: TokenizerParts, target: TokenizerParts) -> int | None:
    """The first token id of the first block of the vocabulary that differs."""
    width = TokenizerParts.WIDTH
    for block in range(max(len(draft.blocks), len(target.blocks)) // width):
        at = slice(block * width, (block + 1) * width)
        if draft.blocks[at] != target.blocks[at]:
            return block * TokenizerParts.BLOCK
    return None
