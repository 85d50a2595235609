"""The files of llama.cpp's converter (tests/data/gguf_families), unpacked, and copies of them in blocks."""

from __future__ import annotations

import lzma
import re
from pathlib import Path

import gguf
import numpy as np

from actors.engines.weights.gguf import GGUF
from tools.writers.gguf_families import INTO

FILES = [path.name.removesuffix(".gguf.xz") for path in sorted(INTO.glob("*.gguf.xz"))]
TOKENS = ["<unk>", "<s>", "</s>", *(chr(97 + i // 26) + chr(97 + i % 26) for i in range(93))]
MIXED = {
    "attn_q.weight": "Q4_0",
    "attn_k.weight": "Q5_0",
    "attn_v.weight": "Q8_0",
    "down.weight": "Q5_1",
    "weight": "Q4_1",
}


def unpacked(name: str, directory: Path) -> str:
    file = directory / f"{name}.gguf"
    file.write_bytes(lzma.decompress((INTO / f"{name}.gguf.xz").read_bytes()))
    return str(file)


def quantised(path: Path, source: Path, kinds: dict[str, str]) -> Path:
    """A copy with matrices in blocks, by the end of their names. Weights are moved a little: those of our files are
    multiples of 1/32, and would give inputs that lie between two roundings."""
    whole = GGUF(source)
    w, moved = gguf.GGUFWriter(path, whole.architecture), np.random.default_rng(0)
    for key, value in whole.metadata.items():
        if re.match(r"general\.architecture|tokenizer\.(?!.*_id)", key):
            continue
        if isinstance(value, np.ndarray):
            w.add_array(key, value.tolist())
        else:
            kinds_of = gguf.GGUFValueType
            kind = {bool: kinds_of.BOOL, int: kinds_of.UINT32, float: kinds_of.FLOAT32, str: kinds_of.STRING}
            w.add_key_value(key, value, kind[type(value)])
    w.add_tokenizer_model("llama")
    rows = whole.tensors["token_embd.weight"].shape[0]
    w.add_token_list([*TOKENS, *map(str, range(rows))][:rows])
    w.add_token_scores([0.0] * rows)
    w.add_token_types([2, 3, 3, *[1] * (rows - 3)])
    for name, stored in whole.tensors.items():
        values = stored.values()
        kind = next((kind for end, kind in kinds.items() if name.endswith(end)), None)
        if kind is None or values.ndim < 2 or values.shape[-1] % 32:
            w.add_tensor(name, values)
        else:
            to = gguf.GGMLQuantizationType[kind]
            values = values * moved.uniform(0.98, 1.02, values.shape).astype(np.float32)
            w.add_tensor(name, gguf.quantize(values, to), raw_dtype=to)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return path
