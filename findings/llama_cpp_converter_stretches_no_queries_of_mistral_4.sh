#!/usr/bin/env bash
# llama.cpp's converter (sources in llama-cpp-python 0.3.36) reads Ministral 3 and Mistral Small 4 by one class. Both stretch
# queries behind the positions of their first training, by a share that config.json calls llama_4_scaling_beta. For
# Ministral 3 the file says it (attention.temperature_scale). For Mistral 4 it does not, and llama.cpp, which would read it
# there too, then stretches nothing: in texts of more than original_max_position_embeddings tokens (8,192 in what is
# published) another model computes. Made of Mistral's own format (params.json), the file of the same model says it.
#
# Output seen:
#   ministral3: config.json says llama_4_scaling_beta 0.1, model.gguf says attention.temperature_scale 0.1
#   mistral4: config.json says llama_4_scaling_beta 0.1, model.gguf says attention.temperature_scale nowhere
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
import sys
from pathlib import Path

folder, name = Path(sys.argv[1]), sys.argv[2]
sources = folder / "llama_cpp_python-0.3.36/vendor/llama.cpp"
sys.path[:0] = [str(sources), str(sources / "gguf-py")]
import conversion
import gguf
from conversion import base
from transformers import Mistral3Config, Mistral3ForConditionalGeneration

sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
rotation = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 128.0, "original_max_position_embeddings": 8192}
text = {
    **sizes,
    "model_type": name,
    "vocab_size": 64,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 1048576,
    "pad_token_id": 0,
    "rope_parameters": {**rotation, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1},
}
if name == "mistral4":
    latent = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 16}
    text |= {**latent, "n_routed_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 32}
eyes = {**sizes, "model_type": "pixtral", "image_size": 32, "patch_size": 16}
config = Mistral3Config(text_config=text, vision_config=eyes, image_token_index=3)
Mistral3ForConditionalGeneration(config).save_pretrained(folder / name)
said = json.loads((folder / name / "config.json").read_text())["text_config"]["rope_parameters"]

conversion.load_all_models()
kinds = [base.TextModel]
while kinds:
    kind = kinds.pop()
    kinds += kind.__subclasses__()
    kind.set_vocab = lambda self: None  # the model has no tokenizer
kind = conversion.get_model_class("Mistral3ForConditionalGeneration")
kind(folder / name, gguf.LlamaFileType.ALL_F32, folder / f"{name}.gguf").write()

fields = gguf.GGUFReader(folder / f"{name}.gguf").fields
field = fields.get(f"{fields['general.architecture'].contents()}.attention.temperature_scale")
found = "nowhere" if field is None else f"{field.contents():.1f}"
print(
    f"\n{name}: config.json says llama_4_scaling_beta {said['llama_4_scaling_beta']}, "
    f"model.gguf says attention.temperature_scale {found}"
)
PYTHON
found=$(for name in ministral3 mistral4; do
    "$folder/venv/bin/python" "$folder/ask.py" "$folder" $name 2>"$folder/log" | tail -1 || { tail -5 "$folder/log" >&2; exit 1; }
done)
echo "$found"
[ "$found" = "ministral3: config.json says llama_4_scaling_beta 0.1, model.gguf says attention.temperature_scale 0.1
mistral4: config.json says llama_4_scaling_beta 0.1, model.gguf says attention.temperature_scale nowhere" ] ||
    { echo "this has changed" >&2; exit 1; }
