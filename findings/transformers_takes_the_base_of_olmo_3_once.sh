#!/usr/bin/env bash
# transformers 5.24.0: an Olmo 3 that transformers 4 saved says one `rope_theta`, which every layer turns by there. 5 has two
# bases in memory, of full attention and of windows. It pops the key out of the configuration for the first of them and
# pops it again for the second, which then finds nothing and takes the default, 500000. Three of four layers turn by that,
# whatever config.json says. Nothing is said; the published models have the default. A Cohere 2, which has windows too, is as
# it was saved.
#
# Output seen:
#   olmo3: saved by 4.57.6 with rope_theta 5000, logits of 5.24.0 differ by more than 10%
#   cohere2: saved by 4.57.6 with rope_theta 5000, logits of 5.24.0 are equal
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for version in 4.57.6 5.24.0; do
    python3 -m venv "$folder/$version"
    "$folder/$version/bin/python" -m pip install --quiet torch==2.13.0 "transformers==$version" safetensors==0.8.0 numpy==2.4.6
done
cat >"$folder/ask.py" <<'PYTHON'
import sys
from pathlib import Path

import torch
import transformers

folder = Path(sys.argv[1])
ids = torch.arange(3, 43)[None]
sizes = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "sliding_window": 64,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
for name in ("olmo3", "cohere2"):
    place, version = folder / name, transformers.__version__
    if version.startswith("4"):
        torch.manual_seed(0)
        config = transformers.AutoConfig.for_model(name, **sizes, rope_theta=5000.0)
        model = transformers.AutoModelForCausalLM.from_config(config).eval()
        model.save_pretrained(place)
        torch.save(model(ids).logits.detach(), place / "logits.pt")
        continue
    model = transformers.AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32).eval()
    right = torch.load(place / "logits.pt")
    away = float((model(ids).logits.detach() - right).norm() / right.norm())
    found = "are equal" if away < 1e-4 else "differ by more than 10%" if away > 0.1 else f"differ by {away}"
    print(f"{name}: saved by 4.57.6 with rope_theta 5000, logits of {version} {found}")
PYTHON
"$folder/4.57.6/bin/python" "$folder/ask.py" "$folder" >/dev/null 2>"$folder/log" || { tail -5 "$folder/log" >&2; exit 1; }
found=$("$folder/5.24.0/bin/python" "$folder/ask.py" "$folder" 2>"$folder/log") || { tail -5 "$folder/log" >&2; exit 1; }
echo "$found"
[ "$found" = "olmo3: saved by 4.57.6 with rope_theta 5000, logits of 5.24.0 differ by more than 10%
cohere2: saved by 4.57.6 with rope_theta 5000, logits of 5.24.0 are equal" ] || { echo "this has changed" >&2; exit 1; }
