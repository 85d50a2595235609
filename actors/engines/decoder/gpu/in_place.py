"""A round's attention by kernels of ours, which read keys and values where they lie, for a GPU with Triton.

What a row sees is told in a few numbers: its text is consecutive slots, and only the tokens of its own branch may lie
elsewhere. Those numbers are data, so that a recording depends on the number of rows alone.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actors.engines.cache.pool import KVPool
from actors.engines.compute.ops_torch import TorchOps
from actors.engines.compute.rows import SlotSight
from actors.engines.decoder.gpu.kernel_check import checked
from actors.engines.decoder.spec import Attention, DecoderSpec
from actors.engines.decoder.torch.attention import MAX_ROUND as MAX_WINDOW
from actors.engines.flat_batch import Segment

log = logging.getLogger("duoactor.engines")
MAX_ROWS = 256  # rows of a round: their logits take 155 MB with a vocabulary of 152,000
MAX_PARTS = 1 << 14  # parts of all rows' texts: at 32 heads of 128 their sums take 268 MB
# Parts of a piece of a prompt: each row writes its result for each part, and torch's own attention does not
MAX_PROMPT_PARTS = 1 << 12
PROMPT_ROWS = (64, 128, MAX_ROWS)
CLOSE = 2e-2  # tolerance for outputs around 1 in 16 bits


def _lengths(rows: int) -> tuple[int, ...]:
    """Lengths of the numbers in front of the items: see :func:`triton_kernels.attention.attend`."""
    return 1, rows, rows, rows, rows, rows * MAX_WINDOW


class RoundPlan(NamedTuple):
    """A round of ``rows``, for which it is recorded; all else is data."""

    rows: int
    items: NDArray[np.int32]  # (n, 3)
    numbers: NDArray[np.int32]  # (4, n): parts of the rows before, base, prefix and length of each
    tails: dict[int, NDArray[np.int64]]  # tails by row

    @property
    def bytes(self) -> int:
        return 4 * (sum(_lengths(self.rows)) + self.items.size)

    def pack(self, host: NDArray[np.uint8]) -> None:
        """int32 numbers. Rows beyond the segments' are empty."""
        count, *parts, tails, items = np.split(host.view(np.int32), np.cumsum(_lengths(self.rows)))
        count[0], items[:] = len(self.items), self.items.ravel()
        for part, given in zip(parts, self.numbers, strict=True):
            part[: len(given)], part[len(given) :] = given, 0
        for row, tail in self.tails.items():
            tails[row * MAX_WINDOW :][: len(tail)] = tail


