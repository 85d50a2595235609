"""Models out of GGUF files for the code that expects a directory of Hugging Face's."""

from __future__ import annotations

import functools
from typing import Any

import torch

from actors.engines.text.gguf_tokenizer import build_tokenizer, end_ids
from actors.engines.weights.gguf_models import GGUFCheckpoint
from actors.engines.weights.gguf_names import find_gguf
from actors.engines.weights.kept_config import PlainConfig
from actors.engines.weights.source import CPU, StoredSource
from actors.engines.weights.stored import StoredModel
from protocols.errors import ModelError

SAMPLING = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
}


@functools.lru_cache(maxsize=2)
def open_gguf(name: str) -> GGUFCheckpoint:
    """The checkpoint by its name; a target and a draft stay open. Raises ModelError."""
    return GGUFCheckpoint(find_gguf(name))


def gguf_config(name: str) -> PlainConfig:
    """What the metadata say, in the fields of a configuration of transformers, which it does not import. Raises
    ModelError."""
    checkpoint = open_gguf(name)
    ends = end_ids(checkpoint.file.metadata, name)
    return PlainConfig(checkpoint.config | {"eos_token_id": sorted(ends) or None, "_name_or_path": name})


def transformers_config(name: str) -> Any:
    """The same as transformers' own. Raises ModelError."""
    from transformers import CONFIG_MAPPING, AutoConfig

    known = {**open_gguf(name).config, "eos_token_id": gguf_config(name).eos_token_id}
    if isinstance(getattr(CONFIG_MAPPING[known["model_type"]], "head_dim", None), property):  # Falcon's own
        del known["head_dim"]
    try:
        config = AutoConfig.for_model(known.pop("model_type"), **known)
    except Exception as error:  # transformers' own checks raise anything
        reason = str(error).strip().splitlines()[:2] or [type(error).__name__]
        raise ModelError(
            f"the metadata of {name} make no configuration: {' '.join(reason)}; download it again"
        ) from None
    config._name_or_path = name
    config.dtype = getattr(torch, known["dtype"])
    return config


def gguf_tokenizer(name: str) -> Any:
    """transformers' fast tokenizer: the one beside the file, or the file's own. Raises ModelError."""
    own = find_gguf(name).with_name("tokenizer.json")
    if own.exists():
        from transformers import PreTrainedTokenizerFast

        if own.with_name("tokenizer_config.json").exists():
            return PreTrainedTokenizerFast.from_pretrained(str(own.parent))
        return PreTrainedTokenizerFast(tokenizer_file=str(own))
    return build_tokenizer(open_gguf(name).file.metadata, name)


def file_source(name: str, dtype: torch.dtype, device: torch.device = CPU, packed: bool = True) -> StoredSource:
    """The weights of a file, see :class:`StoredSource`. Raises ModelError."""
    checkpoint = open_gguf(name)
    return StoredSource(str(checkpoint.file.path), checkpoint.own(), dtype, device, packed, checkpoint.name_in_file)


def packed_model(name: str, config: Any, device: torch.device, dtype: torch.dtype, packed: bool = True) -> StoredModel:
    """A model for the fused decoder. Raises ModelError."""
    checkpoint = open_gguf(name)
    source = file_source(name, dtype, device, packed)
    return StoredModel(config, source, checkpoint.kinds, let_go=checkpoint.file.let_go)


def gguf_weights(name: str, device: torch.device, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The numbers of transformers' model. Raises ModelError."""
    checkpoint = open_gguf(name)
    found = {key: torch.from_numpy(checkpoint.side_by_side(key)).to(device, dtype) for key in checkpoint.own()}
    constants = {key: torch.tensor(value, device=device, dtype=dtype) for key, value in checkpoint.constants().items()}
    return found | constants


def gguf_generation(name: str) -> dict[str, float]:
    """The sampling that the file asks for, by the names of generation_config.json. Raises ModelError."""
    said = open_gguf(name).file.metadata
    found = {ours: said[key] for key, ours in SAMPLING.items() if isinstance(said.get(key), int | float)}
    return {ours: round(value, 6) for ours, value in found.items()}  # the file has 32 bits of it
