"""Finds a draft head and its kind, and builds it for a target: published apart, or in the target's own checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from actors.engines.cache.memory import DRAFT_SHARE, MAX_REQUESTS, PoolMemory, kv_slots
from actors.engines.drafts.draft import SCRATCH, Draft
from actors.engines.engine import Trunk
from actors.engines.heads.ahead import AheadDraft
from actors.engines.heads.apart import ends_of
from actors.engines.heads.assistant import Assistant, AssistantDraft
from actors.engines.heads.block import Dflash
from actors.engines.heads.cached import cached_head
from actors.engines.heads.draft import HeadDraft
from actors.engines.heads.eagle3 import Eagle3
from actors.engines.heads.engine import HeadEngine
from actors.engines.heads.head import Head, NotComputed
from actors.engines.heads.kinds import (
    DEEPSEEK,
    EAGLE3,
    GEMMA4,
    NEXT,
    UNREAD,
    configuration,
    kind_of,
    own_layer,
    unread_kind,
)
from actors.engines.heads.mtp import Mtp
from actors.engines.targets.states import States
from actors.engines.targets.target import Target
from actors.engines.weights.damage import Damaged, check_tensors, check_weights, tensors_in
from actors.engines.weights.faults import quantisation_of_head
from actors.engines.weights.gguf_loading import open_gguf
from actors.engines.weights.gguf_names import is_gguf
from actors.engines.weights.hub import located
from actors.engines.weights.loading import checkpoint_of, load_config
from actors.engines.weights.quantised import dequantised
from actors.models import ModelInfo
from actors.settings import AUTO_DRAFT, NO_DRAFT
from protocols.errors import ModelError

COPIES = ("embed_tokens.weight", "shared_head.head.weight")  # copies of the target's tensors in DeepSeek's checkpoints
MOST_STAGES = 8  # layers for more tokens that take turns
MEMORY_SHARE = 0.25  # share of what is free beside the target's pool

Tensors = Mapping[str, Tensor]


def tensors(name: str, wanted: Callable[[str], bool] = lambda name: True) -> dict[str, Tensor]:
    """The tensors of a checkpoint with wanted names, in safetensors or torch's format; numbers where quantised. Raises
    ModelError for one with NaN or infinity, and for files of torch's without any."""
    directory, found = Path(located(name)), dict[str, Tensor]()
    files, others = (sorted(directory.glob(pattern)) for pattern in ("*.safetensors", "*.bin"))
    for path in files or others:
        stored = tensors_in(path)
        own = {key: stored[key] for key in stored if wanted(key)}
        check_tensors(path, own.items())
        found |= own
    if others and not (files or found):
        raise NotComputed(f"{others[0]} holds no weights that can be read")
    scheme = quantisation_of_head(directory) if files else None
    return found if scheme is None else dict(dequantised(found, scheme))


def _own_head(name: str, trunk: Trunk) -> Head:
    place = str(checkpoint_of(name).place)
    convention = own_layer(place)
    assert convention is not None, "see `own_layer`"
    if is_gguf(name):
        return _out_of_file(name, load_config(name), trunk)
    prefixes = tuple(convention.prefix_of(stage, trunk.layers) for stage in range(MOST_STAGES))
    weights = tensors(name, lambda key: key.startswith(prefixes) and not key.endswith(COPIES))
    return Mtp(load_config(name), weights, trunk, convention)


def _out_of_file(name: str, config: Any, trunk: Trunk) -> Mtp:
    """``config``: the target's."""
    file = open_gguf(name)
    sizes = {"hidden_size": trunk.hidden, "num_hidden_layers": trunk.layers, "vocab_size": trunk.vocabulary}
    for what, size in sizes.items():
        if file.config[what] != size:
            raise ModelError(f"it is made for a {what} of {file.config[what]} and the target's is {size}")
    own = file.own(more=True)
    check_weights(file.file.path, own.values())
    weights = {key: torch.from_numpy(weight.values()) for key, weight in own.items()}
    last = f"model.layers.{trunk.layers}.{DEEPSEEK.last_norm}"
    if last not in weights:  # llama.cpp takes the target's then
        weights[last] = torch.from_numpy(file.own()["model.norm.weight"].values())
    return Mtp(config, weights, trunk, DEEPSEEK)


