#!/usr/bin/env bash
# mlx-lm 0.32.2 (mlx 0.32.4, its CPU build on Linux): with a draft model a repetition penalty does not see the prompt,
# except for its last token; without one it sees all of it. So the same greedy call gives another text as soon as drafts
# are used, even when the draft model is the target itself and every draft is right.
# The model answers each letter with the next one, or almost as gladly with the one after that. The prompt is "aba".
#
# Output seen:
#   without a penalty: bcdef, with drafts bcdef
#   penalty 1.6: cdefg, with drafts bcdef
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet mlx-lm==0.32.2 'mlx[cpu]==0.32.4'
cat >"$folder/ask.py" <<'PYTHON'
import string

import mlx.core as mx
from mlx.utils import tree_map
from mlx_lm.generate import generate_step, speculative_generate_step
from mlx_lm.models.llama import Model, ModelArgs
from mlx_lm.sample_utils import make_logits_processors

mx.set_default_device(mx.cpu)
sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
heads = {"num_key_value_heads": 2, "rms_norm_eps": 1e-5, "tie_word_embeddings": False}
model = Model(ModelArgs(model_type="llama", vocab_size=26, **sizes, **heads))
model.update(tree_map(mx.zeros_like, model.parameters()))  # the one layer adds nothing
model.model.norm.weight = mx.ones(32)
model.model.embed_tokens.weight = mx.eye(32)[:26]
model.lm_head.weight = mx.array([[5 * (j == (i + 1) % 26) + 4 * (j == (i + 2) % 26) for i in range(32)] for j in range(26)])
prompt = mx.array([0, 1, 0])


def text(steps):
    return "".join(string.ascii_lowercase[int(step[0])] for step in steps)


for what, penalties in {"without a penalty": {}, "penalty 1.6": {"repetition_penalty": 1.6}}.items():
    more = {"max_tokens": 5, "logits_processors": make_logits_processors(**penalties)}
    plain = text(generate_step(prompt, model, **more))
    print(f"{what}: {plain}, with drafts {text(speculative_generate_step(prompt, model, model, **more))}")
PYTHON
seen=$("$folder/venv/bin/python" "$folder/ask.py" 2>/dev/null)
printf '%s\n' "$seen"
[ "$seen" = "without a penalty: bcdef, with drafts bcdef
penalty 1.6: cdefg, with drafts bcdef" ] || { echo "this has changed" >&2; exit 1; }
