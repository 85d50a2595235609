"""Finds the tensor of a model's files that holds NaN or infinity."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from actors.engines.weights.gguf_loading import open_gguf
from actors.engines.weights.gguf_names import is_gguf
from actors.engines.weights.hub import located
from actors.engines.weights.tensor_files import TensorFiles, weight_files
from actors.engines.weights.unneeded import UNNEEDED
from protocols.errors import ModelError

WIDE = {1: torch.float32}  # by bytes of a number: float8 has no smallest one in torch
MASKS = re.compile(UNNEEDED["a causal mask"])  # these are infinite where nothing is seen


def check_undamaged(name: str, packed: bool = True) -> None:
    """Raise ModelError, which names tensor and file, if a tensor of a model holds NaN or infinity.

    Tensors are read at the memory's speed; ``packed``: the blocks of GGUF files too, seconds for a billion weights."""
    for file, tensor, values in _floats(name, packed):
        if not _is_finite(values):
            raise ModelError(
                f"{tensor} in {file} holds NaN or infinity: the model is damaged; download it again, or choose another"
            )


def _is_finite(values: Tensor) -> bool:
    if not values.numel():
        return True
    least, most = torch.aminmax(values.to(WIDE.get(values.element_size(), values.dtype)))  # NaN where there is one
    return bool(least.isfinite() and most.isfinite())


def _floats(name: str, packed: bool) -> Iterator[tuple[Path, str, Tensor]]:
    """File, name and numbers of each tensor that has numbers with a point."""
    if is_gguf(name):
        file = open_gguf(name).file
        for tensor, stored in file.tensors.items():
            if packed or stored.kind.name in ("F32", "F16", "BF16"):
                yield file.path, tensor, torch.from_numpy(stored.values())
        return
    directory = Path(located(name))
    for path in weight_files(directory) or sorted(directory.glob("*.safetensors")):
        for tensor, values in TensorFiles([path]).items():
            if _counts(tensor, values):
                yield path, tensor, values
    for path in sorted(directory.glob("*.bin")):
        for tensor, values in torch.load(path, map_location="cpu", weights_only=True, mmap=True).items():
            if isinstance(values, Tensor) and _counts(tensor, values):
                yield path, tensor, values


def _counts(name: str, values: Tensor) -> bool:
    return values.is_floating_point() and MASKS.fullmatch(name) is None
