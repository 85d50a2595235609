"""Layers for more tokens that came with the target propose what transformers' own forward does."""

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    Glm4MoeConfig,
    Glm4MoeForCausalLM,
    Glm4MoeLiteConfig,
    Glm4MoeLiteForCausalLM,
    Qwen3_5ForCausalLM,
    Qwen3_5TextConfig,
)
from transformers.modeling_layers import MtpLayer

from actors.engines.heads.build import build_head
from actors.engines.heads.kinds import (
    CONVENTIONS,
    DEEPSEEK,
    MIMO,
    NEXT,
    QWEN,
    configuration,
    convention_in,
    kind_of,
    own_layer,
)
from actors.engines.heads.mtp import Mtp
from actors.models import Leaf
from duoactor.config import choose_draft
from protocols.errors import ModelError
from protocols.messages import Sampling
from tests.engines.families import FAMILIES
from tests.engines.heads.published import Pair, by_torch, fused
from tests.engines.heads.test_eagle3 import assert_proposes
from tests.engines.mirrored_texts import some_prompt
from tests.engines.tiny import COMMON, VOCAB, make_model
from tests.engines.weights.test_gguf_models import CASES as CASES_OF_FILES
from tests.engines.weights.test_gguf_models import _split, tiny, written

GREEDY = Sampling(max_tokens=64)
QWEN_CONFIG = {
    **COMMON,
    "head_dim": 32,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e4,
        "partial_rotary_factor": 0.25,
        "mrope_section": [2, 1, 1],
    },
}
GLM_CONFIG = {
    **COMMON,
    "head_dim": 16,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
MODELS = {
    "qwen3_5": lambda: Qwen3_5ForCausalLM(Qwen3_5TextConfig(**QWEN_CONFIG)),
    "glm4_moe": lambda: Glm4MoeForCausalLM(Glm4MoeConfig(**GLM_CONFIG)),
    "deepseek_v3": lambda: DeepseekV3ForCausalLM(DeepseekV3Config(**COMMON | FAMILIES["DeepseekV3"])),
    "glm4_moe_lite": lambda: Glm4MoeLiteForCausalLM(Glm4MoeLiteConfig(**COMMON | FAMILIES["Glm4MoeLite"])),
}


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def one_layer(model, seed=4):
    """transformers' layer for more tokens, of the model's own kind, with random weights."""
    config = type(model.config).from_dict(
        model.config.to_dict()
        | {"num_hidden_layers": 1, "layer_types": ["full_attention"], "first_k_dense_replace": 0}
        | {"mlp_layer_types": ["sparse"]}
    )
    config._attn_implementation = "eager"
    decoder = model.get_decoder()
    torch.manual_seed(seed)
    layer = MtpLayer(config, type(decoder.layers[-1]), type(decoder.norm), 0)
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.15)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.3)
            if "bias" in name:
                nn.init.normal_(parameter, std=0.1)
        for buffer in layer.buffers():
            buffer.normal_(std=0.1)
    return layer.eval()


def published(layer, convention, layers=3, stage=0):
    """The layer's weights by a family's names."""
    prefix = convention.prefix_of(stage, layers)
    ours = {"enorm": convention.token_norm, "hnorm": convention.state_norm, "eh_proj": convention.join,
            "post_norm": convention.last_norm}  # fmt: skip
    found = {}
    for name, tensor in layer.state_dict().items():
        first, _, rest = name.partition(".")
        own = ours.get(first) or convention.block.format(stage=stage) + rest
        found[prefix + own] = tensor.clone()
    return found


def split_experts(weights):
    """Each expert with matrices of its own, as most checkpoints have them."""
    out = {}
    for name, tensor in weights.items():
        whole, _, last = name.rpartition(".")
        if last == "gate_up_proj":
            for expert, part in enumerate(tensor):
                for one, matrix in zip(("gate_proj", "up_proj"), part.chunk(2), strict=True):
                    out[f"{whole}.{expert}.{one}.weight"] = matrix.contiguous()
        elif last == "down_proj" and tensor.ndim == 3:
            out |= {f"{whole}.{expert}.down_proj.weight": part.contiguous() for expert, part in enumerate(tensor)}
        else:
            out[name] = tensor
    return out


