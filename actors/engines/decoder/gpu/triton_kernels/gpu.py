"""What a GPU gives a kernel."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton


@dataclass(frozen=True, slots=True)
class Gpu:
    shared: int  # bytes of shared memory of a multiprocessor
    processors: int  # streaming multiprocessors


def gpu_of(device: torch.device) -> Gpu:
    index = torch.cuda.current_device() if device.index is None else device.index
    found = triton.runtime.driver.active.utils.get_device_properties(index)
    return Gpu(int(found["max_shared_mem"]), int(found["multiprocessor_count"]))
