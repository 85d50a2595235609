#!/usr/bin/env bash
# llama.cpp (xllamacpp 2026.10.11549): MiniCPM's logits are divided by width / 256. A GGUF file says so in
# minicpm.logit_scale, and files of before that key do not. For them the code has a default "for older files", of 256 / width,
# which is what older code multiplied by: today's divides by it. So an old file's logits are multiplied by width / 256 in
# place of being divided, and texts at temperature 1 are drawn as if it were 1 / (width / 256)^2. Greedy texts stay.
#
# The same file of width 512, once with the key and its right value of 2, once without: logits differ by 4, not by 1.
#
# Output seen:
#   with minicpm.logit_scale = 2: the likeliest two are 0.500 apart
#   without the key: the likeliest two are 2.000 apart
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

path, key = sys.argv[1], sys.argv[2] == "key"
width = 512
tokens = ["a", "b", "c", "ab", "<unk>", "<s>", "</s>"]
file = gguf.GGUFWriter(path, "minicpm")
file.add_context_length(64)
file.add_embedding_length(width)
file.add_block_count(1)
file.add_feed_forward_length(64)
file.add_head_count(8)
file.add_head_count_kv(8)
file.add_layer_norm_rms_eps(1e-5)
file.add_rope_dimension_count(width // 8)
file.add_vocab_size(len(tokens))
file.add_embedding_scale(12.0)
file.add_residual_scale(1.4)
if key:
    file.add_logit_scale(width / 256)
file.add_tokenizer_model("gpt2")
file.add_tokenizer_pre("gpt-2")
file.add_token_list(tokens)
file.add_token_types([1] * 4 + [3] * 3)
file.add_token_merges(["a b"])
file.add_bos_token_id(5)
file.add_eos_token_id(6)
file.add_add_bos_token(False)
for part in ("attn_q", "attn_k", "attn_v", "attn_output"):  # a layer that adds nothing
    file.add_tensor(f"blk.0.{part}.weight", np.zeros((width, width), np.float32))
for part in ("ffn_gate", "ffn_up"):
    file.add_tensor(f"blk.0.{part}.weight", np.zeros((64, width), np.float32))
file.add_tensor("blk.0.ffn_down.weight", np.zeros((width, 64), np.float32))
for norm in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
    file.add_tensor(f"{norm}.weight", np.ones(width, np.float32))
file.add_tensor("token_embd.weight", np.ones((len(tokens), width), np.float32))
rows = np.arange(len(tokens), 0, -1, dtype=np.float32)[:, None]  # logits of 7, 6, 5 and so on before they are scaled
file.add_tensor("output.weight", np.broadcast_to(rows / width, (len(tokens), width)).copy())
file.write_header_to_file()
file.write_kv_data_to_file()
file.write_tensors_to_file()
file.close()

how = xllamacpp.CommonParams()
how.model.path, how.n_ctx, how.verbosity, how.warmup, how.n_parallel = path, 64, -1, False, 1
server = xllamacpp.Server(how)
body = json.dumps({"prompt": [0, 1], "n_predict": 1, "n_probs": 2, "temperature": 1.0}).encode()
answer = urllib.request.urlopen(urllib.request.Request(f"{server.listening_address}/completion", body))
first, second = json.load(answer)["completion_probabilities"][0]["top_logprobs"]
what = "with minicpm.logit_scale = 2" if key else "without the key"
print(f"\n{what}: the likeliest two are {first['logprob'] - second['logprob']:.3f} apart", flush=True)
os._exit(0)
PYTHON
found=$(for key in key none; do
    "$folder/venv/bin/python" "$folder/ask.py" "$folder/model.gguf" "$key" 2>"$folder/log" | tail -1
done)
echo "$found"
[ "$found" = "with minicpm.logit_scale = 2: the likeliest two are 0.500 apart
without the key: the likeliest two are 2.000 apart" ] || { echo "this has changed" >&2; exit 1; }
