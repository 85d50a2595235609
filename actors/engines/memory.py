"""How large a KV pool is: by the memory that is there once the weights are loaded."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from protocols.errors import ConfigError, ModelError

MAX_REQUESTS = 32  # requests of full length beyond which a larger pool is not asked for: a round never holds as many
MIN_TOKENS = 1024  # a smaller pool holds no conversation
GPU_SHARE = 0.9  # of what is free; the rest is for activations (vLLM leaves as much)
# Of what is free on the host, which other processes need too. Pages are taken as they are first written, so an idle
# pool takes none of it.
HOST_SHARE = 0.5
STATE_SHARE = 0.5  # of the memory for KV pools, where a model's recurrent layers have states beside
UNKNOWN_HOST = 4 << 30  # bytes, where the system does not say what it has


def kv_slots(
    asked: int, full_request: int, slot_bytes: int, device: torch.device, share: float = 1.0, fixed: int = 0
) -> int:
    """How many slots a pool gets: what was asked for, or up to ``MAX_REQUESTS`` requests of full length.

    ``full_request``: slots that a request of the whole context takes. ``share``: of the memory meant for KV pools.
    ``fixed``: slots that no request gets.

    ConfigError or ModelError in one sentence if they do not fit.
    """
    free = available_bytes(device)
    if asked:
        if asked * slot_bytes > free:
            raise ConfigError(
                f"kv_tokens {asked:,} take {gigabytes(asked * slot_bytes)} and {gigabytes(free)} are free on {device}; "
                f"choose at most {free // slot_bytes:,}, or 0 for a pool that fits"
            )
        return asked
    part = share * (HOST_SHARE if device.type == "cpu" else GPU_SHARE)
    fitting = int(free * part) // slot_bytes
    if fitting < min(MIN_TOKENS, full_request):
        raise ModelError(
            f"{gigabytes(free)} are free on {device} once the model is loaded, which is too little for its KV cache "
            f"({gigabytes(slot_bytes * MIN_TOKENS)} for {MIN_TOKENS:,} tokens); choose a smaller model or another dtype"
        )
    return min(fitting, MAX_REQUESTS * full_request + fixed)


def state_room(state_bytes: int, device: torch.device) -> int:
    """How many states of recurrent layers there is room for beside a KV pool, which leaves them as much as it takes."""
    free = available_bytes(device) * (HOST_SHARE * STATE_SHARE if device.type == "cpu" else GPU_SHARE)
    return int(free) // max(1, state_bytes)


def gigabytes(size: float) -> str:
    return f"{size / 1e9:.3g} GB"


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """``torch.zeros``, which on a CPU takes memory only as it is written."""
    count = torch.Size(shape).numel()
    if device.type != "cpu" or count == 0:
        return torch.zeros(shape, dtype=dtype, device=device)
    pages = mmap.mmap(-1, count * dtype.itemsize)  # anonymous: zeros, and page-aligned as numpy's would not be
    return torch.frombuffer(pages, dtype=dtype).view(shape)


def available_bytes(device: torch.device, root: Path = Path("/")) -> int:
    """Bytes that could be taken on the device now: of a GPU its free memory, else of the host within its cgroups."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return max(0, min([_host_bytes(root), *_cgroup_bytes(root)]))


def _host_bytes(root: Path) -> int:
    try:
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    try:  # no Linux: half of what is built in
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (OSError, ValueError):
        return UNKNOWN_HOST


def _cgroup_bytes(root: Path) -> Iterator[int]:
    """What each memory limit over this process leaves, in either version of cgroups."""
    groups = {"", *_own_groups(root)}  # in a container its own group is the root of what it sees
    for group in groups:
        for mount, limit, usage in (
            ("sys/fs/cgroup", "memory.max", "memory.current"),
            ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            place = root / mount / group
            for folder in (place, *place.parents):
                if not folder.is_relative_to(root / mount):
                    break
                try:
                    left = int((folder / limit).read_text()) - int((folder / usage).read_text())
                except (OSError, ValueError):  # no such file, or "max"
                    continue
                yield left + _reclaimable(folder)


def _own_groups(root: Path) -> Iterator[str]:
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "memory"):
            yield path.strip("/")


def _reclaimable(folder: Path) -> int:
    """Of the memory in use, pages of files that the kernel gives back when asked."""
    try:
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return int(stat.get("total_inactive_file", stat.get("inactive_file", 0)))
    except (OSError, ValueError):
        return 0
