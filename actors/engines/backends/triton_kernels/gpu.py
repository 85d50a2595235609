"""What a GPU gives a kernel, and how one begins before the kernel in front of it has ended.

Programmatic dependent launch (Hopper and later): a kernel's programs start while the last ones of the kernel before
still run, and wait for its results only where they need them. Between launches nothing is read otherwise, and a round
has some three hundred.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

HOPPER = 9  # compute capability


@dataclass(frozen=True, slots=True)
class Gpu:
    shared: int  # bytes of shared memory of a processor
    processors: int  # streaming multiprocessors
    overlaps: bool  # whether kernels may begin early

    @property
    def launch(self) -> dict[str, Any]:
        """Options of every launch."""
        return {"launch_pdl": True} if self.overlaps else {}


def gpu_of(device: torch.device) -> Gpu:
    index = torch.cuda.current_device() if device.index is None else device.index
    found = triton.runtime.driver.active.utils.get_device_properties(index)
    overlaps = torch.cuda.get_device_capability(index)[0] >= HOPPER
    return Gpu(int(found["max_shared_mem"]), int(found["multiprocessor_count"]), overlaps)


@triton.jit
def let_the_next_begin(OVERLAPS: tl.constexpr):
    if OVERLAPS:
        gdc_launch_dependents()


@triton.jit
def await_the_last(OVERLAPS: tl.constexpr):
    """What the kernels before have written is there from here on."""
    if OVERLAPS:
        gdc_wait()


@triton.jit
def ask_ahead(pointers):
    """Fetch the lines at the pointers into the L2 cache."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [pointers.to(tl.int64)], tl.int32, is_pure=False, pack=1
    )
