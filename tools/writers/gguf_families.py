"""GGUF files by llama.cpp's own converter, of a tiny random model of each family, and the logits of transformers.

python -m tools.writers.gguf_families LLAMA_CPP [NAME ...]

``LLAMA_CPP``: its sources, as the source distribution of llama-cpp-python brings them. The models have no tokenizer, so
that the part of the converter that reads one is replaced. Weights are multiples of 1/32: such files compress well.
"""

from __future__ import annotations

import json
import lzma
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from tests.engines.families import EXPERTS, LONG, model_of
from tests.engines.test_models_with_eyes import CLASSES, MODELS

INTO = Path(__file__).parents[2] / "tests/data/gguf_families"
IDS = [3 + 7 * at % 60 for at in range(24)]
SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
AS_MANY = {"num_key_value_heads": 2}
FOUR = {"num_hidden_layers": 4}
HYBRID = FOUR | {"layer_types": [*["linear_attention"] * 3, "full_attention"]}
FOURTH = FOUR | {"layer_types": [*["sliding_attention"] * 3, "full_attention"]}
FIRST = FOUR | {"layer_types": ["full_attention", *["sliding_attention"] * 3], "mlp_layer_types": None}
GATES = FIRST | {"num_attention_heads_per_layer": [4, 2, 4, 2], "shared_expert_intermediate_size": 48}
PUBLISHED = {"query_pre_attn_scalar": 16}
DENSE = {"-": ["n_routed_experts", "num_experts_per_tok", "layers_block_type"], "num_hidden_layers": 3}
WHOLE_HEADS = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0}}
CHOSEN = {"norm_topk_prob": True}  # as in what is published, and no file says it
LATENT = AS_MANY | {"moe_intermediate_size": 32}
# The family, what is changed in its configuration, and what a published one says that transformers drops
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    **{
        name: (name, {}, {})
        for name in ("Llama", "Qwen2", "Qwen3", "Olmoe", "GraniteMoe", "GraniteMoeShared", "Glm4Moe")
    },
    **{name: (name, {}, {}) for name in ("Ministral3", "Dots1", "Ernie4_5_Moe", "Mixtral", "Gemma", "Phi3", "SmolLM3")},
    **{
        name: (name, {}, {})
        for name in ("Olmo2", "Granite", "Cohere", "Glm4", "Ernie4_5", "Exaone4", "GptOss", "Arcee")
    },
    **{name: (name, {}, {}) for name in ("Starcoder2", "SeedOss", "HunYuanDenseV1", "ExaoneMoe", "Mellum", "Qwen2Moe")},
    **{name: (name, {}, {}) for name in ("Lfm2", "Lfm2Moe", "FalconH1", "Falcon-H1 with norms of two groups")},
    **{name: (name, {}, {}) for name in ("Falcon-H1 with multipliers", "Gemma 4 with experts")},
    **{name: (name, LATENT, {}) for name in ("DeepseekV2", "DeepseekV3", "Glm4MoeLite")},
    **{name: (name, PUBLISHED, {}) for name in ("Gemma2", "Gemma3")},
    "Gemma4": ("Gemma4", {"vocab_size_per_layer_input": 64}, {}),
    **{
        f"Phi 3 {where}": ("Phi3", {"rope_parameters": LONG, "original_max_position_embeddings": before}, {})
        for where, before in (("within its first training", 512), ("beyond it", 8))
    },
    "Qwen3Moe": ("Qwen3Moe", CHOSEN, {}),
    "MiniMaxM2": ("MiniMaxM2", {}, {"rotary_dim": 16}),
    "HunYuanMoEV1": (
        "HunYuanMoEV1",
        {},
        {"moe_intermediate_size": [64] * 3, "num_shared_expert": [1] * 3, "moe_topk": [2] * 3},
    ),
    "Cohere2": ("Cohere2", {}, {"rotary_pct": 1.0}),
    "Afmoe": ("Afmoe", FOURTH | {"mup_enabled": True, "route_scale": 1.7}, {}),
    "Laguna": ("Laguna", GATES, {}),
    "Bamba": ("Bamba", {"hidden_size": 64} | WHOLE_HEADS, {}),
    "Qwen3Next": ("Qwen3Next", HYBRID | CHOSEN, {"no_mtp": True}),
    "Qwen3_5": ("Qwen3_5", HYBRID, {"no_mtp": True}),
    "Qwen3_5Moe": ("Qwen3_5Moe", HYBRID | CHOSEN, {"no_mtp": True}),
    "NemotronH": ("NemotronH", {}, DENSE | {"hybrid_override_pattern": "M*-"}),
    "Nemotron-H with experts": ("Nemotron-H with experts", {"time_step_min": 0.001}, {}),
}
WITH_EYES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    **{name: ({}, {}) for name in ("Qwen2_5_VL", "Qwen3VL", "Glm4v", "Glm4vMoe", "Mistral3")},
    "Qwen3VLMoe": (EXPERTS | CHOSEN, {}),
    "Gemma4Unified": ({}, {"moe_intermediate_size": None}),
}


