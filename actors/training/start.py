"""The draft before it learns anything: cut from the target where it is as wide. If it is narrower, or the target has
recurrent layers, which cannot draft, it has the target's embedding alone."""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig

from actors.engines.decoder.configuration import described
from actors.engines.weights.draft_vocabulary import FIELD, model_class
from protocols.errors import ConfigError

HEAD = 64  # width of an attention head of a draft that is narrower than its target
_LAYER = re.compile(r"(?<=\.)(?:layers|h|blocks)\.(\d+)(?=\.)")


@dataclass(frozen=True, slots=True)
class DraftShape:
    width: int
    layers: int

    def __str__(self) -> str:
        return f"{self.width}x{self.layers}"

    @staticmethod
    def parse(text: str) -> DraftShape:
        found = re.fullmatch(r"(\d+)x(\d+)", text)
        if not found or not int(found[1]) or not int(found[2]):
            raise ConfigError(f"shape {text!r} is not a width and a number of layers; write auto, or such as 768x2")
        return DraftShape(int(found[1]), int(found[2]))


def chosen_layers(have: int, wanted: int) -> list[int]:
    """The target's layers that a draft begins with: the first, the last, and others evenly between them."""
    if wanted == 1:
        return [0]
    return [round(i * (have - 1) / (wanted - 1)) for i in range(wanted)]


def is_cut(target: Any, shape: DraftShape) -> bool:
    """Whether a draft of ``shape`` is cut from a target of this configuration."""
    text = target.get_text_config()
    if shape.width != text.hidden_size:
        return False
    spec = described(text)
    alike = len({(one.kv_heads, one.width) for one in spec.attentions}) == 1
    return alike and not (spec.recurrent or spec.inputs)


def draft_config(target: Any, shape: DraftShape) -> Any:
    """The draft's configuration. ConfigError for a shape that cannot be made of this target."""
    text = target.get_text_config()
    if is_cut(target, shape):
        if shape.layers > text.num_hidden_layers:
            raise ConfigError(f"shape {shape} has more layers than the target's {text.num_hidden_layers}; ask for less")
        config = copy.deepcopy(text)
        config.num_hidden_layers = shape.layers
        if getattr(config, "layer_types", None):
            config.layer_types = [config.layer_types[i] for i in chosen_layers(text.num_hidden_layers, shape.layers)]
        return config
    if shape.width > text.hidden_size or shape.width % HEAD:
        raise ConfigError(
            f"shape {shape} cannot be made: the width is the target's own, {text.hidden_size}, or a smaller multiple "
            f"of {HEAD}"
        )
    heads = shape.width // HEAD
    return LlamaConfig(
        vocab_size=text.vocab_size,
        hidden_size=shape.width,
        num_hidden_layers=shape.layers,
        intermediate_size=shape.width * 8 // 3 // 32 * 32,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=HEAD,
        tie_word_embeddings=True,
        max_position_embeddings=int(getattr(text, "max_position_embeddings", 4096)),
        bos_token_id=text.bos_token_id,
        eos_token_id=text.eos_token_id,
        pad_token_id=text.pad_token_id,
    )


def empty_draft(config: Any, head: int = 0) -> nn.Module:
    """A model with random weights, float32. ``head``: how many tokens it covers; 0: all."""
    model: nn.Module
    if head in (0, config.vocab_size):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    else:
        setattr(config, FIELD, head)
        model = model_class(config)._from_config(config, dtype=torch.float32)
    return model


def first_draft(target: nn.Module, shape: DraftShape) -> nn.Module:
    """A draft of ``shape`` in float32 with as much of the target as fits."""
    config: Any = target.config
    draft = empty_draft(draft_config(config, shape))
    if is_cut(config, shape):
        _cut(target, draft, chosen_layers(config.get_text_config().num_hidden_layers, shape.layers))
    else:
        _project(target, draft)
    return draft


def _cut(target: nn.Module, draft: nn.Module, layers: list[int]) -> None:
    source = target.state_dict()
    weights = draft.state_dict()
    for name in weights:
        theirs = _LAYER.sub(lambda found: _renumbered(found, layers), name, count=1)
        if theirs in source and source[theirs].shape == weights[name].shape:
            weights[name] = source[theirs].to("cpu", torch.float32, copy=True)
    draft.load_state_dict(weights)


def _renumbered(found: re.Match[str], layers: list[int]) -> str:
    return f"{found[0].rpartition('.')[0]}.{layers[int(found[1])]}"


def _project(target: nn.Module, draft: nn.Module) -> None:
    """The target's output embedding in its principal directions: what a narrower output layer keeps of its logits."""
    wide: torch.Tensor = target.get_output_embeddings().weight.detach()  # type: ignore[operator]
    wide = wide.to("cpu", torch.float32)
    narrow: torch.Tensor = draft.get_input_embeddings().weight  # type: ignore[operator]
    _, directions = torch.linalg.eigh(wide.T @ wide)  # ascending
    with torch.no_grad():
        rows = wide @ directions[:, -narrow.shape[1] :]
        narrow.copy_(rows * (narrow.std() / rows.std()))
