"""Tensors that nothing takes: the known ones pass, any other is refused before it changes an answer."""

from __future__ import annotations

import pytest

from actors.engines.weights.unneeded import UNNEEDED, refuse_unused
from protocols.errors import ModelError

KNOWN = {  # names that published checkpoints have, by their reason
    "computed from the configuration": ["model.layers.0.self_attn.rotary_emb.inv_freq", "transformer.position_ids"],
    "numbers of xIELU that are the same in every checkpoint": ["model.layers.0.mlp.act_fn.beta"],
    "a causal mask": ["transformer.h.0.attn.bias", "h.11.attn.masked_bias", "gpt_neox.layers.0.attention.bias"],
    "scales of a cache with fewer bits": [
        "model.layers.0.self_attn.k_scale",
        "model.layers.0.self_attn.v_proj.output_scale",
        "model.layers.0.self_attn.k_proj.k_bias",
    ],
    "the embedding, which is the head too": ["lm_head.weight", "model.lm_head.weight", "embed_out.weight"],
    "layers for more tokens, which a draft head reads": ["mtp.layers.0.mlp.up_proj.weight", "model.mtp_layers.0.norm"],
    "what ids of a smaller vocabulary stand for": ["d2t", "model.t2d"],
    "parts for images, sound and films": [
        "visual.blocks.0.attn.qkv.weight",
        "model.vision_tower.embeddings.patch_embedding.weight",
        "multi_modal_projector.linear_1.bias",
        "thinker.audio_tower.conv1.weight",
        "talker.model.norm.weight",
    ],
}
STRANGE = (
    "model.layers.0.self_attn.q_proj.lora_A.weight",
    "model.layers.0.self_attn.q_proj.weight_scale",
    "model.layers.0.self_attn.q_proj.bias",
    "model.layers.0.self_attn.k_bias",
    "model.layers.0.mlp.image_gate.weight",
    "model.layers.0.attn.bias_of_gate",
    "score.weight",
    "v_head.summary.weight",
    "lm_head.bias",
    "model.d2t.weight",
)


def test_each_reason_has_a_name_that_it_lets_pass() -> None:
    assert KNOWN.keys() == UNNEEDED.keys()


@pytest.mark.parametrize("name", [name for names in KNOWN.values() for name in names])
def test_what_a_text_model_does_without_passes(name: str) -> None:
    refuse_unused("model", [name], 1)


@pytest.mark.parametrize("name", STRANGE)
def test_any_other_tensor_is_refused_and_the_first_is_named(name: str) -> None:
    with pytest.raises(ModelError, match=f"tensors without a place in its model, {name} and 1 more"):
        refuse_unused("model", ["z.weight", "lm_head.weight", name], 1)


def test_layers_behind_those_of_the_model_draft_and_those_of_it_do_not() -> None:
    behind, within = "model.layers.4.eh_proj.weight", "model.layers.3.eh_proj.weight"
    refuse_unused("model", [behind], 4)
    with pytest.raises(ModelError, match=f"its model, {within}, so"):
        refuse_unused("model", [behind, within], 4)
