"""Make tests/data/heads anew: draft heads that speculators writes, with what its own forward answers.

    python -m venv /tmp/v && /tmp/v/bin/pip install speculators
    /tmp/v/bin/python tools/heads/with_speculators.py

It says which heads answer otherwise than those that are kept. The weights are random; ``save_pretrained`` of the
package writes them, and the package's forward answers for each token of the head's own greedy chain.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any

import torch
from base import BLOCK, COVERED, HIDDEN, KEPT, MASK, SIZES, VOCABULARY, WINDOW, Place, keep, maps, scatter
from torch import Tensor

TARGET = KEPT / "target"
SLIDING = {"sliding_window": WINDOW, "use_sliding_window": True}


def layers(*kinds: str) -> dict[str, Any]:
    """As `speculators train` shapes a drafter's layers."""
    sliding = SLIDING if "sliding_attention" in kinds else {}
    return {"num_hidden_layers": len(kinds), "layer_types": list(kinds), **sliding}


FULL, NEAR = "full_attention", "sliding_attention"
EAGLE = {"ttt_steps": 3, "norm_before_residual": False, "draft_vocab_size": COVERED, "target_layer_ids": [0, 2, 1]}
BLOCKS = {"block_size": BLOCK, "mask_token_id": MASK, "draft_vocab_size": VOCABULARY, "target_layer_ids": [1, 2]}
MARKOV = {"markov_rank": 8, "draft_vocab_size": COVERED}
SELECTOR = {"conv_group_size": 8, "selector_rank": 8, "selector_top_k": 12}
# name: the kind, the family of its layers, their kinds, arguments of `from_training_args`
HEADS: dict[str, tuple[str, str, tuple[str, ...], dict[str, Any]]] = {
    "eagle3": ("eagle3", "llama", (FULL,), EAGLE),
    "eagle3-sliding": ("eagle3", "qwen3", (NEAR, FULL), {**EAGLE, "norm_output": True, "norm_before_residual": True}),
    "eagle3-fc-norm": ("eagle3", "llama", (NEAR,), {**EAGLE, "fc_norm": True, "draft_vocab_size": VOCABULARY}),
    "eagle3-norm-before-fc": ("eagle3", "qwen3", (FULL,), {**EAGLE, "norm_before_fc": True}),
    "peagle": ("peagle", "llama", (FULL, NEAR), {**EAGLE, "num_depths": BLOCK, "mask_token_id": MASK}),
    "dflash-sliding": ("dflash", "qwen3", (NEAR, FULL), {**BLOCKS, "draft_vocab_size": COVERED}),
    "dflash-sliding-both-ways": ("dflash", "qwen3", (NEAR,), {**BLOCKS, "sliding_window_non_causal": True}),
    "dflash2": ("dflash2", "qwen3", (NEAR, FULL), {**BLOCKS, **SELECTOR}),
    "dspark": ("dspark", "qwen3", (NEAR,), {**BLOCKS, **MARKOV}),
    "dspark-fills-in": ("dspark", "qwen3", (FULL,), {**BLOCKS, **MARKOV, "sample_from_anchor": False}),
    # not computed by ours: what is refused is kept, without the layers
    "dspark-gated": ("dspark", "qwen3", (FULL,), {**BLOCKS, **MARKOV, "markov_head_type": "gated"}),
    "dspark-rnn": ("dspark", "qwen3", (FULL,), {**BLOCKS, **MARKOV, "markov_head_type": "rnn"}),
    "xpress": ("xpress", "qwen3", (FULL,), {**BLOCKS, "xpress_rank": 4}),
    "mtp": ("mtp", "qwen3", (FULL,), {}),
}
REFUSED = ("dspark-gated", "dspark-rnn", "xpress", "mtp")
CLASSES = {"eagle3": "Eagle3", "peagle": "PEagle", "dflash": "DFlash", "dflash2": "DFlash2", "dspark": "DSpark"} | {
    "xpress": "XPress",
    "mtp": "MTP",
}


def make(name: str) -> tuple[Any, Callable[..., list[Place]] | None]:
    from transformers import LlamaConfig, Qwen3Config

    kind, family, kinds, options = HEADS[name]
    shape = (LlamaConfig if family == "llama" else Qwen3Config)(**SIZES, **layers(*kinds))
    made = getattr(import_module("speculators"), f"{CLASSES[kind]}DraftModel")
    reduced = maps() if options.get("draft_vocab_size") == COVERED else {}
    if kind == "mtp":
        configs = import_module("speculators.config")
        proposal = import_module("speculators.proposals.greedy").GreedyTokenProposalConfig(speculative_tokens=3)
        config = made.config_class(
            transformer_layer_config=shape,
            speculators_config=configs.SpeculatorsConfig(
                algorithm="mtp",
                proposal_methods=[proposal],
                default_proposal_method="greedy",
                verifier=configs.VerifierConfig.from_pretrained(str(TARGET)),
            ),
        )
        model = made(config)
    else:
        model = made.from_training_args(
            shape, **reduced, verifier_name_or_path=str(TARGET), draft_attn_impl="eager", **options
        )
    shared = ("embed_tokens", "verifier_") if reduced else ("embed_tokens", "verifier_", "lm_head")
    scatter(model, len(name), lambda key: not key.startswith(shared))
    model.config.speculators_config.verifier.name_or_path = "tiny/target"
    return model.eval(), None if name in REFUSED else partial(places_of, model, kind)


