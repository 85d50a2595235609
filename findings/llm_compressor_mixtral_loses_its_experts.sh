#!/usr/bin/env bash
# llm-compressor 0.14.0.1 (compressed-tensors 0.19.0, transformers 5.17.0): it quantises a Mixtral and saves it without a
# word, each expert as gate_proj, up_proj and down_proj of its own. transformers, by which it saved it, knows no such names
# in Mixtral: it loads the directory with a warning, and all experts have random weights. A Qwen3 MoE that goes the same
# way loads whole.
#
# Output seen:
#   mixtral: experts that are random after loading: ['down_proj', 'gate_up_proj']
#   qwen3_moe: experts that are random after loading: []
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet llmcompressor==0.14.0.1 compressed-tensors==0.19.0 transformers==5.17.0 \
    torch==2.13.0
cat >"$folder/ask.py" <<'PYTHON'
import sys

from llmcompressor import oneshot
from llmcompressor.modifiers.quantization import QuantizationModifier
from transformers import AutoConfig, AutoModelForCausalLM

place, kind = sys.argv[1:]
sizes = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 64,
    "moe_intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "num_local_experts": 2,
    "num_experts": 2,
    "num_experts_per_tok": 2,
}
AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **sizes)).save_pretrained(f"{place}/plain")
model = AutoModelForCausalLM.from_pretrained(f"{place}/plain")
oneshot(model=model, recipe=QuantizationModifier(targets="Linear", scheme="FP8_DYNAMIC", ignore=["lm_head", "re:.*gate$"]))
model.save_pretrained(f"{place}/written", save_compressed=True)
_, report = AutoModelForCausalLM.from_pretrained(f"{place}/written", output_loading_info=True)
print([name.rpartition("experts.")[2] for name in sorted(report["missing_keys"]) if "experts" in name])
PYTHON
seen=
for kind in mixtral qwen3_moe; do
    mkdir "$folder/$kind"
    told=$(cd "$folder" && HF_HUB_OFFLINE=1 "$folder/venv/bin/python" ask.py "$folder/$kind" "$kind" 2>/dev/null | tail -1)
    seen+="$kind: experts that are random after loading: $told"$'\n'
done
printf %s "$seen"
[ "$seen" = "mixtral: experts that are random after loading: ['down_proj', 'gate_up_proj']
qwen3_moe: experts that are random after loading: []
" ] || { echo "this has changed" >&2; exit 1; }