@torch.inference_mode()
def expected(pair, layers, text, path):
    """The logits behind the last token, computed over the whole text. ``layers``: one for each token of a round; the
    last one goes on by itself."""
    model, convention = pair.model, pair.head.convention
    layers = layers if isinstance(layers, list) else [layers]
    decoder, ids = model.get_decoder(), torch.tensor([[*text, *path]])
    states = pair.normed(text[:-1]) if convention.reads_normed else pair.raw(text[:-1])
    for depth in range(len(path) + 1):
        stage = min(depth, len(layers) - 1)
        layer = layers[stage]
        embedded = model.get_input_embeddings()(ids[:, stage + 1 : len(text) + depth])
        last = embedded.shape[1]
        places, mask = torch.arange(last)[None], torch.full((last, last), -torch.inf).triu(1)[None, None]
        turns = decoder.rotary_emb(embedded, places)
        parts = layer.enorm(embedded), layer.hnorm(states)
        x = layer.eh_proj(torch.cat(parts if convention.token_first else parts[::-1], -1))
        made = layer.mtp_block(
            x, position_embeddings=turns, attention_mask=mask, position_ids=places, past_key_values=None
        )
        normed = layer.post_norm(made)
        if convention.token_first and convention.reads_normed:  # as transformers' own has it
            whole = layer(embedded, states, turns, mask, places, None)
            torch.testing.assert_close(whole, normed)
        recycled = normed if convention.recycles_normed else made
        states = recycled if depth < len(layers) - 1 else torch.cat([states, recycled[:, -1:]], 1)
    return model.lm_head(normed[0, -1]).float()


class OwnLayer(Pair):
    def __init__(self, kind, convention, change=lambda weights: weights, stages=1):
        model = make_model(MODELS[kind])
        self.layer = [one_layer(model, seed=4 + stage) for stage in range(stages)]
        weights = {}
        for stage, layer in enumerate(self.layer):
            if convention is QWEN:  # it has one matrix and its norms for all
                for name in ("enorm", "hnorm", "eh_proj", "post_norm"):
                    setattr(layer, name, getattr(self.layer[0], name))
            weights |= change(published(layer, convention, stage=stage))
        super().__init__(
            fused(make_model(MODELS[kind])), model, lambda trunk: Mtp(model.config, weights, trunk, convention)
        )

    def normed(self, text):
        return self.tapped(text)[-1]

    def raw(self, text):
        held = []
        hook = self.model.get_decoder().norm.register_forward_pre_hook(lambda _, args: held.append(args[0]))
        self.tapped(text)
        hook.remove()
        return held[0]


CASES = [
    ("qwen3_5", QWEN, dict, 1),
    ("glm4_moe", DEEPSEEK, dict, 1),
    ("glm4_moe", DEEPSEEK, split_experts, 1),
    ("qwen3_5", MIMO, dict, 1),
    ("glm4_moe", DEEPSEEK, dict, 3),
    ("qwen3_5", QWEN, dict, 2),
    ("qwen3_5", MIMO, dict, 5),
    ("deepseek_v3", DEEPSEEK, dict, 1),
    ("deepseek_v3", DEEPSEEK, split_experts, 2),
    ("glm4_moe_lite", DEEPSEEK, split_experts, 1),
]


@pytest.mark.parametrize(("kind", "convention", "change", "stages"), CASES)
def test_proposals_are_those_of_transformers_own_layers(kind, convention, change, stages):
    pair = OwnLayer(kind, convention, change, stages)
    assert pair.head.stages == stages
    handle, mirror, text = pair.begin(some_prompt(30), GREEDY)
    for turn in range(5):
        [top] = pair.draft.expand([Leaf(mirror, text[-1], (), is_root=True)])
        assert_proposes(top, expected(pair, pair.layer, text, []))
        path, slots = [], []
        for _ in range(3):  # a chain, as windows of recurrent targets are
            path.append(int(top.tokens[0]) if not path else int(found.tokens[0]))  # noqa: F821
            [found] = pair.draft.expand([Leaf(mirror, path[-1], tuple(slots))])
            slots.append(found.slot)
            assert_proposes(found, expected(pair, pair.layer, text, path))
        nodes = pair.truth(text, 2) if turn % 2 else path
        from actors.models import Window

        [outcome] = pair.target.verify([Window(handle, nodes, [*range(-1, len(nodes) - 1)])])
        pair.draft.commit(mirror, outcome.tokens, [-1] * len(outcome.tokens))
        pair.draft.release(mirror, slots)
        text = [*text, *outcome.tokens]


@pytest.mark.parametrize("stages", [1, 3])
def test_a_resumed_stream_and_its_neighbour_draft_as_alone(stages):
    pair = OwnLayer("qwen3_5", QWEN, stages=stages)
    begun = [pair.begin(some_prompt(40), GREEDY), pair.begin(some_prompt(25, 2), GREEDY, some_prompt(9, 5))]
    tops = pair.draft.expand([Leaf(mirror, text[-1], (), is_root=True) for _, mirror, text in begun])
    below = pair.draft.expand([Leaf(m, top.tokens[1], ()) for (_, m, _), top in zip(begun, tops, strict=True)])
    for (_, _, text), top, under in zip(begun, tops, below, strict=True):
        assert_proposes(top, expected(pair, pair.layer, text, []))
        assert_proposes(under, expected(pair, pair.layer, text, [top.tokens[1]]))


