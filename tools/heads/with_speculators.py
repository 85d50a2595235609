"""Make tests/data/heads anew: draft heads that speculators writes, with what its own forward answers.

    python -m venv /tmp/v && /tmp/v/bin/pip install speculators
    /tmp/v/bin/python tools/heads/with_speculators.py

It says which heads answer otherwise than those that are kept. The weights are random; ``save_pretrained`` of the
package writes them, and the package's forward answers for each token of the head's own greedy chain.
"""

from __future__ import annotations

import copy
import json
import shutil
import sys
from collections.abc import Callable
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

KEPT = Path(__file__).parents[2] / "tests" / "data" / "heads"
VOCABULARY, COVERED, HIDDEN, WINDOW = 64, 40, 32, 8
BLOCK, MASK = 4, 5  # rows of a block, and the token of its masks
PROMPTS = ([7, 3, 50, 11, 60], [(13 * place + 5) % VOCABULARY for place in range(23)])  # the second leaves the window
NAMED = 5  # candidates of each place
TOLERANCE = 2e-5
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": 16,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0},
}
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


def scatter(model: torch.nn.Module, seed: int, own: Callable[[str], bool] = lambda name: True) -> None:
    """Fill parameters with numbers that float16 has, large enough that layers and tokens differ."""
    noise = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if own(name):
                made = torch.randn(parameter.shape, generator=noise)
                spread = 0.5 if "embed" in name or "lm_head" in name else 1.2 / parameter.shape[-1] ** 0.5
                made = 1 + 0.3 * made if parameter.ndim == 1 and "norm" in name else spread * made
                parameter.copy_(made.half())


def write_target(place: Path) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(LlamaConfig(**SIZES, num_hidden_layers=3, bos_token_id=0, eos_token_id=1)).eval()
    scatter(model, 0)
    copy.deepcopy(model).half().save_pretrained(place)  # a copy: the rotations' frequencies stay in float32
    (place / "generation_config.json").unlink(missing_ok=True)
    return model


def make(name: str, target: Path) -> Any:
    from transformers import LlamaConfig, Qwen3Config

    kind, family, kinds, options = HEADS[name]
    shape = (LlamaConfig if family == "llama" else Qwen3Config)(**SIZES, **layers(*kinds))
    made = getattr(import_module("speculators"), f"{CLASSES[kind]}DraftModel")
    noise = torch.Generator().manual_seed(7)
    covered = torch.randperm(VOCABULARY, generator=noise)[:COVERED].sort().values
    t2d = torch.zeros(VOCABULARY, dtype=torch.bool).index_fill_(0, covered, True)
    maps = {"t2d": t2d, "d2t": covered - torch.arange(COVERED)} if options.get("draft_vocab_size") == COVERED else {}
    if kind == "mtp":
        configs = import_module("speculators.config")
        proposal = import_module("speculators.proposals.greedy").GreedyTokenProposalConfig(speculative_tokens=3)
        config = made.config_class(
            transformer_layer_config=shape,
            speculators_config=configs.SpeculatorsConfig(
                algorithm="mtp",
                proposal_methods=[proposal],
                default_proposal_method="greedy",
                verifier=configs.VerifierConfig.from_pretrained(str(target)),
            ),
        )
        model = made(config)
    else:
        model = made.from_training_args(
            shape, **maps, verifier_name_or_path=str(target), draft_attn_impl="eager", **options
        )
    reduced = bool(maps)
    shared = ("embed_tokens", "verifier_") if reduced else ("embed_tokens", "verifier_", "lm_head")
    scatter(model, len(name), lambda key: not key.startswith(shared))
    model.config.speculators_config.verifier.name_or_path = "tiny/target"
    return model.eval()


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

    def keep(*given: Any, **named: Any) -> tuple[Tensor, dict[str, Any]]:
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

    for name, instead in (("compute_metrics", keep), ("generate_cod_sample_indices", chain)):
        if name in old and type(model).__name__ != "Eagle3DraftModel":
            setattr(module, name, instead)
    try:
        yield found
    finally:
        hook.remove()
        for name, before in old.items():
            setattr(module, name, before)


def places_of(
    model: Any, kind: str, states: list[Tensor], text: list[int], path: list[int]
) -> list[tuple[Tensor, Tensor]]:
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


def drop_layers(file: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(file)
    save_file({name: weight for name, weight in weights.items() if "layers." not in name}, file)


def answers_of(model: Any, kind: str, target: Any) -> list[dict[str, Any]]:
    """Along the head's own greedy chain behind each text, and behind its second choice for the first place."""
    told = []
    for prompt in PROMPTS:
        with torch.no_grad():
            made = target(torch.tensor([prompt]), output_hidden_states=True)
        text, states = [*prompt, int(made.logits[0, -1].argmax())], made.hidden_states
        for first in (0, 1):
            path: list[int] = []
            places = []
            while len(path) < len(answered := places_of(model, kind, states, text, path)):
                named, logits = answered[len(path)]
                chances, order = logits.softmax(-1).topk(NAMED)
                best = named[order].tolist()
                places.append({"ids": best, "chances": [round(chance, 7) for chance in chances.tolist()]})
                path.append(best[0 if len(path) else first])
            told.append({"text": text, "path": path, "places": places})
    return told


def differ(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> bool:
    flat = [[[round(c / TOLERANCE) for c in place["chances"]] for place in told["places"]] for told in (*one, *other)]
    close = all(
        abs(a - b) <= 1
        for mine, theirs in zip(flat[: len(one)], flat[len(one) :], strict=False)
        for p, q in zip(mine, theirs, strict=False)
        for a, b in zip(p, q, strict=False)
    )
    return not close or [told["path"] for told in one] != [told["path"] for told in other]


def main() -> int:
    KEPT.mkdir(parents=True, exist_ok=True)
    place = KEPT / "answers.json"
    before = json.loads(place.read_text()) if place.is_file() else {"heads": {}}
    target = write_target(KEPT / "target")
    told: dict[str, Any] = {}
    for name in HEADS:
        shutil.rmtree(KEPT / name, ignore_errors=True)
        model = make(name, KEPT / "target")
        copy.deepcopy(model).half().save_pretrained(KEPT / name)
        (KEPT / name / "config.py").unlink(missing_ok=True)  # a copy of the package's source
        if name in REFUSED:
            drop_layers(KEPT / name / "model.safetensors")
            continue
        told[name] = answers_of(model, HEADS[name][0], target)
        if name in before["heads"] and differ(told[name], before["heads"][name]):
            print(f"{name} answers otherwise than {before['speculators']} did")
    packages = {package: version(package) for package in ("speculators", "transformers", "torch")}
    place.write_text(json.dumps({**packages, "heads": told}) + "\n")
    print(f"{len(told)} heads that answer, {len(REFUSED)} that are only kept: {packages}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
