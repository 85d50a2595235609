"""Every architecture of docs/families.md: what a small random model of it needs."""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import fields, is_dataclass
from functools import cache

import torch
import transformers

from actors.engines.decoder.configuration import spec_of
from actors.engines.decoder.spec import DecoderSpec, Layer, Norms
from tests.engines.tiny import COMMON, make_model

EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
HEAD = {"head_dim": 16}
ONE_KIND = {"num_key_value_heads": 4}  # as many keys as queries
LATENT = ONE_KIND | {"kv_lora_rank": 16, "qk_rope_head_dim": 16, "qk_nope_head_dim": 8, "v_head_dim": 12}
RANKED = {"n_routed_experts": 4, "n_group": 2, "topk_group": 1, "n_shared_experts": 1, "first_k_dense_replace": 1}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 8,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.3,
}
WIDE = {  # layers with windows have narrower heads
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention", "full_attention"],
    "num_hidden_layers": 5,
    "num_kv_shared_layers": 2,
    "use_double_wide_mlp": True,
    "sliding_window": 9,
    "global_head_dim": 32,
    "hidden_size_per_layer_input": 16,
    "vocab_size_per_layer_input": COMMON["vocab_size"],
}
NARROW = {key: value for key, value in WIDE.items() if "per_layer_input" not in key}
KEYS_ARE_VALUES = {"attention_k_eq_v": True, "num_global_key_value_heads": 1, "hidden_size_per_layer_input": 0}
BESIDE_MLP = {"enable_moe_block": True, "num_experts": 6, "top_k_experts": 2, "moe_intermediate_size": 32}
SHARED = EXPERTS | {"shared_expert_intermediate_size": 32}
HYBRID = {"layer_types": ["linear_attention", "full_attention", "linear_attention"]}
DELTA = HYBRID | {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
# What sees and hears beside a text model has 870M parameters by default.
TOWER = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2}
HEARING = {"num_blocks": 1, "ext_pw_out_channel": 32, "nemo_conv_channels": 32}
TWO_GROUPS = {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 2}
MANY_GROUPS = {"multi_query": False}
SCAN = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 1, "mamba_chunk_size": 16}
SCANS = {"mamba_num_heads": 8, "mamba_head_dim": 16, "ssm_state_size": 16, "chunk_size": 16}
NEO = {"num_layers": 3, "num_heads": 4}
BOTH = ("full_attention", "sliding_attention")
WINDOWS = {"sliding_window": 9, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
STRETCHED = {"rope_type": "dynamic", "rope_theta": 1e4, "alpha": 1000.0, "factor": 1.0}
LONG = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0 + 0.1 * i for i in range(8)],
    "long_factor": [2.0 + 0.7 * i for i in range(8)],
}
BASE = {"rope_type": "default", "rope_theta": 1e4}
BASES = WINDOWS | {"layer_rope_theta": [1e4, 0, 1e3]}
FAMILIES = {  # what their configurations need beside what all share
    "Llama": {},
    "Qwen2": {},
    "Qwen2Moe": SHARED,
    "Qwen3": HEAD,
    "Qwen3Moe": EXPERTS | HEAD,
    "Olmoe": EXPERTS,
    "GraniteMoe": {"num_local_experts": 4},
    "GraniteMoeShared": {"num_local_experts": 4, "shared_intermediate_size": 48},
    "Glm4Moe": EXPERTS | RANKED | HEAD | {"use_qk_norm": True},
    "DeepseekV2": EXPERTS | RANKED | LATENT | {"q_lora_rank": None, "topk_method": "group_limited_greedy"},
    "DeepseekV3": EXPERTS | RANKED | LATENT | {"q_lora_rank": 16},
    "Glm4MoeLite": EXPERTS | RANKED | LATENT | {"q_lora_rank": 32, "n_group": 1},
    "Llama4": HEAD
    | {"intermediate_size_mlp": 80, "num_local_experts": 4, "attention_chunk_size": 9, "no_rope_layer_interval": 2}
    | {"interleave_moe_layer_step": 2, "floor_scale": 8, "attn_scale": 0.3},
    "Ministral3": HEAD | {"rope_parameters": YARN},
    "Dots1": EXPERTS | RANKED | HEAD,
    "Ernie4_5_Moe": HEAD | {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 32, "moe_num_shared_experts": 1},
    "MiniMaxM2": EXPERTS | HEAD | {"num_local_experts": 4, "intermediate_size": 32},
    "Mistral": {"sliding_window": 9},
    "Mixtral": {"num_local_experts": 4},
    "Gemma": HEAD,
    "Gemma2": HEAD | {"sliding_window": 9},
    "Gemma3": HEAD | {"sliding_window": 9},
    "Gemma4": HEAD | WIDE,
    "Gemma4Unified": HEAD | NARROW,
    "Phi": ONE_KIND,
    "Phi3": {},
    "Phi4Multimodal": {"vision_config": TOWER | {"num_hidden_layers": 1}, "audio_config": TOWER | HEARING},
    "SmolLM3": {},
    "Olmo2": {},
    "Olmo3": {"sliding_window": 9},
    "Granite": {},
    "StableLm": {},
    "Cohere": {},
    "Cohere2": {"sliding_window": 9},
    "Glm": HEAD,
    "Glm4": HEAD,
    "Ernie4_5": HEAD,
    "Exaone4": {"sliding_window": 9},
    "GptOss": HEAD
    | {"num_local_experts": 4, "sliding_window": 9, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
    "GPT2": ONE_KIND,
    "GPTNeoX": ONE_KIND,
    "OPT": ONE_KIND | {"ffn_dim": 96},
    "Falcon": {},
    "Starcoder2": {"sliding_window": None},
    "Nemotron": {},
    "SeedOss": HEAD,
    "HunYuanDenseV1": HEAD,
    "Arcee": {},
    "GPTBigCode": {},
    "GPTNeo": {"attention_types": [[["global", "local"], 1], [["local"], 1]], "window_size": 9} | NEO,
    "BioGpt": ONE_KIND,
    "GPTJ": ONE_KIND | {"rotary_dim": 8},
    "Persimmon": ONE_KIND,
    "HunYuanMoEV1": HEAD | {"num_experts": 4, "moe_topk": 2},
    "NanoChat": {},
    "Olmo": {},
    "Cwm": HEAD | {"sliding_window": 9},
    "Jais2": {},
    "VaultGemma": HEAD | {"sliding_window": 9},
    "GraniteSWA": BASES,
    "GraniteMoeSWA": BASES | {"num_local_experts": 4, "shared_intermediate_size": 48},
    "HyperCLOVAX": {"residual_multiplier": 0.5, "logits_scaling": 0.7},
    "FlexOlmo": EXPERTS,
    "SolarOpen": EXPERTS | RANKED | HEAD,
    "ExaoneMoe": EXPERTS | RANKED | HEAD | WINDOWS,
    "Kolibri1": EXPERTS | HEAD | WINDOWS | {"shared_expert_intermediate_size": 48},
    "HYV3": EXPERTS | HEAD,
    "Mellum": EXPERTS | HEAD | WINDOWS,
    "Flint": EXPERTS | HEAD | WINDOWS | {"shared_expert_intermediate_size": 48, "mlp_only_layers": [0]},
    "Afmoe": EXPERTS | HEAD | {"sliding_window": 9, "num_dense_layers": 1},
    "Laguna": EXPERTS
    | HEAD
    | WINDOWS
    | {"num_attention_heads_per_layer": [6, 4, 8], "moe_routed_scaling_factor": 1.5, "num_key_value_heads": 2},
    "AriaText": {"moe_num_experts": 4, "moe_topk": 2, "moe_num_shared_experts": 1},
    "Cohere2Moe": EXPERTS | HEAD | {"sliding_window": 9, "intermediate_size": 48, "num_shared_experts": 1},
    "CohereCompass": WINDOWS | {"rope_parameters": dict.fromkeys(BOTH, BASE)},
    "Mistral4": EXPERTS | RANKED | LATENT | {"q_lora_rank": 16, "rope_parameters": {**YARN}},
    "Youtu": LATENT | {"q_lora_rank": 16},
    "MiniCPM3": LATENT | {"q_lora_rank": 16, "dim_model_base": 32},
    "AXK1": EXPERTS | RANKED | LATENT | {"q_lora_rank": 16},
    "Apertus": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
    "Helium": HEAD,
    "Qwen3Next": HEAD | SHARED | DELTA,
    "Qwen3_5": HEAD | DELTA,
    "Qwen3_5Moe": HEAD | SHARED | DELTA,
    "OlmoHybrid": DELTA,
    "Lfm2": {"layer_types": ["conv", "full_attention", "conv"]},
    "Lfm2Moe": EXPERTS | {"layer_types": ["conv", "full_attention", "conv"], "num_dense_layers": 1},
    "Lfm3": HEAD | {"layer_types": ["conv", "sliding_attention", "full_attention"], "sliding_window": 9},
    "Mamba": {"state_size": 16, "time_step_rank": 16},
    "FalconMamba": {"state_size": 16, "time_step_rank": 16},
    "Mamba2": {"num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 1, "chunk_size": 16},
    "FalconH1": HEAD | SCAN | {"mamba_d_ssm": 128},
    "GraniteMoeHybrid": SCAN | HYBRID | {"num_local_experts": 0, "shared_intermediate_size": 32},
    "Bamba": SCAN | {"attn_layer_indices": [1]},
    "Jamba": {
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "num_experts": 2,
        "mamba_d_state": 16,
        "mamba_dt_rank": 16,
    },
    "NemotronH": HEAD | SCANS | {"n_groups": 1, "layers_block_type": ["mamba", "attention", "mlp"]},
}
MULTIPLIERS = {
    "embedding_multiplier": 1.5,
    "lm_head_multiplier": 0.7,
    "mlp_multipliers": [0.8, 1.2],
    "key_multiplier": 0.6,
    "attention_in_multiplier": 1.3,
    "attention_out_multiplier": 0.9,
    "ssm_multipliers": [0.7, 1.2, 0.8, 1.1, 0.9],
    "ssm_in_multiplier": 1.25,
    "ssm_out_multiplier": 0.6,
}
RANKED_SCANS = SCANS | {
    "layers_block_type": ["mamba", "moe", "attention", "moe", "mamba"],
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "moe_shared_expert_intermediate_size": 48,
}
VARIANTS = {
    "Falcon-H1 with multipliers": ("FalconH1", HEAD | SCAN | {"mamba_d_ssm": 128} | MULTIPLIERS),
    "Falcon-H1 with norms of two groups": (
        "FalconH1",
        HEAD
        | SCAN
        | {"mamba_d_ssm": 128, "mamba_n_groups": 2, "mamba_rms_norm": True, "mamba_norm_before_gate": False},
    ),
    "Nemotron-H with experts": ("NemotronH", HEAD | RANKED_SCANS | {"n_groups": 2, "time_step_min": 0.1}),
    "Gemma 4 whose keys are values": ("Gemma4", HEAD | WIDE | KEYS_ARE_VALUES | {"num_kv_shared_layers": 0}),
    "Gemma 4 with experts": (
        "Gemma4",
        HEAD | WIDE | KEYS_ARE_VALUES | BESIDE_MLP | {"num_kv_shared_layers": 0, "use_double_wide_mlp": False},
    ),
    "Falcon of two groups": ("Falcon", TWO_GROUPS),
    "Falcon of as many groups as heads": ("Falcon", MANY_GROUPS),
    "Command A whose experts are added to the shared one": (
        "Cohere2Moe",
        EXPERTS | HEAD | {"intermediate_size": 48, "shared_expert_combination_strategy": "sum"},
    ),
    "Phi with norms of heads, which have biases": ("Phi", ONE_KIND | {"qk_layernorm": True}),
    "Hunyuan whose rotations are stretched": ("HunYuanDenseV1", HEAD | {"rope_parameters": STRETCHED}),
    "BigCode of as many heads of keys as of queries": ("GPTBigCode", ONE_KIND | {"multi_query": False}),
    "Falcon of one norm and halves one behind the other": ("Falcon", {"parallel_attn": False, "bias": True}),
    "GPT-NeoX of halves one behind the other": ("GPTNeoX", ONE_KIND | {"use_parallel_residual": False}),
    "Phi 3 within the context of its first training": (
        "Phi3",
        {"rope_parameters": LONG, "original_max_position_embeddings": 512, "max_position_embeddings": 2048},
    ),
    "Phi 3 beyond that": ("Phi3", {"rope_parameters": LONG, "original_max_position_embeddings": 8}),
    "MiniCPM 3 beyond it": (
        "MiniCPM3",
        LATENT | {"q_lora_rank": 16, "rope_parameters": LONG | {"original_max_position_embeddings": 8}},
    ),
    "Llama of dynamic rotations": (
        "Llama",
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}},
    ),
    "GPT-2 whose layers scale their scores by number": ("GPT2", ONE_KIND | {"scale_attn_by_inverse_layer_idx": True}),
}
TEXT = (
    "CohereCompass",
    "Gemma3",
    "Gemma4",
    "Gemma4Unified",
    "Llama4",
    "Qwen3_5",
    "Qwen3_5Moe",
)  # parts of models with eyes


