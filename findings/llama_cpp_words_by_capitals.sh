#!/usr/bin/env bash
# llama.cpp (xllamacpp 2026.10.11549): the pattern "tiny_aya" of Cohere's newer models begins a new word at a capital behind
# small letters, as its expression says: [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+. llama.cpp does not tell
# the kinds of letters apart there and takes "HttpRequest" for one word, so a merge of "p" and "R" applies. The library
# tokenizers cuts with the same expression in front of "R". The pattern "gpt-4o" cuts there in both.
#
# Output seen:
#   tiny_aya: tokenizers cuts HttpRequest into Http and Request; llama.cpp joins p and R: True
#   gpt-4o: tokenizers cuts HttpRequest into Http and Request; llama.cpp joins p and R: False
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet gguf==0.19.0 numpy==2.4.6 tokenizers==0.23.3 xllamacpp==2026.10.11549 
cat >"$folder/ask.py" <<'PYTHON'
import json
import os
import sys
import urllib.request

import gguf
import numpy as np
import xllamacpp
from tokenizers import Regex, pre_tokenizers

CASED = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
)
name, path = sys.argv[1], sys.argv[2]
alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
tokens = [*alphabet, "pR", "<end>"]
file = gguf.GGUFWriter(path, "llama")
file.add_context_length(64)
file.add_embedding_length(64)
file.add_block_count(1)
file.add_feed_forward_length(64)
file.add_head_count(2)
file.add_head_count_kv(2)
file.add_layer_norm_rms_eps(1e-5)
file.add_rope_dimension_count(32)
file.add_vocab_size(len(tokens))
file.add_tokenizer_model("gpt2")
file.add_tokenizer_pre(name)
file.add_token_list(tokens)
file.add_token_types([1] * (len(tokens) - 1) + [3])
file.add_token_merges(["p R"])
file.add_bos_token_id(len(tokens) - 1)
file.add_eos_token_id(len(tokens) - 1)
file.add_add_bos_token(False)
square = np.full((64, 64), 0.01, np.float32)
for part in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
    file.add_tensor(f"blk.0.{part}.weight", square)
for norm in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
    file.add_tensor(f"{norm}.weight", np.ones(64, np.float32))
for matrix in ("token_embd", "output"):
    file.add_tensor(f"{matrix}.weight", np.full((len(tokens), 64), 0.01, np.float32))
file.write_header_to_file()
file.write_kv_data_to_file()
file.write_tensors_to_file()
file.close()

how = xllamacpp.CommonParams()
how.model.path, how.n_ctx, how.verbosity, how.warmup, how.n_parallel = path, 64, -1, False, 1
server = xllamacpp.Server(how)
body = json.dumps({"content": "HttpRequest", "add_special": False}).encode()
answer = urllib.request.urlopen(urllib.request.Request(f"{server.listening_address}/tokenize", body))
ids = json.load(answer)["tokens"]
words = [word for word, _ in pre_tokenizers.Split(Regex(CASED), "isolated").pre_tokenize_str("HttpRequest")]
joined = tokens.index("pR") in ids
print(f"\n{name}: tokenizers cuts HttpRequest into {' and '.join(words)}; llama.cpp joins p and R: {joined}", flush=True)
os._exit(0)
PYTHON
found=$(for name in tiny_aya gpt-4o; do
    "$folder/venv/bin/python" "$folder/ask.py" $name "$folder/$name.gguf" 2>/dev/null | tail -1
done)
echo "$found"
[ "$found" = 'tiny_aya: tokenizers cuts HttpRequest into Http and Request; llama.cpp joins p and R: True
gpt-4o: tokenizers cuts HttpRequest into Http and Request; llama.cpp joins p and R: False' ]
