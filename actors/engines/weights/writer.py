"""Write a checkpoint shard by shard, so that memory holds one shard at a time."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors.torch import save_file
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Planned:
    """A tensor that is made when its turn comes, then converted to ``dtype``."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    make: Callable[[], Tensor]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def write_checkpoint(
    directory: Path,
    plan: Sequence[Planned],
    max_shard_bytes: int,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Files named as transformers names them: one, or shards of at most ``max_shard_bytes`` with an index.

    ``progress`` is called with (bytes made, bytes in all) after each tensor.
    """
    planned = {tensor.name: tensor for tensor in plan}
    # tensors without memory: only their sizes count for the cut
    sizes = {tensor.name: torch.empty(tensor.shape, dtype=tensor.dtype, device="meta") for tensor in plan}
    split = split_torch_state_dict_into_shards(sizes, max_shard_size=max_shard_bytes)
    total = sum(tensor.nbytes for tensor in plan)
    done = 0
    for file, names in split.filename_to_tensors.items():
        shard: dict[str, Tensor] = {}
        for name in names:
            tensor = planned[name]
            shard[name] = tensor.make().to(tensor.dtype).contiguous()
            assert tuple(shard[name].shape) == tensor.shape, name
            done += tensor.nbytes
            if progress is not None:
                progress(done, total)
        save_file(shard, directory / file, metadata={"format": "pt"})
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=1, sort_keys=True) + "\n")
