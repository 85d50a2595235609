#!/usr/bin/env bash
# llama.cpp's converter (sources in llama-cpp-python 0.3.36) takes how a router's numbers become shares from `scoring_func` in
# config.json. DeepSeek V3 as transformers saves it has no such key: its code always takes a sigmoid. The file then says
# nothing, and llama.cpp takes a missing expert_gating_func of this architecture for a softmax, as DeepSeek V2 wants. (The
# published config.json has the key, and keeps it when transformers loads and saves it.) For GLM 4.5, whose code in
# transformers is the same, the converter writes the sigmoid by itself.
#
# Output seen:
#   DeepseekV3: config.json says scoring_func nowhere, model.gguf says expert_gating_func nowhere
#   Glm4Moe: config.json says scoring_func nowhere, model.gguf says expert_gating_func 2
#   llama.cpp without it: LLAMA_EXPERT_GATING_FUNC_TYPE_SOFTMAX
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet torch==2.13.0 transformers==5.24.0 safetensors==0.8.0 numpy==2.4.6 \
    pyyaml==6.0.3 tqdm==4.70.1
"$folder/venv/bin/python" -m pip download --quiet --no-deps --no-binary llama-cpp-python --dest "$folder" \
    llama-cpp-python==0.3.36
tar -xzf "$folder/llama_cpp_python-0.3.36.tar.gz" -C "$folder"
cat >"$folder/ask.py" <<'PYTHON'
import json
import re
import sys
from pathlib import Path

folder = Path(sys.argv[1])
sources = folder / "llama_cpp_python-0.3.36/vendor/llama.cpp"
sys.path[:0] = [str(sources), str(sources / "gguf-py")]
import conversion
import gguf
import transformers
from conversion import base

conversion.load_all_models()
sizes = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 64,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "pad_token_id": 0,
}
latent = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 16}
for name, more in (("DeepseekV3", latent), ("Glm4Moe", {"head_dim": 32})):
    config = getattr(transformers, f"{name}Config")(**sizes, **more)
    getattr(transformers, f"{name}ForCausalLM")(config).save_pretrained(folder / name)
    said = json.loads((folder / name / "config.json").read_text())
    kind = conversion.get_model_class(conversion.get_model_architecture(said, base.ModelType.TEXT))
    kind.set_vocab = lambda self: None  # the model has no tokenizer
    kind.no_mtp = True
    kind(folder / name, gguf.LlamaFileType.ALL_F32, folder / f"{name}.gguf").write()
    fields = gguf.GGUFReader(folder / f"{name}.gguf").fields
    found = [field.contents() for key, field in fields.items() if key.endswith(".expert_gating_func")]
    print(
        f"{name}: config.json says scoring_func {said.get('scoring_func', 'nowhere')}, "
        f"model.gguf says expert_gating_func {found[0] if found else 'nowhere'}"
    )
read = (sources / "src/models/deepseek2.cpp").read_text()
default = re.search(r"GLM 4\.7 Lite.*?else \{\s*hparams\.expert_gating_func = (\w+);", read, re.DOTALL)
print(f"llama.cpp without it: {default[1]}")
PYTHON
found=$("$folder/venv/bin/python" "$folder/ask.py" "$folder" 2>"$folder/log" | tail -3) || { tail -5 "$folder/log" >&2; exit 1; }
echo "$found"
[ "$found" = "DeepseekV3: config.json says scoring_func nowhere, model.gguf says expert_gating_func nowhere
Glm4Moe: config.json says scoring_func nowhere, model.gguf says expert_gating_func 2
llama.cpp without it: LLAMA_EXPERT_GATING_FUNC_TYPE_SOFTMAX" ] ||
    { echo "this has changed" >&2; exit 1; }
