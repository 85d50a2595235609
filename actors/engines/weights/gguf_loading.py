"""Models out of GGUF files for the code that expects a directory of Hugging Face's."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn

from actors.engines.text.gguf_tokenizer import build_tokenizer, end_ids
from actors.engines.weights.gguf_models import GGUFCheckpoint
from actors.engines.weights.gguf_names import find_gguf
from protocols.errors import ModelError


@functools.lru_cache(maxsize=2)
def open_gguf(name: str) -> GGUFCheckpoint:
    """The checkpoint of that name; a target and a draft stay open. Raises ModelError."""
    return GGUFCheckpoint(find_gguf(name))


def gguf_config(name: str) -> Any:
    """transformers' configuration. Raises ModelError."""
    from transformers import AutoConfig

    checkpoint = open_gguf(name)
    known = dict(checkpoint.config)
    ends = end_ids(checkpoint.file.metadata)
    config = AutoConfig.for_model(known.pop("model_type"), **known | {"eos_token_id": sorted(ends) or None})
    config.dtype = getattr(torch, known["dtype"])
    return config


def gguf_tokenizer(name: str) -> Any:
    """transformers' fast tokenizer. Raises ModelError."""
    return build_tokenizer(open_gguf(name).file.metadata, name)


def gguf_model(name: str, device: torch.device, dtype: torch.dtype) -> nn.Module:
    """transformers' model with the dequantised weights. Raises ModelError."""
    from transformers import AutoModelForCausalLM

    checkpoint, config = open_gguf(name), gguf_config(name)
    weights = {key: torch.from_numpy(checkpoint.values(key)).to(device, dtype) for key in checkpoint.names()}
    model, report = AutoModelForCausalLM._model_mapping[type(config)].from_pretrained(
        None, config=config, state_dict=weights, dtype=dtype, output_loading_info=True
    )
    lacking = sorted([*report["missing_keys"], *(str(entry[0]) for entry in report["mismatched_keys"])])
    if lacking:
        raise ModelError(
            f"{name} does not fit its own metadata: {len(lacking)} weights are missing or of another shape, "
            f"{lacking[0]} first; download it again"
        )
    model.requires_grad_(False)
    result: nn.Module = model.to(device).eval()
    return result
