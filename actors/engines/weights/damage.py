"""Finds the tensor of a model's files that holds NaN or infinity."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from actors.engines.weights.gguf_models import FileWeight
from actors.engines.weights.quantised import OF_INPUTS
from actors.engines.weights.tensor_files import TensorFiles
from actors.engines.weights.unneeded import LAYERS, unneeded
from protocols.errors import ModelError

# Codes of 8 bits that are no number: a mask, what to turn round, and the least that is none
CODES = {
    torch.float8_e4m3fn: (0x7F, 0, 0x7F),
    torch.float8_e5m2: (0x7F, 0, 0x7C),
    torch.float8_e8m0fnu: (0xFF, 0, 0xFF),
    torch.float8_e4m3fnuz: (0xFF, 0x7F, 0xFF),
    torch.float8_e5m2fnuz: (0xFF, 0x7F, 0xFF),
}
WIDE = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
PIECE = 1 << 20  # bytes of codes at a time, which stay in a core's cache
NOT_READ = unneeded({"the embedding, which is the head too", LAYERS})


class Damaged(ModelError):
    """A tensor of a file holds NaN or infinity."""

    def __init__(self, tensor: str, file: Path) -> None:
        super().__init__(
            f"{tensor} in {file} holds NaN or infinity: the model is damaged; download it again, or choose another"
        )


def check_tensors(file: Path, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """:meth:`Checkpoint.check_undamaged` for tensors of a file, by their names."""
    for name, values in tensors:
        if NOT_READ.fullmatch(name) is None and not name.endswith(OF_INPUTS) and not _is_finite(values):
            raise Damaged(name, file)


def check_weights(file: Path, weights: Iterable[FileWeight]) -> None:
    """:meth:`Checkpoint.check_undamaged` for weights of a GGUF file, some tenths of a second for a billion of them."""
    for part in {part.name: part for weight in weights for part in weight.parts}.values():
        if not part.kind.is_finite(part.data):
            raise Damaged(part.name, file)


def _is_finite(values: Tensor) -> bool:
    if not values.numel():
        return True
    if values.dtype in CODES:
        mask, turned, least = CODES[values.dtype]
        codes = values.contiguous().view(torch.uint8).flatten()
        starts = range(0, len(codes), PIECE)
        return all(int((codes[start : start + PIECE] & mask ^ turned).max()) < least for start in starts)
    if values.dtype not in WIDE:  # whole numbers, or floats of 4 bits: all are numbers
        return True
    lowest, highest = torch.aminmax(values)  # NaN where there is one
    return bool(lowest.isfinite() and highest.isfinite())


def tensors_in(path: Path) -> Mapping[str, Tensor]:
    """The tensors of safetensors or of a file of torch's; none, where that holds something else or cannot be read:
    whoever loads it says so."""
    if path.suffix == ".safetensors":
        return TensorFiles([path])
    try:
        found: Any = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except Exception:
        return {}
    tensors = found.items() if isinstance(found, dict) else ()
    return {name: one for name, one in tensors if isinstance(name, str) and isinstance(one, Tensor)}