def config_of(name: str, **more):
    name, extra = VARIANTS.get(name) or (name, FAMILIES[name])
    config = getattr(transformers, name + ("TextConfig" if name in TEXT else "Config"))
    return config(**deepcopy(COMMON | extra | more))


def model_of(name: str, **more):
    family = VARIANTS[name][0] if name in VARIANTS else name
    model = getattr(transformers, family + ("LMHeadModel" if family == "GPT2" else "ForCausalLM"))
    made = make_model(lambda: model(config_of(name, **more)))
    with torch.no_grad():  # norms and biases are ones and zeros at first, and a lost one would not show
        for parameter in made.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return made


def sort_of(value: object) -> object:
    """A description's value, but of the names of weights and of other numbers than 0 and 1 only that there are some."""
    match value:
        case str():
            return "." in value or value
        case tuple():
            return tuple if value and not isinstance(value[0], str) else len(value)
        case float():
            return value if value in (0, 1) else float
    return type(value) if is_dataclass(value) else value


def said(part: object) -> Iterator[tuple[object, ...]]:
    """What a description says, each by itself; and how each layer is put together."""
    if isinstance(part, tuple):
        for one in part:
            yield from said(one)
    elif is_dataclass(part):
        values = [(field.name, getattr(part, field.name)) for field in fields(part)]
        for name, value in values:
            yield type(part), name, sort_of(value)
            yield from said(value)
        if isinstance(part, Norms | Layer):
            yield type(part), *(sort_of(value) for _, value in values)


@cache
def described() -> dict[str, DecoderSpec]:
    """Descriptions of those that have one."""
    specs = {name: spec_of(config_of(name)) for name in (*FAMILIES, *VARIANTS)}
    return {name: spec for name, spec in specs.items() if spec is not None}


def every_part(recurrent: bool = True) -> list[str]:
    """As few families as say all that any family's description says. Where a family's own mixture of parts went wrong,
    it would in torch and in the compiled layers as well, by which test_programs.py runs every family."""
    told = {
        name: {*said(spec.in_context(512))} for name, spec in described().items() if recurrent or not spec.recurrent
    }
    left, chosen = set().union(*told.values()), []
    while left:
        chosen.append(max(told, key=lambda name: len(told[name] & left)))
        left -= told[chosen[-1]]
    return chosen
