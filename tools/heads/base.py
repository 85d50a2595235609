"""A target, and what is kept of a head of it: the files that a package wrote, and what its own forward answers."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable, Collection
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

KEPT = Path(__file__).parents[2] / "tests" / "data" / "heads"
VOCABULARY, COVERED, HIDDEN, WINDOW, LAYERS = 64, 40, 32, 8, 3
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
Place = tuple[Tensor, Tensor]  # the tokens that a head names, and their logits

torch.set_num_threads(1)


def covered() -> Tensor:
    """The tokens of a reduced vocabulary."""
    noise = torch.Generator().manual_seed(7)
    return torch.randperm(VOCABULARY, generator=noise)[:COVERED].sort().values


def maps() -> dict[str, Tensor]:
    """The reduced vocabulary as checkpoints store it."""
    t2d = torch.zeros(VOCABULARY, dtype=torch.bool).index_fill_(0, covered(), True)
    return {"t2d": t2d, "d2t": covered() - torch.arange(COVERED)}


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

    model = LlamaForCausalLM(LlamaConfig(**SIZES, num_hidden_layers=LAYERS, bos_token_id=0, eos_token_id=1)).eval()
    scatter(model, 0)
    copy.deepcopy(model).half().save_pretrained(place)  # a copy: the rotations' frequencies stay in float32
    (place / "generation_config.json").unlink(missing_ok=True)
    return model


def drop_layers(file: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(file)
    save_file({name: weight for name, weight in weights.items() if "layers." not in name}, file)


def answers_of(places_of: Callable[..., list[Place]], target: Any) -> list[dict[str, Any]]:
    """Along the head's own greedy chain behind each text, and behind its second choice for the first place.

    ``places_of``: of the target's states (what enters each layer), a text and the tokens of the places before."""
    told = []
    for prompt in PROMPTS:
        with torch.no_grad():
            made = target(torch.tensor([prompt]), output_hidden_states=True)
        text, states = [*prompt, int(made.logits[0, -1].argmax())], made.hidden_states
        for first in (0, 1):
            path: list[int] = []
            places = []
            while len(path) < len(answered := places_of(states, text, path)):
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


def keep(
    package: str, names: Collection[str], make: Callable[[str], tuple[Any, Callable[..., list[Place]] | None]]
) -> None:
    """Write a package's heads, and say which answer otherwise than those that were kept.

    ``make``: a head, and what its forward answers; None: it is only kept, without its layers, to be refused."""
    KEPT.mkdir(parents=True, exist_ok=True)
    place = KEPT / f"{package}.json"
    before = json.loads(place.read_text()) if place.is_file() else {"heads": {}}
    target = write_target(KEPT / "target")
    told: dict[str, Any] = {}
    for name in names:
        shutil.rmtree(KEPT / name, ignore_errors=True)
        model, places_of = make(name)
        copy.deepcopy(model).half().save_pretrained(KEPT / name)
        (KEPT / name / "config.py").unlink(missing_ok=True)  # a copy of the package's source
        if places_of is None:
            drop_layers(KEPT / name / "model.safetensors")
            told[name] = []
            continue
        told[name] = answers_of(places_of, target)
        if name in before["heads"] and differ(told[name], before["heads"][name]):
            print(f"{name} answers otherwise than {package} {before[package]} did")
    packages = {one: version(one) for one in (package, "transformers", "torch")}
    place.write_text(json.dumps({**packages, "heads": told}) + "\n")
    print(f"{len(told)} heads: {packages}")
