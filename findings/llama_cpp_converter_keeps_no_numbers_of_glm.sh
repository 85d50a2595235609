#!/usr/bin/env bash
# llama.cpp's converter (sources in llama-cpp-python 0.3.36) takes GLM 4 as transformers saves it (GlmForCausalLM) by the
# code that was made for the first ChatGLM directories, which had other names for their numbers. It finds none of them, says
# nothing, and writes defaults: the base of the rotation is 10000, the norms' epsilon 1e-05, and the context as many tokens as
# the model is wide, whatever config.json says. Each weight is right. Files so made compute another model.
#
# Output seen:
#   config.json: rope_theta 5000000.0, rms_norm_eps 1.5625e-07, max_position_embeddings 131072
#   model.gguf: rope.freq_base 10000.0, layer_norm_rms_epsilon 1e-05, context_length 64
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

folder = Path(sys.argv[1])
sources = folder / "llama_cpp_python-0.3.36/vendor/llama.cpp"
sys.path[:0] = [str(sources), str(sources / "gguf-py")]
import conversion
import gguf
from conversion import base
from transformers import GlmConfig, GlmForCausalLM

config = GlmConfig(
    vocab_size=64,
    hidden_size=64,
    intermediate_size=64,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=32,
    pad_token_id=0,
    rms_norm_eps=1.5625e-07,
    max_position_embeddings=131072,
    rope_parameters={"rope_type": "default", "rope_theta": 5000000.0, "partial_rotary_factor": 0.5},
)
GlmForCausalLM(config).save_pretrained(folder / "model")
said = json.loads((folder / "model/config.json").read_text())

conversion.load_all_models()
kind = conversion.get_model_class(conversion.get_model_architecture(said, base.ModelType.TEXT))
kind.set_vocab = lambda self: None  # the model has no tokenizer
kind(folder / "model", gguf.LlamaFileType.ALL_F32, folder / "model.gguf").write()

print(
    f"\nconfig.json: rope_theta {said['rope_parameters']['rope_theta']}, rms_norm_eps {said['rms_norm_eps']}, "
    f"max_position_embeddings {said['max_position_embeddings']}"
)
fields = gguf.GGUFReader(folder / "model.gguf").fields
base_, epsilon, context = (
    fields[f"chatglm.{key}"].contents()
    for key in ("rope.freq_base", "attention.layer_norm_rms_epsilon", "context_length")
)
print(f"model.gguf: rope.freq_base {base_}, layer_norm_rms_epsilon {epsilon:.0e}, context_length {context}")
PYTHON
found=$("$folder/venv/bin/python" "$folder/ask.py" "$folder" 2>"$folder/log" | tail -2) || { tail -5 "$folder/log" >&2; exit 1; }
echo "$found"
[ "$found" = "config.json: rope_theta 5000000.0, rms_norm_eps 1.5625e-07, max_position_embeddings 131072
model.gguf: rope.freq_base 10000.0, layer_norm_rms_epsilon 1e-05, context_length 64" ] ||
    { echo "this has changed" >&2; exit 1; }