def coarse(model: Any) -> Any:
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
            parameter.copy_((parameter * 32).round() / 32)
    return model.eval()


def family(name: str) -> Any:
    own, changes, _ = CASES[name]
    torch.manual_seed(0)
    return coarse(model_of(own, **SMALL | changes))


def with_eyes(name: str) -> Any:
    torch.manual_seed(0)
    known = MODELS["Qwen3VL" if name == "Qwen3VLMoe" else name]
    text = known["text_config"] | SMALL | WITH_EYES[name][0]
    config = getattr(transformers, f"{CLASSES.get(name, name)}Config")(
        **known | {"text_config": text}, tie_word_embeddings=True
    )
    return coarse(transformers.AutoModelForImageTextToText.from_config(config))


def vocabulary(model: Any) -> None:
    """In place of the converter's: words and nothing else."""
    count, w = SMALL["vocab_size"], model.gguf_writer
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("default")
    w.add_token_list([f"w{number}" for number in range(count)])
    w.add_token_types([1] * count)
    w.add_token_merges(["w 0"])


def converter(sources: Path) -> Callable[[Path, Path, dict[str, Any]], None]:
    sys.path[:0] = [str(sources), str(sources / "gguf-py")]
    import conversion
    from conversion import base

    conversion.load_all_models()
    read, kinds = base.ModelBase.load_hparams, [base.TextModel]
    while kinds:
        kind = kinds.pop()
        kinds += kind.__subclasses__()
        kind.set_vocab = vocabulary

    def convert(model: Path, file: Path, said: dict[str, Any]) -> None:
        gone = said.get("-", [])
        more = {key: value for key, value in said.items() if key not in ("-", "no_mtp")}

        def hparams(place: Path, is_mistral_format: bool = False) -> dict[str, Any]:
            known = {key: value for key, value in read(place, is_mistral_format).items() if key not in gone}
            return known | more

        base.ModelBase.load_hparams = staticmethod(hparams)
        name = conversion.get_model_architecture(hparams(model), base.ModelType.TEXT)
        kind = conversion.get_model_class(name)
        kind.no_mtp = said.get("no_mtp", False)
        with torch.inference_mode():
            kind(model, conversion.base.gguf.LlamaFileType.ALL_F32, file).write()

    return convert


def transpose_experts(place: Path) -> None:
    """As Qwen3-VL's checkpoints have them; transformers 5 writes them the other way."""
    from safetensors.torch import load_file, save_file

    for file in place.glob("*.safetensors"):
        weights = load_file(file)
        turned = {name: one.mT.contiguous() if ".experts." in name else one for name, one in weights.items()}
        save_file(turned, file, {"format": "pt"})


def main(sources: str, *names: str) -> None:
    convert = converter(Path(sources))
    makers = {name: partial(family, name) for name in CASES} | {name: partial(with_eyes, name) for name in WITH_EYES}
    INTO.mkdir(exist_ok=True)
    for name in names or makers:
        with tempfile.TemporaryDirectory() as scratch:
            place = Path(scratch)
            model = makers[name]()
            model.save_pretrained(place / "model")
            words = {f"w{number}": number for number in range(SMALL["vocab_size"])}
            (place / "model/tokenizer.json").write_text(json.dumps({"model": {"vocab": words}, "added_tokens": []}))
            if name == "Qwen3VLMoe":
                transpose_experts(place / "model")
            convert(place / "model", place / "model.gguf", CASES[name][2] if name in CASES else WITH_EYES[name][1])
            with torch.inference_mode():
                logits = model(input_ids=torch.tensor([IDS])).logits[0, -4:, : SMALL["vocab_size"]].float().numpy()
            stem = name.replace(" ", "_")
            (INTO / f"{stem}.gguf.xz").write_bytes(lzma.compress((place / "model.gguf").read_bytes(), preset=9))
            np.save(INTO / f"{stem}.npy", logits)
            print(name, (INTO / f"{stem}.gguf.xz").stat().st_size)


if __name__ == "__main__":
    main(*sys.argv[1:])
