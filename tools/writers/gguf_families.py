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

from tests.engines.families import EXPERTS, LONG, YARN, model_of
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
SCALES = {"scale_emb": 12.0, "scale_depth": 1.4, "dim_model_base": 16}  # as MiniCPM says what Granite says
SCALED = {
    "embedding_multiplier": SCALES["scale_emb"],
    "residual_multiplier": SCALES["scale_depth"] / 2,
    "attention_multiplier": 0.25,
    "logits_scaling": SMALL["hidden_size"] / SCALES["dim_model_base"],
    "num_hidden_layers": 4,
}
CHOSEN = {"norm_topk_prob": True}  # as in what is published, and no file says it
FIRST_DENSE = (
    FOUR
    | {"first_k_dense_replace": 1, "prefix_dense_intermediate_size": 80}
    | {
        "expert_selection_fn": "sigmoid",
        "layer_types": ["full_attention", "sliding_attention", "full_attention", "sliding_attention"],
    }
)
LATENT = AS_MANY | {"moe_intermediate_size": 32}
SAID_NOWHERE = {"attention_chunk_size": 8192, "floor_scale": 8192, "attn_scale": 0.1, "no_rope_layer_interval": 4}
SCANS = HYBRID | {"mamba_n_heads": 4, "num_local_experts": 4, "num_experts_per_tok": 2}
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
    **{name: (name, {}, {}) for name in ("StableLm", "Falcon of two groups", "Nemotron")},
    **{name: (name, {}, {}) for name in ("GPTBigCode", "Olmo", "Jais2", "Apertus", "Mamba", "FalconMamba")},
    "StableLm of parallel halves": ("StableLm", {"use_parallel_residual": True, "use_qkv_bias": True}, {}),
    "Mamba2": ("Mamba2", {"num_heads": 4}, {}),
    "GPTNeoX": ("GPTNeoX", {}, {"rotary_pct": 0.25}),
    "Falcon": ("Falcon", {}, {"-": ["num_kv_heads"]}),
    "Phi": ("Phi", AS_MANY | {"intermediate_size": 128}, {}),
    "GPT2": ("GPT2", AS_MANY, {"n_ctx": 512}),
    "ChatGLM": (
        "Glm",
        {"attention_bias": True},
        {
            "architectures": ["ChatGLMModel"],
            "multi_query_group_num": 1,
            "seq_length": 512,
            "layernorm_epsilon": 1.5625e-07,
        },
    ),
    "Jamba": ("Jamba", {"num_hidden_layers": 4, "num_experts": 4}, {}),
    "InternLM2": ("Llama", {}, {"architectures": ["InternLM2ForCausalLM"]}),
    "Exaone": ("Llama", {}, {"architectures": ["ExaoneForCausalLM"], "activation_function": "silu"}),
    "MiniCPM": ("Granite", SCALED, {"architectures": ["MiniCPMForCausalLM"]} | SCALES),
    "Cohere2Moe": ("Cohere2Moe", {}, {}),
    "HYV3": ("HYV3", {"initializer_range": 0.02}, {}),
    "Llama4": ("Llama4", FOUR | SAID_NOWHERE, {}),
    "GraniteMoeHybrid": ("GraniteMoeHybrid", SCANS, {"layer_types": [*["mamba"] * 3, "attention"]}),
    "Cohere 2 with a dense layer": ("Cohere2Moe", FIRST_DENSE, {}),
    "MiniCPM3": ("MiniCPM3", LATENT | {"dim_model_base": 256}, {}),
    "NemotronH": ("NemotronH", {}, DENSE | {"hybrid_override_pattern": "M*-"}),
    "Nemotron-H with experts": ("Nemotron-H with experts", {"time_step_min": 0.001}, {}),
}
WITH_EYES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    **{name: ({}, {}) for name in ("Qwen2_5_VL", "Qwen3VL", "Glm4v", "Glm4vMoe", "Mistral3")},
    "Qwen3VLMoe": (EXPERTS | CHOSEN, {}),
    "Mistral4": (LATENT | {"rope_parameters": YARN | {"llama_4_scaling_beta": 0.1}}, {}),
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
        own = json.loads((model / "config.json").read_text())  # what the class for Mamba 2 reads by itself
        (model / "config.json").write_text(json.dumps({k: v for k, v in own.items() if k not in gone} | more))
        name = conversion.get_model_architecture(hparams(model), base.ModelType.TEXT)
        kind = conversion.get_model_class(name)
        kind.no_mtp = said.get("no_mtp", False)
        with torch.inference_mode():
            kind(model, conversion.base.gguf.LlamaFileType.ALL_F32, file).write()

    return convert


