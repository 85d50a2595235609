"""A datastore in the toy language."""

from __future__ import annotations

from collections.abc import Sequence

from actors.datastore import Datastore, build
from actors.verifier.sources.lookup import Library
from protocols.messages import Sampling
from tests.world.models import INFO, VOCAB, ToyLanguage


def toy_sources(directory, language: ToyLanguage, prompt: Sequence[int]) -> Library:
    """A datastore of greedy continuations of ``prompt``."""
    text = [*prompt, *language.continuation(prompt, Sampling(max_tokens=400, ignore_eos=True))]
    build(directory, [text, text[100:300], text[7:50]], VOCAB, INFO.tokenizer_digest)
    return Library(Datastore.open(directory, INFO.tokenizer_digest))