@contextmanager
def heard(model: Any, root: int):
    """What the forward makes: the states behind the logits and the logits, of each call; with a bias, the last."""
    found: list[tuple[Tensor, Tensor]] = []
    hook = model.lm_head.register_forward_hook(lambda _, given, made: found.append((given[0], made)))
    module = import_module(type(model).__module__)
    old = {
        name: getattr(module, name)
        for name in ("compute_metrics", "generate_cod_sample_indices")
        if name in dir(module)
    }

    def hear(*given: Any, **named: Any) -> tuple[Tensor, dict[str, Any]]:
        if given and isinstance(given[0], Tensor):
            found.append((found[-1][0], given[0]))
        return torch.zeros(()), {}

    def chain(seq_length: int, num_depths: int, **_: Any) -> tuple[Tensor, Tensor]:
        """Every token, and behind the root the places that a drafting engine asks for."""
        places = torch.arange(num_depths)
        first = torch.arange(root + 1)
        return (
            torch.cat([first, torch.full((num_depths - 1,), root)]),
            torch.cat([torch.zeros_like(first), places[1:]]),
        )

    for name, instead in (("compute_metrics", hear), ("generate_cod_sample_indices", chain)):
        if name in old and type(model).__name__ != "Eagle3DraftModel":
            setattr(module, name, instead)
    try:
        yield found
    finally:
        hook.remove()
        for name, before in old.items():
            setattr(module, name, before)


def places_of(model: Any, kind: str, states: list[Tensor], text: list[int], path: list[int]) -> list[Place]:
    """By place behind the text: the tokens that the head names and their logits, by the package's forward.

    ``states``: of the target, what enters each layer. ``path``: tokens of the places before."""
    ids = model.config.eagle_aux_hidden_state_layer_ids if "eagle" in kind else model.config.aux_hidden_state_layer_ids
    tapped = torch.cat([states[layer][0] for layer in ids], 1)
    shifted = "eagle" in kind  # a row is a token and the state before it
    row = [*(text[1:] if shifted else text), *path]
    root, rows = len(text) - (2 if shifted else 1), len(row) + 2 * BLOCK
    tokens = torch.tensor([[*row, *[0] * (rows - len(row))]])
    given = torch.zeros(1, rows, tapped.shape[1])
    given[0, : len(text) - 1] = tapped[: len(text) - 1]
    more: dict[str, Any] = {"document_ids": torch.zeros(1, rows, dtype=torch.long)}
    chosen = torch.zeros(1, rows)
    chosen[0, root] = 1
    if kind != "eagle3":
        more |= {"loss_mask": chosen, "verifier_last_hidden_states": torch.zeros(1, rows, HIDDEN), "max_anchors": 1}
    if kind == "peagle":
        more |= {"num_depths": BLOCK}
    if kind == "eagle3":
        more |= {"ttt_steps": EAGLE["ttt_steps"]}
    with heard(model, root) as found, torch.no_grad():
        model(given, tokens, **more)
    if kind == "eagle3":
        made = [logits[0, root] for _, logits in found]
    elif kind == "peagle":
        made = [*found[0][1][0, root:]]
    else:
        made = [*found[-1][1].reshape(-1, found[-1][1].shape[-1])[:BLOCK]]
    named = torch.arange(made[0].shape[-1])
    named = named if getattr(model, "d2t", None) is None else named + model.d2t
    skipped = 0 if shifted or model.config.sample_from_anchor else 1
    answers = [(named, logits) for logits in made[skipped:]]
    if kind == "dflash2":
        before = [text[-1], *path, *[0] * BLOCK]
        hidden, logits = found[0][0].reshape(-1, HIDDEN)[1:], found[0][1].reshape(-1, VOCABULARY)[1:]
        count = min(len(logits), len(before))
        ids, scores = model.candidate_selector.select(logits[:count], hidden[:count], torch.tensor(before[:count]))
        answers = [*zip(ids, scores, strict=True)]
    return answers


if __name__ == "__main__":
    keep("speculators", HEADS, make)
