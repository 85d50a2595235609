"""Every architecture of docs/families.md with small random weights: its text is transformers' own, speculated on with
trees (with chains, where it has recurrent layers), and served: plainly decoded, by auto, and resumed."""

import asyncio
import random
import re
from pathlib import Path

import pytest
import torch
import transformers
from cluster import Cluster, tokens_of
from msgspec.structs import replace
from structured import Told
from tiny import COMMON, VOCAB, info, make_model

from actors.engines.backends.llama.engine import LlamaEngine, supports
from actors.engines.backends.transformers import TransformersEngine
from actors.engines.selfcheck import ROWS
from actors.engines.target import Target
from actors.models import Window
from actors.proposers.memory import Memory
from actors.replay.clock import run
from actors.verifier.decoding.retrieval import Sources
from protocols.errors import ModelError
from protocols.messages import Cancel, Chunk, Generate, Method, Sampling

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
TWO_GROUPS = {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 2}
MANY_GROUPS = {"multi_query": False}
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
    "Falcon": {},
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
    "GPTJ": {"rotary_dim": 8},
    "Bloom": {},
    "Llama4": HEAD | {"intermediate_size_mlp": 96, "num_local_experts": 2, "attention_chunk_size": 99},
    "DeepseekV3": LATENT | {"q_lora_rank": 16},
    "KimiLinear": HYBRID | LATENT,
    "MiniMax": HEAD | HYBRID | {"num_local_experts": 2},
    "RecurrentGemma": {"lru_width": 64, "attention_window_size": 9},
}
VARIANTS = {
    "Falcon of two groups": ("Falcon", TWO_GROUPS),
    "Falcon of as many groups as heads": ("Falcon", MANY_GROUPS),
}
TEXT = ("Gemma3", "Llama4", "Qwen3_5", "Qwen3_5Moe")  # that are parts of models with eyes
PENALTY = 5.0  # small random models say one token for ever without it
PROMPT, COUNT = [5 + 7 * i % 150 for i in range(21)], 24
SAMPLING = Sampling(max_tokens=COUNT, ignore_eos=True, repetition_penalty=PENALTY)
METHODS = (Method.VANILLA, Method.AUTO)
DRAFTER = {"vocab_size": VOCAB, "tokenizer_digest": "tiny-tokenizer"}


def model_of(name: str):
    name, extra = VARIANTS.get(name) or (name, FAMILIES.get(name, REFUSED.get(name)))
    config = getattr(transformers, name + ("TextConfig" if name in TEXT else "Config"))
    model = getattr(transformers, name + ("LMHeadModel" if name == "GPT2" else "ForCausalLM"))
    return make_model(lambda: model(config(**(COMMON | extra))))


def engine_of(model):
    return (LlamaEngine if supports(model.config) else TransformersEngine)(model, info(model), 4096)


def greedy(model) -> list[int]:
    """transformers' own text."""
    with torch.inference_mode():
        out = model.generate(
            torch.tensor([PROMPT]),
            max_new_tokens=COUNT,
            do_sample=False,
            eos_token_id=None,
            use_cache=False,
            repetition_penalty=PENALTY,
        )
    own: list[int] = out[0, len(PROMPT) :].tolist()
    assert len(set(own)) > 3, "a text of one token says nothing"
    return own


@pytest.fixture(scope="module", params=[*FAMILIES, *VARIANTS])
def family(request):
    """A target, and what transformers has its model say."""
    torch.set_num_threads(1)
    model = model_of(request.param)
    own = greedy(model)
    return Target(engine_of(model), rows_agree=ROWS), own


def begin(target: Target, generated=()) -> tuple[int, list[int]]:
    handle = target.open(PROMPT, replace(SAMPLING, max_tokens=COUNT + 40), generated)
    while (outcome := target.prefill(handle)) is None:
        pass
    return handle, [*generated, *outcome.tokens]


def test_trees_of_right_and_wrong_drafts_change_no_token_of_a_familys_text(family):
    target, own = family
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
    target.close(handle)
    assert drafted[:COUNT] == own


def test_a_verifier_serves_the_text_that_transformers_writes(family):
    """Without drafts, by ``auto`` with a drafter beside that, and resumed after it was cut, with what is retrieved."""
    target, own = family

    async def story():
        system = Cluster(
            language=Told([[*PROMPT, *own]]), target=target, sources=Sources(memory=Memory(1000)), forward_s=0.001
        )
        async with system:
            system.start_drafter(skill=0.7, **DRAFTER)
            await system.connected("d1")
            callers = [await system.caller() for _ in range(3)]
            both = asyncio.gather(
                *(caller.generate(PROMPT, SAMPLING, method) for caller, method in zip(callers, METHODS, strict=False))
            )
            callers[2].send(Generate("cut", tuple(PROMPT), sampling=SAMPLING))
            begun: list[int] = []
            while len(begun) < COUNT // 3:
                begun += (await callers[2].until(lambda message: isinstance(message, Chunk))).token_ids
            callers[2].send(Cancel("cut"))
            plain, drafted = await both
            rest = await callers[2].generate(PROMPT, SAMPLING, generated=tuple(begun))
            return plain, drafted, begun, rest

    plain, drafted, begun, rest = run(story())
    assert tokens_of(plain) == tokens_of(drafted) == own
    assert len(begun) < COUNT and [*begun, *(token for chunk in rest for token in chunk.token_ids)] == own
    assert plain[-1].stats.accepted_tokens == 0 < min(drafted[-1].stats.accepted_tokens, rest[-1].stats.accepted_tokens)
    assert drafted[-1].stats.drafters == ("d1",)


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_run_over_slots_is_refused_in_one_sentence(name):
    model = model_of(name)
    with torch.inference_mode():
        model(torch.tensor([PROMPT]), use_cache=False)  # it runs as it is: what is refused is how we would run it
    with pytest.raises(ModelError, match="does not attend in the plain way"):
        engine_of(model)


def test_a_falcon_whose_positions_are_slopes_is_refused():
    model = make_model(lambda: transformers.FalconForCausalLM(transformers.FalconConfig(**COMMON, alibi=True)))
    with pytest.raises(ModelError, match="does not attend in the plain way"):
        engine_of(model)


def test_the_table_of_families_names_what_is_tried():
    runs, refused = TABLE.read_text().split("## Refused")
    assert set(re.findall(r"^\| `(\w+)`", runs, re.MULTILINE)) == set(FAMILIES)
    assert set(re.findall(r"^\| `(\w+)`", refused, re.MULTILINE)) == set(REFUSED)
    fused = {name for name in FAMILIES if f"| `{name}` | fused" in runs}
    assert fused == {"Llama", "Qwen2", "Qwen3"}
