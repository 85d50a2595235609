"""What a GPU gives a kernel."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

WIDE = (9, 10)  # major capabilities with such tensor cores: Hopper, and data centres' Blackwell


@dataclass(frozen=True, slots=True)
class Gpu:
    shared: int  # bytes of shared memory of a multiprocessor
    processors: int  # streaming multiprocessors
    wide: bool = False  # four warps give tensor cores one product together, which run while these go on


def gpu_of(device: torch.device) -> Gpu:
    index = torch.cuda.current_device() if device.index is None else device.index
    found = triton.runtime.driver.active.utils.get_device_properties(index)
    wide = torch.cuda.get_device_capability(index)[0] in WIDE
    return Gpu(int(found["max_shared_mem"]), int(found["multiprocessor_count"]), wide)
