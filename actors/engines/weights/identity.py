"""The identity of a model: whether two verifiers, or one before and after its restart, serve the same."""

from __future__ import annotations

import hashlib
from pathlib import Path

from actors.engines.weights.checkpoint import Checkpoint

# Reading all weights would slow the start down (8 GB: 4 s and more), and sizes and times differ between copies of one
# model. Training or quantising anew changes nearly every number: of each file its size is taken, its beginning, which
# holds the table of its tensors, and blocks that are spread evenly over it. A patch of few numbers may go unseen.
BEGINNING, BLOCK, BLOCKS = 1 << 18, 1 << 12, 64
TEXTS = ("config.json", "generation_config.json", "tokenizer_config.json", "chat_template.jinja", "chat_template.json")


def identity(model: Checkpoint, tokenizer_of: Checkpoint, tokenizer_digest: str) -> str:
    """A digest of a model's configuration, tokenizer, chat template and weights, without the names of directories."""
    found = hashlib.sha256(tokenizer_digest.encode())
    for place in dict.fromkeys((model.place, tokenizer_of.place)):
        directory = place if place.is_dir() else place.parent
        for text in TEXTS:
            if (file := directory / text).is_file():
                found.update(text.encode() + hashlib.sha256(file.read_bytes()).digest())
    for file in model.weight_files():
        found.update(_sampled(file))
    return found.hexdigest()[:32]


def _sampled(file: Path) -> bytes:
    size = file.stat().st_size
    found = hashlib.sha256(size.to_bytes(8, "little"))
    with file.open("rb", buffering=0) as opened:
        found.update(opened.read(BEGINNING))
        for number in range(BLOCKS):
            opened.seek(size * number // BLOCKS)
            found.update(opened.read(BLOCK))
        opened.seek(max(0, size - BLOCK))
        found.update(opened.read(BLOCK))
    return found.digest()
