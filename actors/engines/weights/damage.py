"""Finds the tensor of a model's files that holds NaN or infinity."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from actors.engines.weights.faults import NAMED, shards_of
from actors.engines.weights.gguf_loading import open_gguf
from actors.engines.weights.gguf_names import is_gguf
from actors.engines.weights.hub import located
from actors.engines.weights.quantised import OF_INPUTS
from actors.engines.weights.tensor_files import TensorFiles, weight_files
from actors.engines.weights.unneeded import unneeded
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
HEAD, LAYERS = "the embedding, which is the head too", "layers for more tokens, which a draft head reads"
NOT_READ = {False: unneeded({HEAD}), True: unneeded({HEAD, LAYERS})}  # by whether it is a draft head's


def check_undamaged(name: str, packed: bool = True, head: bool = False) -> None:
    """Raise ModelError, which names tensor and file, if a tensor of a model holds NaN or infinity, or for safetensors
    that cannot be read.

    The files that are loaded are read once more, all but tensors that nothing computes with. ``packed``: the blocks of
    GGUF files too, seconds for a billion weights. ``head``: it is a draft head's."""
    for file, tensor, values in _floats(name, packed, head):
        if not _is_finite(values):
            raise ModelError(
                f"{tensor} in {file} holds NaN or infinity: the model is damaged; download it again, or choose another"
            )


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


def _floats(name: str, packed: bool, head: bool) -> Iterator[tuple[Path, str, Tensor]]:
    """File, name and numbers of each tensor that is computed with."""
    if is_gguf(name):
        file = open_gguf(name).file
        for tensor, stored in file.tensors.items():
            if packed or stored.kind.name in ("F32", "F16", "BF16"):
                yield file.path, tensor, torch.from_numpy(stored.values())
        return
    for path in _files(Path(located(name)), head):
        tensors = TensorFiles([path]) if path.suffix == ".safetensors" else _of_torch(path)
        for tensor in tensors:
            if NOT_READ[head].fullmatch(tensor) is None and not tensor.endswith(OF_INPUTS):
                yield path, tensor, tensors[tensor]


def _files(directory: Path, head: bool) -> list[Path]:
    """The files that are loaded."""
    if head:
        return sorted(directory.glob("*.safetensors")) or sorted(directory.glob("*.bin"))
    if files := weight_files(directory):
        return files
    found = next((path for one in NAMED if (path := directory / one).is_file()), None)
    if found is None:
        return sorted(directory.glob("*.safetensors"))
    return shards_of(found) if found.suffix == ".json" else [found]


def _of_torch(path: Path) -> Mapping[str, Tensor]:
    """The tensors of a file of torch's; none, where it holds something else or cannot be read: whoever loads it says
    so."""
    try:
        found: Any = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except Exception:
        return {}
    tensors = found.items() if isinstance(found, dict) else ()
    return {name: one for name, one in tensors if isinstance(name, str) and isinstance(one, Tensor)}