def as_internlm(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """As InternLM 2 names them: queries, keys and values are one matrix, group by group."""
    own = dict[str, torch.Tensor]()
    for name, weight in weights.items():
        if ".q_proj." in name:
            groups = SMALL["num_key_value_heads"]
            parts = [weights[name.replace("q_proj", f"{part}_proj")].unflatten(0, (groups, -1)) for part in "qkv"]
            own[name.replace("self_attn.q_proj", "attention.wqkv")] = torch.cat(parts, 1).flatten(0, 1)
        elif ".k_proj." not in name and ".v_proj." not in name:
            own[renamed(name, INTERNLM)] = weight
    return own


def as_chatglm(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """As GLM 4 was published first: queries, keys and values are one matrix, one below the other."""
    own = dict[str, torch.Tensor]()
    for name, weight in weights.items():
        if ".q_proj." in name:
            whole = torch.cat([weights[name.replace("q_proj", f"{part}_proj")] for part in "qkv"])
            own[renamed(name, CHATGLM)] = whole
        elif ".k_proj." not in name and ".v_proj." not in name:
            own[renamed(name, CHATGLM)] = weight
    return own


def renamed(name: str, words: dict[str, str]) -> str:
    for before, after in words.items():
        name = name.replace(before, after)
    return name


INTERNLM = {"embed_tokens": "tok_embeddings", "lm_head": "output", "self_attn.o_proj": "attention.wo"}
INTERNLM |= {"input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm"}
INTERNLM |= {f"mlp.{part}_proj": f"feed_forward.{own}" for part, own in (("gate", "w1"), ("down", "w2"), ("up", "w3"))}
CHATGLM = {"model.embed_tokens": "transformer.embedding.word_embeddings", "lm_head": "transformer.output_layer"}
CHATGLM |= {"model.norm": "transformer.encoder.final_layernorm", "model.layers": "transformer.encoder.layers"}
CHATGLM |= {"self_attn.q_proj": "self_attention.query_key_value", "self_attn.o_proj": "self_attention.dense"}
CHATGLM |= {"mlp.gate_up_proj": "mlp.dense_h_to_4h", "mlp.down_proj": "mlp.dense_4h_to_h"}
EXAONE = {"model.embed_tokens": "transformer.wte", "model.norm": "transformer.ln_f", "model.layers": "transformer.h"}
EXAONE |= {"self_attn.o_proj": "attn.attention.out_proj", "self_attn": "attn.attention"}
EXAONE |= {"input_layernorm": "ln_1", "post_attention_layernorm": "ln_2"}
EXAONE |= {f"mlp.{part}_proj": f"mlp.{own}" for part, own in (("gate", "c_fc_0"), ("up", "c_fc_1"), ("down", "c_proj"))}


def transposed_experts(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """As Qwen3-VL's checkpoints have them; transformers 5 writes them the other way."""
    return {name: one.mT.contiguous() if ".experts." in name else one for name, one in weights.items()}


def rewrite(place: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> None:
    from safetensors.torch import load_file, save_file

    for file in place.glob("*.safetensors"):
        save_file(change(load_file(file)), file, {"format": "pt"})


ORIGINALS = {  # published in other words than transformers'
    "Qwen3VLMoe": transposed_experts,
    "InternLM2": as_internlm,
    "ChatGLM": as_chatglm,
    "Exaone": lambda weights: {renamed(name, EXAONE): one for name, one in weights.items()},
}


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
            if name in ORIGINALS:
                rewrite(place / "model", ORIGINALS[name])
            convert(place / "model", place / "model.gguf", CASES[name][2] if name in CASES else WITH_EYES[name][1])
            with torch.inference_mode():
                logits = model(input_ids=torch.tensor([IDS])).logits[0, -4:, : SMALL["vocab_size"]].float().numpy()
            stem = name.replace(" ", "_")
            (INTO / f"{stem}.gguf.xz").write_bytes(lzma.compress((place / "model.gguf").read_bytes(), preset=9))
            np.save(INTO / f"{stem}.npy", logits)
            print(name, (INTO / f"{stem}.gguf.xz").stat().st_size)


if __name__ == "__main__":
    main(*sys.argv[1:])
