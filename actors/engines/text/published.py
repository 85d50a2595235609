"""The tokenizer of ``tokenizer.json`` in place of what transformers makes of it.

For some families transformers takes the vocabulary alone and builds the rest as the family's first models had it: of
Qwen 2 and 3.5 another pre-tokenizer and NFC, whatever the file says. A model has been trained with the file's ids.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

# Special tokens around a text are not among them: tokenizer_config.json has a say in those.
PARTS = {
    "normalizer": "normaliser",
    "pre_tokenizer": "pre-tokenizer",
    "model": "model",
    "decoder": "decoder",
}
# Letters that compose, contractions, digits, spaces, breaks, marks, code, scripts without spaces
SAMPLES = (
    "e\u0301 \u212b \ufb01 \u3000 \u1100\u1161 \u0928\u093f",
    "I'M SURE we'd DON'T; 12345.67 3 x1y2  \n\n \t\r\n  end",
    "def f(a_b, *c):\n    return {'k': [1, 22, 333]}  # !!!??? https://a.b/c?d=e",
    "日本語テキスト。中文12字 ไทย \U0001f600\U0001f468\u200d\U0001f469 ÀÉÎ ß Straße",
)


def restore_published(tokenizer: Any, file: Path) -> list[str]:
    """Give a tokenizer the parts of ``file``; the names of the replaced parts, if a sample's ids change.

    Nothing is changed where there is no file, or the tokenizer is not one of the compiled library.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or not file.is_file():
        return []
    published = Tokenizer.from_file(str(file))
    made, wanted = (json.loads(one.to_str()) for one in (backend, published))
    different = [part for part in PARTS if made.get(part) != wanted.get(part)]
    before = _ids(backend)
    for part in different:
        setattr(backend, part, getattr(published, part))
    return [PARTS[part] for part in different] if _ids(backend) != before else []


def _ids(backend: Tokenizer) -> list[list[int]]:
    return [list(backend.encode(sample, add_special_tokens=False).ids) for sample in SAMPLES]