def _published(name: str, target: Target | None, target_name: str, trunk: Trunk) -> Head:
    config = configuration(str(checkpoint_of(name).place))
    kind = kind_of(config)
    try:
        if kind == UNREAD:
            raise NotComputed(f"it is a head of kind {unread_kind(config)}, which is not computed")
        if kind == NEXT:
            return _out_of_file(name, load_config(target_name), trunk)
        if kind == GEMMA4 and target is None:
            raise ModelError("it reads the target's own keys and values, so the verifier has to run it")
        weights = tensors(name)
        if target is not None and kind == GEMMA4:
            return Assistant(load_config(name), weights, trunk, target.engine, load_config(target_name))
        weights = _plain(weights)
        return Eagle3(config, weights, trunk) if kind == EAGLE3 else Dflash(config, weights, trunk)
    except NotComputed as error:
        raise ModelError(f"{name} cannot draft: {error}; choose another head of this target, or --draft auto") from None
    except Damaged:
        raise
    except ModelError as error:
        raise ModelError(
            f"{name} does not draft for target {Path(target_name).name}: {error}; choose the head that was published "
            "for this target, or --draft auto"
        ) from None
    except KeyError as error:
        raise ModelError(f"{name} has no {error.args[0]}, as a {kind} has; download it again") from None


def _plain(weights: Tensors) -> dict[str, Tensor]:
    """Without the prefixes that some exports have, SpecForge's of its first DSpark heads among them."""
    return {name.removeprefix("model.").removeprefix("logit_head."): tensor for name, tensor in weights.items()}


def named_head(name: str, target: str) -> tuple[str, str]:
    """The head that a name stands for, empty for the target's own, and what is said of it. Raises ModelError: none."""
    if name in ("", AUTO_DRAFT) and own_layer(str(checkpoint_of(target).place)) is not None:
        return "", "with the target's own layer for more tokens, which its checkpoint holds"
    if name == AUTO_DRAFT and (found := cached_head(target)):
        return found, f"with {found}, which is in the hub's cache"
    if name not in ("", AUTO_DRAFT, NO_DRAFT) and (kind := kind_of(configuration(name))):
        return name, f"with the {kind} {Path(name).name} beside the target, as --draft says"
    raise ModelError(f"{name or AUTO_DRAFT} is no head that drafts for {target}: name one by its directory or hub id")


def build_head(name: str, target: Target, target_name: str) -> HeadDraft:
    """The head in a directory or of a hub id; with an empty name the target's own. Raises ModelError."""
    head = head_for(name, target, target_name)
    target.taps.exchange(None, head.states)
    return head


def another_head(name: str, target: Target, target_name: str) -> HeadDraft:
    """:func:`head_for` a target that goes on meanwhile: a second team of OpenMP's would slow it down."""
    torch.set_num_threads(1)
    return head_for(name, target, target_name)


def head_for(name: str, target: Target, target_name: str) -> HeadDraft:
    """:func:`build_head`, which nobody gives states yet."""
    return _draft(name, target_name, target.engine.trunk(), target.info, partial(_slots, target), target)


def build_apart(name: str, target_name: str, kv_tokens: int, threads: int) -> HeadDraft:
    """The head for a process of its own, on a CPU: what it shares with the target is read of the target's checkpoint,
    and states are sent. Raises ModelError."""
    trunk, info = ends_of(target_name, threads)

    def slots(size: int) -> int:
        return kv_slots(kv_tokens, Draft.full_request(info.max_context), size, PoolMemory(trunk.device, DRAFT_SHARE))

    return _draft("" if name == AUTO_DRAFT else name, target_name, trunk, info, slots)


def _draft(
    name: str,
    target_name: str,
    trunk: Trunk,
    info: ModelInfo,
    slots: Callable[[int], int],
    target: Target | None = None,
) -> HeadDraft:
    """``slots``: of a pool, by the bytes of one. ``target``: in the same process, if it is."""
    head = _published(name, target, target_name, trunk) if name else _own_head(target_name, trunk)
    own = Path(name or target_name).name
    info = replace(info, model_id=own if name else f"{own} (its own layer for more tokens)")
    size = head.shape.slot_bytes(trunk.dtype) + head.stages * head.width * trunk.dtype.itemsize
    engine, states = HeadEngine(head, trunk, info, slots(max(size, 1))), States(head.taps)
    if isinstance(head, Assistant):
        assert target is not None
        return AssistantDraft(head, engine, target)
    draft = HeadDraft(engine, states) if head.block is None else AheadDraft(engine, states)
    draft.width = len(head.taps) * trunk.hidden
    return draft


def _slots(target: Target, size: int) -> int:
    """Slots of a head's pool, with ``size`` bytes a slot: as many as the target has, if there is room."""
    most = target.kv_slots + MAX_REQUESTS * SCRATCH
    place = PoolMemory(target.engine.device, MEMORY_SHARE)
    return min(most, kv_slots(0, Draft.full_request(target.info.max_context), size, place))
