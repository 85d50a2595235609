#!/usr/bin/env bash
# The published config.json of a Granite 4 hybrid names its layers "mamba" and "attention" (`layer_types`). transformers 5
# saves the same model with "linear_attention" and "full_attention". llama.cpp's converter (sources in llama-cpp-python
# 0.3.36) looks for the word "attention" alone: of a checkpoint that was loaded and saved it says, without a warning, that
# no layer has heads of keys. All weights of attention are in the file; llama.cpp looks for those of Mamba in their place.
#
# Output seen:
#   given mamba, attention: config.json says linear_attention, full_attention, model.gguf says head_count_kv 0, 0
#   blk.1.attn_k.weight is in model.gguf
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
from transformers import GraniteMoeHybridConfig, GraniteMoeHybridForCausalLM

conversion.load_all_models()
given = ["mamba", "attention"]
config = GraniteMoeHybridConfig(
    vocab_size=64,
    hidden_size=64,
    intermediate_size=64,
    shared_intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=2,
    num_local_experts=0,
    mamba_n_heads=4,
    mamba_d_head=32,
    mamba_d_state=16,
    layer_types=given,
    pad_token_id=0,
)
GraniteMoeHybridForCausalLM(config).save_pretrained(folder / "model")
said = json.loads((folder / "model/config.json").read_text())
kind = conversion.get_model_class(conversion.get_model_architecture(said, base.ModelType.TEXT))
kind.set_vocab = lambda self: None  # the model has no tokenizer
kind(folder / "model", gguf.LlamaFileType.ALL_F32, folder / "model.gguf").write()
reader = gguf.GGUFReader(folder / "model.gguf")
heads = reader.fields["granitehybrid.attention.head_count_kv"].contents()
print(
    f"given {', '.join(given)}: config.json says {', '.join(said['layer_types'])}, "
    f"model.gguf says head_count_kv {', '.join(map(str, heads))}"
)
name = "blk.1.attn_k.weight"
print(f"{name} is {'' if any(tensor.name == name for tensor in reader.tensors) else 'not '}in model.gguf")
PYTHON
found=$("$folder/venv/bin/python" "$folder/ask.py" "$folder" 2>"$folder/log" | tail -2) || { tail -5 "$folder/log" >&2; exit 1; }
echo "$found"
[ "$found" = "given mamba, attention: config.json says linear_attention, full_attention, model.gguf says head_count_kv 0, 0
blk.1.attn_k.weight is in model.gguf" ] || { echo "this has changed" >&2; exit 1; }