@pytest.mark.parametrize("kind", ["qwen3_5", "glm4_moe", "deepseek_v3"])
def test_the_layer_is_found_in_the_checkpoint_itself(kind, tmp_path):
    convention = QWEN if kind == "qwen3_5" else DEEPSEEK
    model = make_model(MODELS[kind])
    model.save_pretrained(tmp_path)
    assert own_layer(str(tmp_path)) is None
    layers = [one_layer(model, seed) for seed in ((4, 5) if kind == "glm4_moe" else (4,))]
    for stage, layer in enumerate(layers):
        save_file(split_experts(published(layer, convention, stage=stage)), tmp_path / f"mtp{stage}.safetensors")
    assert own_layer(str(tmp_path)) is convention
    target = fused(make_model(MODELS[kind]))
    draft = build_head("", target, str(tmp_path))
    handle = target.open(some_prompt(30), GREEDY)
    outcome = target.prefill(handle)
    text = [*some_prompt(30), *outcome.tokens]
    mirror = draft.open(text, 30, GREEDY)
    draft.follow(mirror, handle)
    [top] = draft.expand([Leaf(mirror, text[-1], (), is_root=True)])
    [below] = draft.expand([Leaf(mirror, top.tokens[0], ())])
    pair = OwnLayer(kind, convention)
    pair.model = model
    assert_proposes(top, expected(pair, layers, text, []))
    assert_proposes(below, expected(pair, layers, text, [top.tokens[0]]))


def with_next_layer(weights, layers, more):
    """What llama.cpp's converter adds to a file for a layer for more tokens."""
    outside = {"eh_proj": "eh_proj", "enorm": "enorm", "hnorm": "hnorm", "shared_head.norm": "shared_head_norm"}

    def write(w, config):
        more(w, config)
        w.add_block_count(layers + 1)
        w.add_nextn_predict_layers(1)
        architecture = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == w.arch)
        names = gguf.get_tensor_name_map(architecture, layers + 1)
        for name, tensor in weights.items():
            own = name.removeprefix(f"model.layers.{layers}.").rpartition(".")[0]
            values = tensor.numpy() + (tensor.ndim == 1 and "qwen" in w.arch)
            if own in outside:
                w.add_tensor(f"blk.{layers}.nextn.{outside[own]}.weight", values)
            else:
                for theirs, part in _split(names, name.replace("correction_bias", "correction.bias"), values):
                    w.add_tensor(theirs, np.ascontiguousarray(part))

    return write


@pytest.mark.parametrize(
    ("case", "beside"), [("qwen35", False), ("qwen35moe", False), ("glm4moe", False), ("qwen35", True)]
)
def test_the_layer_is_found_in_a_gguf_file(case, beside, tmp_path):
    architecture, changes, more = CASES_OF_FILES[case]
    sizes = changes | {"vocab_size": VOCAB}
    model = tiny(architecture, sizes)
    layer = one_layer(model)
    write = with_next_layer(published(layer, DEEPSEEK, layers=4), 4, more)
    plain = str(written(tmp_path / "plain.gguf", architecture, model, more))
    assert own_layer(plain) is None
    target = by_torch(tiny(architecture, sizes))
    if beside:  # as llama.cpp's converter writes it with --mtp
        model.model.layers = torch.nn.ModuleList()
        file = str(written(tmp_path / "mtp-plain.gguf", architecture, model, write))
        assert kind_of(configuration(file)) == NEXT and not kind_of(configuration(plain))
        assert choose_draft(plain)[0] == file
        draft = build_head(file, target, plain)
        with pytest.raises(ModelError, match="made for a num_hidden_layers of 4 and the target's is 3"):
            build_head(file, fused(make_model(MODELS["qwen3_5"])), plain)
        model = tiny(architecture, sizes)
    else:
        file = str(written(tmp_path / "tiny.gguf", architecture, model, write))
        assert own_layer(file) is DEEPSEEK
        assert choose_draft(file)[1].startswith("by the target's own layer for more tokens")
        draft = build_head("", target, file)
    pair = OwnLayer("qwen3_5", DEEPSEEK)
    pair.target, pair.model, pair.draft = target, model, draft
    _, mirror, text = pair.begin(some_prompt(30), GREEDY)
    [top] = draft.expand([Leaf(mirror, text[-1], (), is_root=True)])
    [below] = draft.expand([Leaf(mirror, top.tokens[1], ())])
    assert_proposes(top, expected(pair, layer, text, []))
    assert_proposes(below, expected(pair, layer, text, [top.tokens[1]]))


def test_a_layer_that_does_not_fit_is_refused():
    model = make_model(MODELS["qwen3_5"])
    weights = published(one_layer(model), QWEN)
    del weights["mtp.layers.0.self_attn.k_norm.weight"]
    with pytest.raises(ModelError, match="k_norm"):
        Mtp(model.config, weights, fused(model).engine.trunk(), QWEN)
    assert convention_in(weights, 3) is QWEN
    assert convention_in({"model.layers.9.eh_proj.weight": 1}, 3) is None
    assert len({one.join for one in CONVENTIONS}) == len(CONVENTIONS)
