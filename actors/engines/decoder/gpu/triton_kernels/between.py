"""What lies between the linear layers of a decode round: residual sums and norms, rotations, new keys and values.

torch takes ten launches for it in each layer, of 2 to 6 us on an H200, where reading a 7B model's layer takes 110.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit(do_not_specialize=["rows"])
def _add_norm(
    x, parts, weight, out, rows, size, eps, SPLITS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One row: the splits' sums are added to x, and the result's norm is taken."""
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < size
    value = tl.load(x + row * size + at, mask=inside, other=0.0).to(tl.float32)
    if SPLITS > 0:
        added = tl.zeros([BLOCK], tl.float32)
        for split in tl.static_range(SPLITS):
            added += tl.load(parts + (split * rows + row) * size + at, mask=inside, other=0.0)
        rounded = (value + added).to(x.dtype.element_ty)
        tl.store(x + row * size + at, rounded, mask=inside)
        value = rounded.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(value * value, 0) / size + eps)
    normed = value * scale * tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * size + at, normed.to(out.dtype.element_ty), mask=inside)


def add_norm(x: Tensor, parts: Tensor | None, weight: Tensor, eps: float) -> Tensor:
    """The RMS norm of x ``(rows, size)``, to which ``parts`` ``(splits, rows, size)``, if any, are added in place."""
    rows, size = x.shape
    out = torch.empty_like(x)
    block = triton.next_power_of_2(size)
    with torch.cuda.device_of(x):
        _add_norm[(rows,)](
            x, x if parts is None else parts, weight, out, rows, size, eps,
            SPLITS=0 if parts is None else len(parts), BLOCK=block,
            num_warps=min(16, max(1, block // 512)),
        )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["rows"])
def _turn(
    parts, turns, norm, queries, keys, values, slots, rows, columns, slot_stride, eps,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, WIDTH: tl.constexpr, HALF: tl.constexpr,
    SPLITS: tl.constexpr, NORMED: tl.constexpr,
):  # fmt: skip
    """One head of one row: its pairs, which are side by side, are normed if the family does, and turned."""
    row, head = tl.program_id(0), tl.program_id(1)
    pair = tl.arange(0, HALF)
    inside = pair < WIDTH // 2
    even = tl.zeros([HALF], tl.float32)
    odd = tl.zeros([HALF], tl.float32)
    for split in tl.static_range(SPLITS):
        at = parts + (split * rows + row) * columns + head * WIDTH + 2 * pair
        even += tl.load(at, mask=inside, other=0.0)
        odd += tl.load(at + 1, mask=inside, other=0.0)
    slot = tl.load(slots + row).to(tl.int64)
    if head < HEADS + KV_HEADS:
        if NORMED:
            scale = 1.0 / tl.sqrt((tl.sum(even * even, 0) + tl.sum(odd * odd, 0)) / WIDTH + eps)
            by = norm + head * WIDTH + 2 * pair
            even = even * scale * tl.load(by, mask=inside, other=0.0).to(tl.float32)
            odd = odd * scale * tl.load(by + 1, mask=inside, other=0.0).to(tl.float32)
        turn = turns + row * WIDTH + 2 * pair
        real = tl.load(turn, mask=inside, other=0.0)
        imaginary = tl.load(turn + 1, mask=inside, other=0.0)
        turned = even * real - odd * imaginary
        odd = even * imaginary + odd * real
        even = turned
    if head < HEADS:
        to = queries + (row * HEADS + head) * WIDTH + 2 * pair
        tl.store(to, even.to(queries.dtype.element_ty), mask=inside)
        tl.store(to + 1, odd.to(queries.dtype.element_ty), mask=inside)
    else:
        if head < HEADS + KV_HEADS:
            to = keys + (head - HEADS).to(tl.int64) * slot_stride + slot * WIDTH + 2 * pair
        else:
            to = values + (head - HEADS - KV_HEADS).to(tl.int64) * slot_stride + slot * WIDTH + 2 * pair
        tl.store(to, even.to(keys.dtype.element_ty), mask=inside)
        tl.store(to + 1, odd.to(keys.dtype.element_ty), mask=inside)


def turn(
    parts: Tensor, turns: Tensor, norm: Tensor | None, keys: Tensor, values: Tensor, slots: Tensor, eps: float
) -> Tensor:
    """Queries ``(rows, heads, width)`` of a layer, in the type of its keys; the rows' keys and values are written into
    ``slots`` (int64, ``(rows,)``) of ``keys`` and ``values`` ``(kv_heads, slots, width)``.

    ``parts``: float32 ``(splits, rows, (heads + 2 * kv_heads) * width)``. ``turns``: complex64 ``(rows, width / 2)``.
    ``norm``: weights ``(heads + kv_heads, width)`` of the norms of queries and keys, if the family has them.
    """
    splits, rows, columns = parts.shape
    kv_heads, _, width = keys.shape
    heads = columns // width - 2 * kv_heads
    assert keys.stride() == values.stride() and keys.stride()[1:] == (width, 1) and turns.is_contiguous()
    queries = keys.new_empty((rows, heads, width))
    with torch.cuda.device_of(parts):
        _turn[(rows, heads + 2 * kv_heads)](
            parts, torch.view_as_real(turns), parts if norm is None else norm, queries, keys, values, slots,
            rows, columns, keys.stride(0), eps,
            HEADS=heads, KV_HEADS=kv_heads, WIDTH=width, HALF=triton.next_power_of_2(width // 2),
            SPLITS=splits, NORMED=norm is not None, num_warps=1,
        )  # fmt: skip
    return queries
