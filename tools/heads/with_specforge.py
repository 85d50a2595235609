"""Make the heads of tests/data/heads that SpecForge writes, with what its own training forwards answer.

    python -m venv /tmp/v && /tmp/v/bin/pip install specforge
    /tmp/v/bin/python tools/heads/with_specforge.py

It says which heads answer otherwise than those that are kept. Of its dependencies torch, transformers, numpy and yaml
are enough.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from base import BLOCK, COVERED, HIDDEN, KEPT, LAYERS, MASK, SIZES, VOCABULARY, WINDOW, Place, keep, maps, scatter
from specforge.algorithms.common import dflash_family_model
from specforge.algorithms.peagle import model as peagle
from specforge.modeling.auto import AutoDraftModel
from specforge.modeling.draft.peagle import PEagleDraftModel
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

STEPS = 3
TAPS = [1, 0, 1]  # layers that states leave; of the last one transformers gives the normed state
YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "rope_theta": 5000.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 0.5,
}  # it needs each of them
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
    "rope_theta": 5000.0,
}
MROPE = {"rope_type": "mrope", "rope_theta": 5000.0, "mrope_section": [2, 3, 3]}
SLIDING = {
    "num_hidden_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": WINDOW,
    "use_sliding_window": True,
}
EAGLE, WHOLE = "LlamaForCausalLMEagle3", {"draft_vocab_size": VOCABULARY}
TAPPED = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": TAPS}}
DOMINO = {"projector_type": "domino", "emb_dim": 8, "gru_hidden_dim": 8}
DSPARK = {"projector_type": "dspark", "markov_rank": 8, "markov_head_type": "vanilla"}
# name: the architecture, keys of its config, keys of its dflash_config
HEADS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "specforge-eagle3": (EAGLE, TAPPED, {}),
    "specforge-eagle3-fc-norm": (EAGLE, {**TAPPED, **WHOLE, "fc_norm": True, "norm_output": False}, {}),
    "specforge-eagle3-llama3": (EAGLE, {**TAPPED, "rope_parameters": LLAMA3}, {}),
    "specforge-eagle3-yarn": (EAGLE, {**TAPPED, "rope_parameters": YARN}, {}),
    "specforge-eagle3-mrope": (EAGLE, {**TAPPED, "rope_parameters": MROPE}, {}),
    "specforge-eagle3-sections": (EAGLE, {**TAPPED, "rope_parameters": MROPE | {"rope_type": "default"}}, {}),
    "specforge-eagle3-linear": (
        EAGLE,
        {**TAPPED, "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5000.0}},
        {},
    ),
    "specforge-peagle": ("PEagleDraftModel", {**TAPPED, "num_hidden_layers": 2, "mask_token_id": MASK}, {}),
    "specforge-peagle-normed": (
        "PEagleDraftModel",
        {**TAPPED, "num_hidden_layers": 2, "mask_token_id": MASK, "norm_before_residual": True},
        {},
    ),
    "specforge-dflash": ("DFlashDraftModel", {}, {}),
    "specforge-dflash-sliding": ("DFlashDraftModel", SLIDING, {}),
    "specforge-dspark": ("DSparkDraftModel", {}, DSPARK),
    "specforge-dspark-sliding": ("DSparkDraftModel", SLIDING, {**DSPARK, "enable_confidence_head": True}),
    "specforge-dspark-gated": ("DSparkDraftModel", {}, {**DSPARK, "markov_head_type": "gated"}),
    "specforge-dspark-rnn": ("DSparkDraftModel", {}, {**DSPARK, "markov_head_type": "rnn"}),
    "specforge-domino": ("DominoDraftModel", {}, DOMINO),
}
REFUSED = ("specforge-dspark-gated", "specforge-dspark-rnn", "specforge-domino")


def make(name: str) -> tuple[Any, Callable[..., list[Place]] | None]:
    architecture, more, own = HEADS[name]
    block = architecture[0] == "D"
    blocks = {"block_size": BLOCK, "num_target_layers": LAYERS}
    config = (Qwen3Config if block else LlamaConfig)(
        **{
            **SIZES,
            "architectures": [architecture],
            "num_hidden_layers": 1,
            "draft_vocab_size": COVERED,
            **(blocks if block else {}),
            **more,
        }
    )
    if block:
        config.dflash_config = {"mask_token_id": MASK, "target_layer_ids": TAPS[:2], **own}
        config._attn_implementation = "eager"
    model = AutoDraftModel.from_config(config).eval()
    target = AutoModelForCausalLM.from_pretrained(KEPT / "target", dtype=torch.float32)
    scatter(model, len(name))
    if not block:
        model.embed_tokens.weight.data.copy_(target.model.embed_tokens.weight)
        if config.draft_vocab_size == COVERED:
            for key, one in maps().items():
                getattr(model, key).copy_(one)
    if name in REFUSED:
        return model, None
    answers = {EAGLE: chained, "PEagleDraftModel": parallel}.get(architecture, partial(blocked, target))
    return model, partial(answers, model)


def named_by(model: Any) -> Tensor:
    return torch.arange(len(model.d2t)) + model.d2t


def rows_of(states: list[Tensor], text: list[int], path: list[int]) -> tuple[Tensor, Tensor, int]:
    """Tokens, the states before them, and the row of the text's last token."""
    row, root = [*text[1:], *path], len(text) - 2
    tapped = torch.cat([states[layer + 1][0] for layer in TAPS], 1)
    tokens = torch.tensor([[*row, *[0] * (2 * BLOCK)]])
    given = torch.zeros(1, tokens.shape[1], tapped.shape[1])
    given[0, : root + 1] = tapped[: root + 1]
    return tokens, given, root


