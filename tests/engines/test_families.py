"""Every architecture of docs/families.md with small random weights: its text is transformers' own, plainly decoded,
speculated on with trees (with chains, where it has recurrent layers), and resumed."""

import random
import re
from pathlib import Path

import pytest
import torch
import transformers
from tiny import COMMON, VOCAB, info, make_model

from actors.engines.backends.llama.engine import LlamaEngine, supports
from actors.engines.backends.transformers import TransformersEngine
from actors.engines.selfcheck import ROWS
from actors.engines.target import Target
from actors.models import Window
from protocols.errors import ModelError
from protocols.messages import Sampling

TABLE = Path(__file__).parents[2] / "docs" / "families.md"
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
HEAD = {"head_dim": 16}
ONE_KIND = {"num_key_value_heads": 4}  # as many keys as queries
LATENT = ONE_KIND | {"kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 12}
SHARED = EXPERTS | {"shared_expert_intermediate_size": 32}
HYBRID = {"layer_types": ["linear_attention", "full_attention", "linear_attention"]}
DELTA = HYBRID | {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
SCAN = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 1, "mamba_chunk_size": 16}
FAMILIES = {  # what their configurations need beside what all share
    "Llama": {},
    "Qwen2": {},
    "Qwen2Moe": SHARED,
    "Qwen3": HEAD,
    "Qwen3Moe": EXPERTS | HEAD,
    "Mistral": {"sliding_window": 9},
    "Mixtral": {"num_local_experts": 4},
    "Gemma": HEAD,
    "Gemma2": HEAD | {"sliding_window": 9},
    "Gemma3": HEAD | {"sliding_window": 9},
    "Phi": ONE_KIND,
    "Phi3": {},
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
    "Starcoder2": {"sliding_window": None},
    "Nemotron": {},
    "SeedOss": HEAD,
    "HunYuanDenseV1": HEAD,
    "Arcee": {},
    "Apertus": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
    "Helium": HEAD,
    "Qwen3Next": HEAD | SHARED | DELTA,
    "Qwen3_5": HEAD | DELTA,
    "Qwen3_5Moe": HEAD | SHARED | DELTA,
    "OlmoHybrid": DELTA,
    "Lfm2": {"layer_types": ["conv", "full_attention", "conv"]},
    "Lfm2Moe": EXPERTS | {"layer_types": ["conv", "full_attention", "conv"], "num_dense_layers": 1},
    "Mamba": {"state_size": 8},
    "FalconMamba": {"state_size": 8},
    "Mamba2": {"num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 1, "chunk_size": 16},
    "FalconH1": HEAD | SCAN | {"mamba_d_ssm": 128},
    "GraniteMoeHybrid": SCAN | HYBRID | {"num_local_experts": 0, "shared_intermediate_size": 32},
    "Bamba": SCAN | {"attn_layer_indices": [1]},
    "Jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2, "mamba_d_state": 8, "mamba_dt_rank": 4},
    "NemotronH": HEAD
    | {"mamba_num_heads": 8, "mamba_head_dim": 16, "ssm_state_size": 16, "n_groups": 1, "chunk_size": 16}
    | {"layers_block_type": ["mamba", "attention", "mlp"]},
}
REFUSED = {
    "Falcon": {},
    "GPTJ": {"rotary_dim": 8},
    "Bloom": {},
    "Llama4": HEAD | {"intermediate_size_mlp": 96, "num_local_experts": 2, "attention_chunk_size": 99},
    "DeepseekV3": LATENT | {"q_lora_rank": 16},
    "KimiLinear": HYBRID | LATENT,
    "MiniMax": HEAD | HYBRID | {"num_local_experts": 2},
    "RecurrentGemma": {"lru_width": 64, "attention_window_size": 9},
}
TEXT = ("Gemma3", "Llama4", "Qwen3_5", "Qwen3_5Moe")  # that are parts of models with eyes
PENALTY = 5.0  # small random models say one token for ever without it
PROMPT, COUNT = [5 + 7 * i % 150 for i in range(21)], 24


def model_of(name: str):
    extra = FAMILIES.get(name, REFUSED.get(name))
    config = getattr(transformers, name + ("TextConfig" if name in TEXT else "Config"))
    model = getattr(transformers, name + ("LMHeadModel" if name == "GPT2" else "ForCausalLM"))
    return make_model(lambda: model(config(**(COMMON | extra))))


def target_of(model) -> Target:
    engine = (LlamaEngine if supports(model.config) else TransformersEngine)(model, info(model), 4096)
    return Target(engine, rows_agree=ROWS)


def begin(target: Target, generated=()) -> tuple[int, list[int]]:
    handle = target.open(
        PROMPT, Sampling(max_tokens=COUNT + 40, ignore_eos=True, repetition_penalty=PENALTY), generated
    )
    while (outcome := target.prefill(handle)) is None:
        pass
    return handle, [*generated, *outcome.tokens]


@pytest.mark.parametrize("name", FAMILIES)
def test_the_text_of_a_family_is_transformers_own(name):
    model = model_of(name)
    with torch.inference_mode():
        out = model.generate(
            torch.tensor([PROMPT]),
            max_new_tokens=COUNT,
            do_sample=False,
            eos_token_id=None,
            use_cache=False,
            repetition_penalty=PENALTY,
        )
    own = out[0, len(PROMPT) :].tolist()
    assert len(set(own)) > 3, "a text of one token says nothing"
    target = target_of(model)

    handle, plain = begin(target)
    while len(plain) < COUNT:
        plain += target.verify([Window(handle)])[0].tokens
    assert plain[:COUNT] == own

    handle, drafted = begin(target)
    chance = random.Random(0)
    while len(drafted) < COUNT:
        right = own[len(drafted) : len(drafted) + chance.randrange(1, 5)]
        wrong = [(token + 1) % VOCAB for token in right]
        parents = list(range(-1, len(right) - 1))
        if target.branches:
            behind = [parent if parent < 0 else parent + len(wrong) for parent in parents]
            window = Window(handle, [*wrong, *right], [*parents, *behind])
        else:
            window = Window(handle, [*right, *wrong], list(range(-1, 2 * len(right) - 1)))
        [outcome] = target.verify([window])
        assert len(outcome.path) >= len(right), "drafts that are right are accepted"
        drafted += outcome.tokens
    assert drafted[:COUNT] == own

    handle, resumed = begin(target, own[: COUNT // 2])
    while len(resumed) < COUNT:
        resumed += target.verify([Window(handle)])[0].tokens
    assert resumed[:COUNT] == own


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_run_over_slots_is_refused_in_one_sentence(name):
    model = model_of(name)
    with torch.inference_mode():
        model(torch.tensor([PROMPT]), use_cache=False)  # it runs as it is: what is refused is how we would run it
    with pytest.raises(ModelError, match="does not attend in the plain way"):
        target_of(model)


def test_the_table_of_families_names_what_is_tried():
    runs, refused = TABLE.read_text().split("## Refused")
    assert set(re.findall(r"^\| `(\w+)`", runs, re.MULTILINE)) == set(FAMILIES)
    assert set(re.findall(r"^\| `(\w+)`", refused, re.MULTILINE)) == set(REFUSED)
    fused = {name for name in FAMILIES if f"| `{name}` | fused" in runs}
    assert fused == {"Llama", "Qwen2", "Qwen3"}
