"""Published drafts of a target among the models in the hub's cache. Neither torch nor network: ``duoactor up`` asks
before it starts an actor."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from actors.engines.heads.kinds import GEMMA4, configuration, kind_of
from actors.engines.weights.hub import snapshot

LARGEST = 0.4  # share of the target's weights: a larger draft model takes too long a step to pay
WEIGHTS = ("*.safetensors", "*.bin")


def cached_models() -> Iterator[tuple[str, Path]]:
    """Hub ids and the directories of the snapshots that a load without network would take, if they hold weights."""
    from huggingface_hub.constants import HF_HUB_CACHE

    readable = os.path.isdir(HF_HUB_CACHE)  # not below the HOME of another user, where a glob raises
    for place in sorted(Path(HF_HUB_CACHE).glob("models--*")) if readable else ():
        name = place.name.removeprefix("models--").replace("--", "/", 1)
        if (found := snapshot(name)) is not None and _weights(found):
            yield name, found


def snapshot_of(name: str) -> Path:
    """The directory of a model: itself, or what the cache holds of a hub id; else a path to nothing."""
    return Path(name) if Path(name).exists() else dict(cached_models()).get(name, Path(name))


def cached_head(target: str) -> str:
    """The hub id of a published head for the target; empty: the cache holds none.

    A head that names the target goes first, then heads of its width, vocabulary and depth, by likeness of the names."""
    place = snapshot_of(target)
    about = configuration(str(place)) if place.is_dir() else {}
    own = about.get("text_config") or about
    found: list[tuple[bool, float, str]] = []
    for name, directory in cached_models() if own else ():
        config = configuration(str(directory))
        named = _verifier(config)
        if kind_of(config) and (named == _last(target) or (not named and _fits(config, own))):
            found.append((bool(named), SequenceMatcher(None, _last(name), _last(target)).ratio(), name))
    return max(found)[2] if found else ""


def cached_model(target: str) -> str:
    """The hub id of the smallest model with the target's very tokenizer; empty: the cache holds none that is much
    smaller."""
    place = snapshot_of(target)
    tokenizer, most = place / "tokenizer.json", LARGEST * _weights(place)
    if not tokenizer.is_file():
        return ""
    found = [
        (size, name)
        for name, directory in cached_models()
        if (size := _weights(directory)) <= most
        and _writes(name, configuration(str(directory)))
        and same_file(directory / "tokenizer.json", tokenizer)
    ]
    return min(found)[1] if found else ""


def same_file(one: Path, other: Path) -> bool:
    return one.is_file() and one.stat().st_size == other.stat().st_size and one.read_bytes() == other.read_bytes()


def _writes(name: str, config: Mapping[str, Any]) -> bool:
    """Whether it is a language model; models that embed or rank texts have its architecture too."""
    named = " ".join(config.get("architectures") or ())
    ranks = any(part in name.lower() for part in ("embed", "rerank", "reward"))
    return not kind_of(config) and "CausalLM" in named and not ranks


def _weights(directory: Path) -> int:
    """Their bytes; where there are safetensors, those alone are loaded."""
    for pattern in WEIGHTS:
        if size := sum(path.stat().st_size for path in directory.glob(pattern)):
            return size
    return 0


def _verifier(config: Mapping[str, Any]) -> str:
    """The target that a speculators head names, without its owner."""
    named = (config.get("speculators_config") or {}).get("verifier") or {}
    return _last(str(named.get("name_or_path") or ""))


def _last(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2].lower()


def _fits(config: Mapping[str, Any], own: Mapping[str, Any]) -> bool:
    layer = config.get("transformer_layer_config") or config.get("text_config") or config
    width = config.get("backbone_hidden_size") or config.get("target_hidden_size") or layer.get("hidden_size")
    if kind_of(config) == GEMMA4 and not str(own.get("model_type")).startswith("gemma4"):
        return False
    layers = config.get("num_target_layers") or own.get("num_hidden_layers")
    return (width, layer.get("vocab_size"), layers) == (
        own.get("hidden_size"),
        own.get("vocab_size"),
        own.get("num_hidden_layers"),
    )