class InPlace:
    """How the rows of a round find the keys and values that they attend to."""

    def __init__(self, spec: DecoderSpec, pool: KVPool, exact: bool, kernels: Any, gpu: Any) -> None:
        """``exact``: texts lie in the order of their slots. ``kernels``:
        :mod:`actors.engines.decoder.gpu.triton_kernels.attention`. ``gpu``: what its launches ask."""
        self._pool, self._exact = pool, exact
        self._kernels, self._gpu = kernels, gpu
        self.split: int = kernels.SPLIT
        self._tile = min((kernels.tile_rows(one.heads, one.kv_heads) for one in spec.attentions), default=1)
        self._partial = kernels.Partial(MAX_PARTS, spec.attentions, pool.device)

    @property
    def bytes(self) -> int:
        """Memory of the largest round."""
        return 4 * (sum(_lengths(MAX_ROWS)) + 3 * MAX_PARTS)

    def plan(self, rows: int, segments: Sequence[Segment]) -> RoundPlan | None:
        """A round of this many rows, the segments' first; None: it is not recorded, and runs as usual."""
        items: list[tuple[int, int, int]] = []
        told: list[NDArray[np.int64]] = []
        tails: dict[int, NDArray[np.int64]] = {}
        first = 0
        for segment in segments:
            visible = segment.visible
            begin = 0 if self._exact else _longest_run(visible)  # a draft's nodes lie in front of its text
            lengths = np.count_nonzero(visible, axis=1)
            text = visible[:, begin:]
            prefixes = np.where(text.all(1), text.shape[1], text.argmin(1))
            told.append(np.stack([np.full(segment.rows, segment.base + begin), prefixes, lengths]))
            for row in np.flatnonzero(lengths > prefixes).tolist():
                apart = visible[row].copy()
                apart[begin : begin + prefixes[row]] = False
                tails[first + row] = segment.base + np.flatnonzero(apart)
            items += self._items(first, prefixes, -(-lengths // self.split))
            first += segment.rows
        if max(map(len, tails.values()), default=0) > MAX_WINDOW:
            return None
        numbers = np.concatenate(told, 1)
        parts = -(-numbers[2] // self.split)
        ends = np.cumsum(parts)
        if ends[-1] > (MAX_PROMPT_PARTS if segments[0].prompt else MAX_PARTS):
            return None
        starts = np.stack([ends - parts, *numbers]).astype(np.int32)
        return RoundPlan(rows, np.array(items, np.int32), starts, tails)

    def _items(self, first: int, prefixes: NDArray[np.int64], parts: NDArray[np.int64]) -> list[tuple[int, int, int]]:
        """A request's items: parts that all rows of a tile see whole are computed together, others row by row."""
        items = []
        for start in range(0, len(parts), self._tile):
            tile = range(start, min(start + self._tile, len(parts)))
            whole = int(prefixes[tile.start : tile.stop].min()) // self.split if len(tile) > 1 else 0
            items += [(first + start, len(tile), part) for part in range(whole)]
            items += [(first + row, 1, part) for row in tile for part in range(whole, int(parts[row]))]
        return items

    def sight(self, rows: int, told: Tensor, ops: TorchOps | None = None) -> SlotSight:
        """The attention of a program that reads ``told``, what was packed, on the device. ``ops``: who goes on."""
        numbers = self.unpack(rows, told)

        def see(place: int, attention: Attention, queries: Tensor, sinks: Tensor | None) -> Tensor:
            pool = self._pool.keys[place], self._pool.values[place]
            width, size = attention.width, attention.heads * attention.width
            room = None if ops is None or width % 32 or size % 128 else ops.room(queries, size)
            seen = self.attend(queries, pool, numbers, attention, sinks, room)
            return seen if ops is None else ops.made(seen, room)

        return see

    @staticmethod
    def unpack(rows: int, told: Tensor) -> tuple[Tensor, ...]:
        """int32 count, starts, bases, prefixes, lengths (rows,), tails (rows, most) and items (n, 3)."""
        numbers = told[: len(told) // 4 * 4].view(torch.int32)
        lengths = _lengths(rows)
        begin = sum(lengths)
        count, *parts, tails = torch.split(numbers[:begin], list(lengths))
        items = numbers[begin : begin + (len(numbers) - begin) // 3 * 3]
        return count, *parts, tails.view(rows, -1), items.view(-1, 3)

    def used(self, rows: int, told: Tensor) -> Tensor:
        """How many rows see something: int64 (1,), on the device."""
        return torch.count_nonzero(self.unpack(rows, told)[4]).view(1)

    def attend(
        self,
        queries: Tensor,
        pool: tuple[Tensor, Tensor],
        numbers: tuple[Tensor, ...],
        attention: Attention,
        sinks: Tensor | None = None,
        rounded: Any = None,
    ) -> Tensor:
        told = pool, numbers, self._partial, attention, sinks, self._gpu, rounded
        seen: Tensor = self._kernels.attend(queries.contiguous(), *told)
        return seen


def _longest_run(visible: NDArray[np.bool_]) -> int:
    """First slot of the longest run that all rows see."""
    edges = np.flatnonzero(np.diff(visible.min(0).astype(np.int8), prepend=0, append=0)).reshape(-1, 2)
    return int(edges[(edges[:, 1] - edges[:, 0]).argmax(), 0]) if len(edges) else 0


def in_place(spec: DecoderSpec, pool: KVPool, exact: bool) -> InPlace | None:
    """None where there is no Triton, or where its kernels do not give what attention is."""
    try:
        from actors.engines.decoder.gpu.triton_kernels import attention, gpu
    except ImportError:
        log.info("decode rounds are launched one by one, which is slower: Triton is not installed")
        return None
    kinds = dict.fromkeys(replace(one, qkv=(), out="", sinks=None) for one in spec.attentions)
    layout = checked(
        lambda: InPlace(spec, pool, exact, attention, gpu.gpu_of(pool.device)),
        lambda made: max((error_of(made, one, pool) for one in kinds), default=0.0),
        CLOSE,
    )
    if isinstance(layout, str):
        log.warning("decode rounds are launched one by one, which is slower: Triton's attention failed (%s)", layout)
        return None
    return layout


def error_of(layout: InPlace, spec: Attention, pool: KVPool) -> float:
    """The largest difference to torch's attention for a window of three rows, a branch among them."""
    length, rows, device = layout.split + 70, 3, pool.device
    visible = np.zeros((rows, length + rows), dtype=np.bool_)
    visible[:, :length] = True
    visible[1, length] = visible[2, length + 1] = True
    plan = layout.plan(rows, [Segment(rows, 0, length + rows, visible)])
    assert plan is not None
    host = np.zeros(plan.bytes, dtype=np.uint8)
    plan.pack(host)
    numbers = layout.unpack(plan.rows, torch.from_numpy(host).to(device))
    chance = torch.Generator().manual_seed(0)

    def random(*sizes: int) -> Tensor:
        return torch.randn(*sizes, generator=chance).to(device, pool.dtype)

    keys, values = (random(spec.kv_heads, length + rows, spec.width) for _ in range(2))
    queries = random(rows, spec.heads, spec.width)
    found = layout.attend(queries, (keys, values), numbers, spec)
    order = visible.cumsum(1)
    last = order[:, -1:]
    first = (last - 1) // spec.window * spec.window if spec.chunked else last - spec.window
    shown = visible & (order > first) if spec.window else visible
    mask = torch.zeros(shown.shape).masked_fill(~torch.from_numpy(shown), float("-inf")).to(device)
    keys, values = (part.float().repeat_interleave(spec.heads // spec.kv_heads, 0) for part in (keys, values))
    scores = queries.transpose(0, 1).float() @ keys.transpose(1, 2) * spec.scale
    scores = spec.cap * torch.tanh(scores / spec.cap) if spec.cap else scores
    exact = (scores + mask).softmax(-1) @ values
    return float((found.float() - exact.transpose(0, 1).reshape(rows, -1)).abs().max())
