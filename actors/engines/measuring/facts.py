"""The facts of a machine and a model that `duoactor doctor` reports: devices, and bytes."""

from __future__ import annotations

import torch

from actors.engines.cache.memory import available_bytes, gigabytes
from actors.engines.cache.pool import KVShape
from actors.engines.weights.dtypes import DTYPES
from actors.engines.weights.loading import load_config
from actors.models import ModelInfo

INT8_BYTES = 1


def devices() -> tuple[str, ...]:
    """The accelerators that torch sees, with their memory."""
    return tuple(
        f"cuda:{index} {torch.cuda.get_device_name(index)}, {gigabytes(torch.cuda.mem_get_info(index)[0])} free"
        for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
    )


def host_memory_free() -> int:
    """Bytes of the host's memory that this process may still take."""
    return available_bytes(torch.device("cpu"))


def weights_bytes(info: ModelInfo) -> int:
    size = DTYPES[info.dtype].itemsize if info.dtype in DTYPES else INT8_BYTES
    return info.parameters * size


def token_bytes(name: str, dtype: torch.dtype) -> int:
    """Bytes of one token's keys and values in a dtype."""
    shape = KVShape.of(load_config(name))
    return 0 if shape is None else shape.slot_bytes(dtype)
