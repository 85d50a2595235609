"""A round's attention by our Triton kernels: rows read their keys and values where they lie in the pool."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actors.engines.backends.attention import MAX_ROUND as MAX_WINDOW
from actors.engines.backends.attention import attend
from actors.engines.backends.llama.inbox import MAX_ROWS, Shape, power_bucket
from actors.engines.backends.llama.torch_body import Look, TorchBody
from actors.engines.flat_batch import Segment

log = logging.getLogger("duoactor.engines")
TAILS = (1, 16, MAX_WINDOW)  # slots of a row's tail: one at most, those of a usual tree, those of the deepest
MAX_PARTS = 1 << 13  # rows times parts of their texts: at 32 heads of 128 their sums take 134 MB
CLOSE = 2e-2  # of outputs around 1 in 16 bits


class InPlaceShape(NamedTuple):
    """What is recorded: ``rows`` in a row, in at most so many ``tiles``; the longest text has ``splits`` parts or
    fewer, and a row ``tail`` tokens that are not next to the others."""

    rows: int
    tiles: int
    splits: int
    tail: int

    @property
    def parts(self) -> tuple[int, ...]:
        """Lengths of the numbers: see :func:`actors.engines.backends.llama.triton_attention.attend`."""
        return 2 * self.tiles, self.rows, self.rows, self.rows, self.rows * self.tail

    @property
    def bytes(self) -> int:
        return 4 * sum(self.parts)


class _Plan(NamedTuple):
    shape: InPlaceShape
    tiles: list[tuple[int, int]]
    rows: list[tuple[int, int, int]]  # base, prefix and length of each
    tails: dict[int, NDArray[np.int64]]  # by row

    def pack(self, host: NDArray[np.uint8]) -> None:
        """int32 numbers. Tiles and rows beyond the segments' are empty."""
        host[:] = 0
        tiles, *rows, tails = np.split(host.view(np.int32), np.cumsum(self.shape.parts)[:-1])
        tiles[: 2 * len(self.tiles)] = np.ravel(self.tiles)
        for part, numbers in zip(rows, zip(*self.rows, strict=True), strict=True):
            part[: len(numbers)] = numbers
        for row, tail in self.tails.items():
            tails[row * self.shape.tail :][: len(tail)] = tail


class InPlace:
    """:class:`actors.engines.backends.llama.inbox.Layout`."""

    def __init__(self, body: TorchBody, kernels: Any) -> None:
        """``kernels``: :mod:`actors.engines.backends.llama.triton_attention`."""
        self._pool, self._scale, self._kernels = body.pool, body.shape.width**-0.5, kernels
        self._exact = body.exact
        self.split: int = kernels.SPLIT
        self._tile = kernels.tile_rows(body.shape.heads, body.shape.kv_heads)

    @property
    def bytes(self) -> int:
        return InPlaceShape(MAX_ROWS, MAX_ROWS, 1, MAX_WINDOW).bytes

    def plan(self, rows: int, segments: Sequence[Segment]) -> _Plan | None:
        tiles: list[tuple[int, int]] = []
        told: list[tuple[int, int, int]] = []
        tails: dict[int, NDArray[np.int64]] = {}
        for segment in segments:
            begin = 0 if self._exact else _longest_run(segment.visible)  # a draft's nodes lie in front of its text
            tiles += [
                (len(told) + start, min(self._tile, segment.rows - start))
                for start in range(0, segment.rows, self._tile)
            ]
            for visible in segment.visible:
                length = int(np.count_nonzero(visible))
                prefix = length
                if not visible[begin : begin + length].all():
                    prefix = int(visible[begin:].argmin()) if not visible[begin:].all() else len(visible) - begin
                    apart = visible.copy()
                    apart[begin : begin + prefix] = False
                    tails[len(told)] = segment.base + np.flatnonzero(apart)
                told.append((segment.base + begin, prefix, length))
        tail = max(map(len, tails.values()), default=0)
        splits = power_bucket(-(-max(length for _, _, length in told) // self.split))
        if tail > MAX_WINDOW or rows * splits > MAX_PARTS:
            return None
        shape = InPlaceShape(rows, power_bucket(len(tiles)), splits, next(size for size in TAILS if size >= tail))
        return _Plan(shape, tiles, told, tails)

    def look(self, shape: Shape, told: Tensor) -> Look:
        assert isinstance(shape, InPlaceShape)
        numbers = self.unpack(shape, told)

        def look(layer: int, queries: Tensor) -> Tensor:
            return self.attend(queries, self._pool.keys[layer], self._pool.values[layer], numbers, shape.splits)

        return look

    @staticmethod
    def unpack(shape: InPlaceShape, told: Tensor) -> tuple[Tensor, ...]:
        """int32 tiles (n, 2), bases, prefixes, lengths (rows,) and tails (rows, most)."""
        tiles, *rows, tails = torch.split(told.view(torch.int32), list(shape.parts))
        return tiles.view(-1, 2), *rows, tails.view(shape.rows, -1)

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, numbers: tuple[Tensor, ...], splits: int) -> Tensor:
        seen: Tensor = self._kernels.attend(queries, keys, values, *numbers, splits, self._scale)
        return seen


def _longest_run(visible: NDArray[np.bool_]) -> int:
    """Where the longest run of slots begins that all rows see."""
    edges = np.flatnonzero(np.diff(visible.min(0).astype(np.int8), prepend=0, append=0)).reshape(-1, 2)
    return int(edges[(edges[:, 1] - edges[:, 0]).argmax(), 0]) if len(edges) else 0


def in_place(body: TorchBody) -> InPlace | None:
    """None where there is no Triton, or where its kernels do not give what attention is."""
    try:
        from actors.engines.backends.llama import triton_attention
    except ImportError:
        log.info("decode rounds copy what they attend to, which is slower: Triton is not installed")
        return None
    layout = InPlace(body, triton_attention)
    try:
        wrong = error_of(layout, body)
    except Exception as error:  # of a compiler: it may be any
        wrong, reason = float("inf"), str(error).partition("\n")[0]
    else:
        reason = f"off by {wrong:.3g}"
    if not wrong < CLOSE:
        log.warning("decode rounds copy what they attend to, which is slower: Triton's attention failed (%s)", reason)
        return None
    return layout


def error_of(layout: InPlace, body: TorchBody) -> float:
    """The largest difference to torch's attention for a window of three rows, a branch among them."""
    shape, length, rows = body.shape, layout.split + 70, 3
    visible = np.zeros((rows, length + rows), dtype=np.bool_)
    visible[:, :length] = True
    visible[1, length] = visible[2, length + 1] = True
    plan = layout.plan(rows, [Segment(rows, 0, length + rows, visible)])
    assert plan is not None
    host = np.zeros(plan.shape.bytes, dtype=np.uint8)
    plan.pack(host)
    numbers = layout.unpack(plan.shape, torch.from_numpy(host).to(body.device))
    chance = torch.Generator().manual_seed(0)

    def random(*sizes: int) -> Tensor:
        return torch.randn(*sizes, generator=chance).to(body.device, body.dtype)

    keys, values = (random(shape.kv_heads, length + rows, shape.width) for _ in range(2))
    queries = random(rows, shape.heads, shape.width)
    found = layout.attend(queries, keys, values, numbers, plan.shape.splits)
    mask = torch.zeros(visible.shape).masked_fill(~torch.from_numpy(visible), float("-inf")).to(body.device)
    exact = attend(queries.transpose(0, 1).float(), keys.float(), values.float(), mask, shape.width**-0.5)
    return float((found.float() - exact.transpose(0, 1).reshape(rows, -1)).abs().max())
