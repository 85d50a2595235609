"""Models out of GGUF files for the code that expects a directory of Hugging Face's."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch

from actors.engines.text.gguf_tokenizer import build_tokenizer, end_ids
from actors.engines.weights.gguf_models import GGUFCheckpoint
from actors.engines.weights.gguf_names import find_gguf
from actors.engines.weights.grouped import Blocks, FileBlocks
from actors.engines.weights.source import WeightSource
from actors.engines.weights.stored import StoredModel


@functools.lru_cache(maxsize=2)
def open_gguf(name: str) -> GGUFCheckpoint:
    """The checkpoint by its name; a target and a draft stay open. Raises ModelError."""
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
    """transformers' fast tokenizer: the one beside the file, or the file's own. Raises ModelError."""
    beside = find_gguf(name).with_name("tokenizer.json")
    if beside.exists():
        from transformers import PreTrainedTokenizerFast

        if beside.with_name("tokenizer_config.json").exists():
            return PreTrainedTokenizerFast.from_pretrained(str(beside.parent))
        return PreTrainedTokenizerFast(tokenizer_file=str(beside))
    return build_tokenizer(open_gguf(name).file.metadata, name)


class GGUFSource(WeightSource):
    """Of a file, on a CPU."""

    device = torch.device("cpu")

    def __init__(self, checkpoint: GGUFCheckpoint, dtype: torch.dtype) -> None:
        """``dtype``: of weights that are neither read from their blocks nor vectors."""
        self.dtype, self._checkpoint = dtype, checkpoint
        self._names = frozenset(checkpoint.names())

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def take(self, name: str) -> torch.Tensor:
        values = torch.from_numpy(self._checkpoint.values(name))
        return values if values.ndim == 1 else values.to(self.dtype)

    def blocks(self, name: str) -> Blocks | None:
        stored = self._checkpoint.matrix(name) if name in self._names else None
        if stored is None or not FileBlocks.takes(stored[0]):
            return None
        return Blocks([(FileBlocks(stored[0]), stored[1])])

    def expert_blocks(self, name: str) -> list[Blocks] | None:
        parts = self._checkpoint.expert_matrices(name) if name in self._names else []
        if not parts or not all(FileBlocks.takes(matrix) for part in parts for matrix in part):
            return None
        return [Blocks([(FileBlocks(matrix), None) for matrix in part]) for part in parts]


def packed_model(name: str, config: Any, dtype: torch.dtype) -> StoredModel:
    """A model for the compiled decoder on a CPU. Raises ModelError."""
    checkpoint = open_gguf(name)
    size = sum(math.prod(stored.shape) for stored in checkpoint.file.tensors.values())
    return StoredModel(config, GGUFSource(checkpoint, dtype), size, checkpoint.kinds)


def gguf_weights(name: str, device: torch.device, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The numbers of transformers' model. Raises ModelError."""
    checkpoint = open_gguf(name)
    return {key: torch.from_numpy(checkpoint.side_by_side(key)).to(device, dtype) for key in checkpoint.names()}
