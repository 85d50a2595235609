"""Write a safetensors checkpoint tensor by tensor, so that memory holds one of them at a time.

The format is a length, a JSON header with every tensor's place, then the bytes; the places follow from the shapes, so
the header can be written before any tensor is made.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}


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

    ``progress`` is called with (bytes written, bytes in all) after each tensor.
    """
    shards: list[list[Planned]] = [[]]
    for tensor in plan:
        if shards[-1] and sum(t.nbytes for t in shards[-1]) + tensor.nbytes > max_shard_bytes:
            shards.append([])
        shards[-1].append(tensor)
    total = sum(tensor.nbytes for tensor in plan)
    written = 0
    names = (
        [f"model-{n:05d}-of-{len(shards):05d}.safetensors" for n in range(1, len(shards) + 1)]
        if len(shards) > 1
        else ["model.safetensors"]
    )
    for name, shard in zip(names, shards, strict=True):
        with (directory / name).open("wb") as file:
            file.write(_header(shard))
            for tensor in shard:
                file.write(_bytes_of(tensor).data)
                written += tensor.nbytes
                if progress is not None:
                    progress(written, total)
    if len(shards) > 1:
        places = {tensor.name: name for name, shard in zip(names, shards, strict=True) for tensor in shard}
        index = {"metadata": {"total_size": total}, "weight_map": places}
        (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=1, sort_keys=True) + "\n")


def _header(shard: Sequence[Planned]) -> bytes:
    places: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for tensor in shard:
        end = at + tensor.nbytes
        places[tensor.name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(places, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the data begins at a multiple of eight
    return struct.pack("<Q", len(text)) + text


def _bytes_of(tensor: Planned) -> npt.NDArray[np.uint8]:
    made = tensor.make().to(tensor.dtype).contiguous()
    assert tuple(made.shape) == tensor.shape, tensor.name
    raw: npt.NDArray[np.uint8] = made.view(torch.uint8).reshape(-1).numpy()
    return raw
