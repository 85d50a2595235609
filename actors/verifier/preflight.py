"""What differs between a draft's tokenizer and the target's, in a sentence."""

from __future__ import annotations

from actors.models import ModelInfo
from protocols.messages import Hello


def tokenizers_differ(hello: Hello, info: ModelInfo) -> str | None:
    """None if they are the same, or if the drafter has no model: one that copies the ids that it is sent fits any."""
    if hello.tokenizer_digest == info.tokenizer_digest or (not hello.tokenizer_digest and not hello.vocab_size):
        return None
    return (
        f"the tokenizer of draft model {hello.model_id} (vocabulary of {hello.vocab_size}) is not that of "
        f"target {info.model_id} (vocabulary of {info.vocab_size}); use a draft model of the same family"
    )
