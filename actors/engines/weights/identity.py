"""The identity of a model: whether two verifiers, or one before and after its restart, serve the same."""

from __future__ import annotations

import glob
import hashlib
from collections.abc import Iterable
from pathlib import Path

from actors.engines.weights.gguf_names import find_gguf, is_gguf
from actors.engines.weights.hub import located
from actors.engines.weights.tensor_files import weight_files

# Reading all weights would slow the start down (8 GB: 4 s and more), and sizes and times differ between copies of one
# model. Training or quantising anew changes nearly every number: of each file its size is taken, its beginning, which
# holds the table of its tensors, and blocks that are spread evenly over it. A patch of few numbers may go unseen.
BEGINNING, BLOCK, BLOCKS = 1 << 18, 1 << 12, 64
TEXTS = ("config.json", "generation_config.json", "tokenizer_config.json", "chat_template.jinja", "chat_template.json")


def identity(name: str, tokenizer_of: str, tokenizer_digest: str) -> str:
    """A digest of a model's configuration, tokenizer, chat template and weights, without the names of directories."""
    found = hashlib.sha256(tokenizer_digest.encode())
    for place in dict.fromkeys((name, tokenizer_of)):
        directory = _directory(place)
        for text in TEXTS:
            if (file := directory / text).is_file():
                found.update(text.encode() + hashlib.sha256(file.read_bytes()).digest())
    for file in _weights(name):
        found.update(_sampled(file))
    return found.hexdigest()[:32]


def _directory(name: str) -> Path:
    path = find_gguf(name) if is_gguf(name) else Path(located(name))
    return path if path.is_dir() else path.parent


def _weights(name: str) -> Iterable[Path]:
    if is_gguf(name):
        first = find_gguf(name)
        pattern = glob.escape(first.name).replace("-00001-of-", "-*-of-")
        return sorted(first.parent.glob(pattern))
    directory = Path(located(name))
    others = (sorted(directory.glob(pattern)) for pattern in ("*.safetensors", "*.bin"))
    return weight_files(directory) or next(filter(None, others), ())


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
