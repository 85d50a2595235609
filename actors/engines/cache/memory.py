"""How large a KV pool is, by the memory that is free once the weights are loaded."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from actors.engines.flat_batch import SPAN
from protocols.errors import ConfigError, ModelError

MAX_REQUESTS = 32  # requests of full length that a pool is made for by default
MIN_TOKENS = 1024  # a smaller pool holds no conversation
MIN_ASKED = 448  # slots that the measurements of a start need, unless the context is shorter
GPU_SHARE = 0.9  # share of the free memory; the rest is for activations (vLLM's gpu_memory_utilization is as large)
# Share of the host's free memory, which other processes need as well. Pages are taken when they are first written, so
# that an idle pool takes none.
HOST_SHARE = 0.5
DRAFT_SHARE = 0.5  # share of a draft's pool, because the target may be on the same device
STATE_SHARE = 0.5  # share of a pool's memory, if the model has recurrent layers: their states need the rest
# Bytes of a host's memory for texts of ended requests, or as many as the weights have if those are more: a small model
# is expected to be a small process, and two chats with a large one must not drive each other out.
KEPT = 224 << 20
UNKNOWN_HOST = 4 << 30  # bytes, if the system does not tell how much is free


@dataclass(frozen=True, slots=True)
class PoolMemory:
    """Memory that a KV pool may take on a device.

    ``share``: part of the memory meant for KV pools. ``reserved``: further bytes, for the model's rounds. ``instead``:
    what to choose if nothing fits."""

    device: torch.device
    share: float = 1.0
    reserved: int = 0
    instead: Callable[[], str] = lambda: "a smaller model"


def kv_slots(asked: int, full_request: int, slot_bytes: int, place: PoolMemory) -> int:
    """The number of slots of a pool: ``asked``, or if that is 0, room for up to ``MAX_REQUESTS`` requests.

    ``full_request``: slots of a request that fills the context. ``slot_bytes``: bytes of a slot. Raises ConfigError or
    ModelError where they do not fit.
    """
    device = place.device
    free = max(0, available_bytes(device) - place.reserved)
    least = min(MIN_ASKED, full_request + SPAN)
    if asked:
        if asked < least:
            raise ConfigError(
                f"kv_tokens {asked:,} are too few for a request; choose at least {least:,}, or 0 for a pool that fits"
            )
        if asked * slot_bytes > free:
            raise ConfigError(
                f"kv_tokens {asked:,} take {gigabytes(asked * slot_bytes)} and {gigabytes(free)} are free on {device}; "
                f"choose at most {free // slot_bytes:,}, or 0 for a pool that fits"
            )
        return asked
    part = place.share * (HOST_SHARE if device.type == "cpu" else GPU_SHARE)
    fitting = int(free * part) // slot_bytes
    if fitting < min(MIN_TOKENS, full_request):
        most = free // slot_bytes
        smaller = f", or a cache of at most {most:,} tokens, with --kv-tokens" if most >= least else ""
        raise ModelError(
            f"{gigabytes(free)} are free on {device} once the model is loaded, which is too little for its KV cache "
            f"({gigabytes(slot_bytes * MIN_TOKENS)} for {MIN_TOKENS:,} tokens): choose {place.instead()}{smaller}"
        )
    return min(fitting, MAX_REQUESTS * full_request + SPAN)  # slots that no request gets


def kept_bytes(weights: int) -> int:
    """Host memory for texts that no request has open. ``weights``: bytes of the model's weights."""
    return max(KEPT, weights)


def state_room(state_bytes: int, device: torch.device, reserved: int = 0) -> int:
    """How many states of recurrent layers there is room for beside a KV pool of ``STATE_SHARE``, and beside as many
    bytes that rounds will take."""
    free = (available_bytes(device) - reserved) * (HOST_SHARE * STATE_SHARE if device.type == "cpu" else GPU_SHARE)
    return int(free) // max(1, state_bytes)


def gigabytes(size: float) -> str:
    return f"{size / 1e9:.3g} GB"


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> tuple[Tensor, mmap.mmap | None]:
    """``torch.zeros``, and the memory that it lies in: on a CPU it is taken only when it is written."""
    count = torch.Size(shape).numel()
    if device.type != "cpu" or count == 0:
        return torch.zeros(shape, dtype=dtype, device=device), None
    pages = mmap.mmap(-1, count * dtype.itemsize)  # anonymous: zeros, and page-aligned as numpy's would not be
    return torch.frombuffer(pages, dtype=dtype).view(shape), pages


def give_back(pages: mmap.mmap, begin: int, end: int) -> None:
    """Give the system the whole pages between two bytes, which read as zeros then."""
    begin, end = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
    if begin < end and (remove := getattr(mmap, "MADV_REMOVE", None)) is not None:
        with contextlib.suppress(OSError):  # not every system can
            pages.madvise(remove, begin, end - begin)


def trim() -> None:
    """Give the system what the C library keeps of memory that was freed: ten milliseconds once, then half of one."""
    if sys.platform == "linux" and (release := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        release(0)


def available_bytes(device: torch.device, root: Path = Path("/")) -> int:
    """Bytes that are free on the device: on a GPU its free memory, else the host's, within this process's cgroups."""
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
    """The bytes that each memory limit on this process leaves, in either version of cgroups."""
    groups = {"", *_own_groups(root)}  # in a container, the own group is the root of what is visible
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
    """Bytes of the memory in use that are file pages, which the kernel gives back on demand."""
    try:
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return int(stat.get("total_inactive_file", stat.get("inactive_file", 0)))
    except (OSError, ValueError):
        return 0