def chained(model: Any, states: list[Tensor], text: list[int], path: list[int]) -> list[Place]:
    """Its steps of training: each reads the tokens one place on, and the states of the step before."""
    tokens, given, root = rows_of(states, text, path)
    with torch.no_grad():
        hidden, cached, made = model.project_hidden_states(given), [[], []], []
        count = tokens.shape[1]
        mask = model.prepare_decoder_attention_mask(
            torch.ones(1, count, dtype=torch.bool), hidden, 1, count, past_key_values_length=0
        )
        for step in range(STEPS):
            shifted = torch.nn.functional.pad(tokens[:, step:], (0, step))
            embedded = model.embed_input_ids(shifted)
            positions = torch.arange(count)[None]
            if (model.config.rope_parameters or {}).get("rope_type") == "mrope":
                positions = positions.expand(3, 1, -1)  # in a text each section has the same position
            hidden = model.backbone(embedded, hidden, cached, mask, positions)
            made.append(model.compute_logits(hidden)[0, root])
    return [(named_by(model), one) for one in made]


def parallel(model: PEagleDraftModel, states: list[Tensor], text: list[int], path: list[int]) -> list[Place]:
    tokens, given, root = rows_of(states, text, [])
    found: list[Tensor] = []

    def chain(**_: Any) -> tuple[Tensor, Tensor]:
        """Every token, and behind the root the places that a drafting engine asks for."""
        rows = torch.cat([torch.arange(root + 1), torch.full((BLOCK - 1,), root)])
        return rows, torch.cat([torch.zeros(root + 1, dtype=torch.long), torch.arange(1, BLOCK)])

    hook = model.lm_head.register_forward_hook(lambda _, given, made: found.append(made))
    plain = {"kernel_options": None}
    with (
        patch.object(peagle, "generate_cod_sample_indices", chain),
        patch.object(peagle, "compute_peagle_metrics", lambda **_: (None, {})),
        patch(
            "specforge.modeling.draft.peagle.compile_friendly_flex_attention",
            lambda **more: flex_attention(**{**more, **plain}),
        ),
        torch.no_grad(),
    ):
        ones = torch.ones_like(tokens)
        peagle.OnlinePEagleModel(model, MASK, BLOCK)(tokens, ones, given, ones, given)
    hook.remove()
    return [(named_by(model), one) for one in found[0][0, root:]]


def blocked(target: Any, model: Any, states: list[Tensor], text: list[int], path: list[int]) -> list[Place]:
    root = len(text) - 1
    tokens = torch.tensor([[*text, *[0] * BLOCK]])
    tapped = torch.cat([states[layer + 1][0] for layer in TAPS[:2]], 1)
    given = torch.zeros(1, tokens.shape[1], tapped.shape[1])
    given[0, :root] = tapped[:root]
    training = dflash_family_model.OnlineDFlashModel(
        model, target.lm_head, target.model.embed_tokens, MASK, BLOCK, attention_backend="eager"
    )
    anchor = torch.tensor([[root]]), torch.ones(1, 1, dtype=torch.bool)
    with patch.object(training, "_sample_anchor_positions", lambda *_: anchor), torch.no_grad():
        *_, hidden = training._forward_draft_blocks(tokens, given, torch.ones_like(tokens))
        hidden = hidden.reshape(1, 1, BLOCK, HIDDEN)
        before = torch.tensor([text[-1], *path, *[0] * BLOCK])[None, None, :BLOCK]
        logits = model.apply_logits_head(target.lm_head(hidden), prev_token_ids=before, hidden_states=hidden)
    first = 0 if hasattr(model, "markov_head") else 1  # DSpark's rows give the token behind their place
    return [(torch.arange(VOCABULARY), one) for one in logits[0, 0, first:]]


if __name__ == "__main__":
    keep("specforge", HEADS, make)
