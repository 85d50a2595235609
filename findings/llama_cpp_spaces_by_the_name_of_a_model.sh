#!/usr/bin/env bash
# llama.cpp (xllamacpp 2026.10.11549): whether spaces behind special tokens are dropped depends on general.name, the free
# text that a GGUF file has for a title. Where it contains "phi-3" or "phi3", every special token takes the spaces and line
# breaks behind it. Two files that differ in their titles alone give other ids: "Phi-3.5" drops them, "Phi 3.5" does not.
#
# Output seen:
#   Phi-3.5: <|user|> and a line break are ['<|user|>', 'a']
#   Phi 3.5: <|user|> and a line break are ['<|user|>', '\u010a', 'a']
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet gguf==0.19.0 numpy==2.4.6 xllamacpp==2026.10.11549
cat >"$folder/ask.py" <<'PYTHON'
import json
import os
import sys
import urllib.request

import gguf
import numpy as np
import xllamacpp

title, path = sys.argv[1], sys.argv[2]
tokens = ["a", "b", "\u010a", "ab", "<unk>", "<s>", "</s>", "<|endoftext|>", "<|user|>"]
file = gguf.GGUFWriter(path, "llama")
file.add_name(title)
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
file.add_tokenizer_pre("gpt-2")
file.add_token_list(tokens)
file.add_token_types([1] * 4 + [3] * 5)
file.add_token_merges(["a b"])
file.add_bos_token_id(5)
file.add_eos_token_id(6)
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
body = json.dumps({"content": "<|user|>\na", "add_special": False, "parse_special": True}).encode()
answer = urllib.request.urlopen(urllib.request.Request(f"{server.listening_address}/tokenize", body))
found = [tokens[number] for number in json.load(answer)["tokens"]]
print(f"\n{title}: <|user|> and a line break are {ascii(found)}", flush=True)
os._exit(0)
PYTHON
found=$(for title in "Phi-3.5" "Phi 3.5"; do
    "$folder/venv/bin/python" "$folder/ask.py" "$title" "$folder/model.gguf" 2>/dev/null | tail -1
done)
echo "$found"
[ "$found" = "Phi-3.5: <|user|> and a line break are ['<|user|>', 'a']
Phi 3.5: <|user|> and a line break are ['<|user|>', '\u010a', 'a']" ]
