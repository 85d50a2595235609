"""Make tests/data/pre_tokenizers/ids.json anew: how the packaged llama.cpp cuts texts, by the name of the pattern.

    python -m venv /tmp/v && /tmp/v/bin/pip install xllamacpp gguf numpy tokenizers
    /tmp/v/bin/python tools/pre_tokenizers.py

It says which names gave other ids than those that are kept. The vocabulary is trained on the texts as they are, across
all words, so that nothing but the pattern keeps its tokens from joining them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import urllib.request
from importlib.metadata import version
from pathlib import Path
from typing import Any

KEPT = Path(__file__).parents[1] / "tests" / "data" / "pre_tokenizers" / "ids.json"
WIDTHS = (2, 3, 4, 6, 9)  # characters of the pieces that the vocabulary is trained on
END = "<|endoftext|>"


def vocabulary(texts: list[str]) -> tuple[list[str], list[str]]:
    """Tokens and merges of a byte-level BPE."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=1200, initial_alphabet=alphabet, show_progress=False, min_frequency=1)
    pieces = [text[at : at + width] for text in texts for width in WIDTHS for at in range(len(text))]
    made.train_from_iterator([*texts, *pieces], trainer)
    model = json.loads(made.to_str())["model"]
    return [*sorted(model["vocab"], key=model["vocab"].get), END], [" ".join(pair) for pair in model["merges"]]


def write(path: str, name: str, tokens: list[str], merges: list[str]) -> None:
    """A GGUF file of one tiny layer with that vocabulary."""
    import gguf
    import numpy as np

    hidden, last = 64, len(tokens) - 1
    file = gguf.GGUFWriter(path, "llama")
    for add, value in {
        file.add_context_length: 2048,
        file.add_embedding_length: hidden,
        file.add_block_count: 1,
        file.add_feed_forward_length: hidden,
        file.add_head_count: 2,
        file.add_head_count_kv: 2,
        file.add_layer_norm_rms_eps: 1e-5,
        file.add_rope_dimension_count: 32,
        file.add_vocab_size: len(tokens),
        file.add_tokenizer_model: "gpt2",
        file.add_tokenizer_pre: name,
        file.add_token_list: tokens,
        file.add_token_types: [1] * last + [3],
        file.add_token_merges: merges,
        file.add_bos_token_id: last,
        file.add_eos_token_id: last,
        file.add_add_bos_token: False,
    }.items():
        add(value)
    square = np.full((hidden, hidden), 0.01, np.float32)
    for part in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        file.add_tensor(f"blk.0.{part}.weight", square)
    for norm in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        file.add_tensor(f"{norm}.weight", np.ones(hidden, np.float32))
    for matrix in ("token_embd", "output"):
        file.add_tensor(f"{matrix}.weight", np.full((len(tokens), hidden), 0.01, np.float32))
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


def serve_and_ask(path: str, texts: list[str]) -> None:
    """Print the ids of ``texts``: in a process of its own, since llama.cpp's server ends with it."""
    import xllamacpp

    how = xllamacpp.CommonParams()
    how.model.path, how.n_ctx, how.verbosity, how.warmup, how.n_parallel = path, 256, -1, False, 1
    server = xllamacpp.Server(how)

    def ids(text: str) -> Any:
        body = json.dumps({"content": text, "add_special": False, "parse_special": True}).encode()
        asked = urllib.request.Request(f"{server.listening_address}/tokenize", body)
        return json.load(urllib.request.urlopen(asked))["tokens"]

    print("\n" + json.dumps([ids(text) for text in texts]), flush=True)


def main() -> int:
    if len(sys.argv) == 2:
        serve_and_ask(sys.argv[1], json.loads(KEPT.read_text())["texts"])
        return 0
    kept = json.loads(KEPT.read_text())
    tokens, merges = vocabulary(kept["texts"])
    found: list[Any] = []
    names: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in kept["names"]:
            path = f"{folder}/{name}.gguf"
            write(path, name, tokens, merges)
            asked = subprocess.run([sys.executable, __file__, path], capture_output=True, text=True, timeout=120)
            if asked.returncode:
                print(f"{name}: llama.cpp ends with code {asked.returncode}")
                return 1
            ids = json.loads(asked.stdout.splitlines()[-1])
            if ids not in found:
                found.append(ids)
            names[name] = found.index(ids)
            if kept["ids"] and ids != kept["ids"][kept["names"][name]]:
                print(f"{name}: other ids than before")
    made = {
        "version": f"xllamacpp {version('xllamacpp')}",
        "texts": kept["texts"],
        "tokens": tokens,
        "merges": merges,
        "names": names,
        "ids": found,
    }
    KEPT.write_text(json.dumps(made, indent=None, separators=(",", ":")) + "\n")
    print(f"{len(names)} names, {len(found)} patterns")
    return 0


if __name__ == "__main__":
    sys.exit(main())
