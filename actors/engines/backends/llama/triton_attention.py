"""Attention of a decode round for a GPU: each row reads its keys and values where they lie in the pool.

A row attends to its text in the text's own order, ``BLOCK`` tokens at a time from position 0 on, wherever their slots
are: a window's branches, whose tokens are not next to each other, need no copies. Parts of ``SPLIT`` tokens are
computed side by side, as in Flash-Decoding, and joined in order. Where blocks and parts end depends on nothing but the
position, and rows that share a tile never touch each other's numbers, so a row has the same bits in any company.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 64  # tokens of one product
SPLIT = 512  # tokens of one program: at 8 key heads 2,048 tokens of one row occupy 32 of them
TILE = 16  # rows of one product, query heads that share keys included: the least that tensor cores take
LOG2_E = 1.4426950408889634


@triton.jit
def _attend(
    query, keys, values, tiles, bases, prefixes, lengths, tails, seen, tops, sums,
    rows, row_stride, head_stride, scale,
    HEADS: tl.constexpr, GROUP: tl.constexpr, WIDTH: tl.constexpr, DEPTH: tl.constexpr, TAIL: tl.constexpr,
    TILE: tl.constexpr, BLOCK: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """One tile of rows, one key head, one part of the text."""
    tile, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first = tl.load(tiles + 2 * tile)
    count = tl.load(tiles + 2 * tile + 1)
    within = tl.arange(0, TILE)
    of_row = within // GROUP
    live = of_row < count
    row = first + of_row
    head = kv_head * GROUP + within % GROUP
    longest = tl.max(tl.load(lengths + row, mask=live, other=0), 0)
    begin = split * SPLIT
    if longest <= begin:
        return
    end = tl.minimum(begin + SPLIT, longest)
    common = tl.minimum(tl.min(tl.load(prefixes + row, mask=live, other=2147483647), 0), end)
    base = tl.load(bases + first)
    # what all rows see alike comes first, then what is left of each row's part, one row after the other
    whole = tl.maximum(common - begin, 0) // BLOCK
    rest = begin + whole * BLOCK
    each = tl.cdiv(end - rest, BLOCK)

    depth = tl.arange(0, DEPTH)
    inner = depth < WIDTH
    at = (row * row_stride + head * WIDTH)[:, None] + depth[None, :]
    asked = tl.load(query + at, mask=live[:, None] & inner[None, :], other=0.0)
    head_at = kv_head.to(tl.int64) * head_stride
    top = tl.full([TILE], float("-inf"), tl.float32)
    total = tl.zeros([TILE], tl.float32)
    sums_of = tl.zeros([TILE, DEPTH], tl.float32)
    for step in range(whole + count * each):
        alone = tl.maximum(step - whole, 0)
        own = alone // tl.maximum(each, 1)
        together = step < whole
        here = tl.where(together, begin + step * BLOCK, rest + (alone - own * each) * BLOCK)
        places = here + tl.arange(0, BLOCK)
        before = tl.where(together, end, tl.load(prefixes + first + own))
        inside = places < tl.where(together, end, tl.load(lengths + first + own))
        behind = places - before
        apart = tl.load(tails + (first + own) * TAIL + behind, mask=(behind >= 0) & inside, other=0)
        slots = tl.where(behind < 0, base + places, apart).to(tl.int64) * WIDTH + head_at
        read = inside[:, None] & inner[None, :]
        key = tl.load(keys + slots[:, None] + depth[None, :], mask=read, other=0.0)
        value = tl.load(values + slots[:, None] + depth[None, :], mask=read, other=0.0)
        scores = tl.dot(asked, tl.trans(key), input_precision="ieee") * scale
        sees = inside[None, :] & (together | (of_row == own))[:, None]
        scores = tl.where(sees, scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        level = tl.where(higher == float("-inf"), 0.0, higher)  # of rows that have seen nothing yet
        weights = tl.exp2(scores - level[:, None])
        kept = tl.exp2(top - level)
        total = total * kept + tl.sum(weights, 1)
        sums_of = sums_of * kept[:, None] + tl.dot(weights.to(value.dtype), value, input_precision="ieee")
        top = higher
    place = (split * rows + row) * HEADS + head
    tl.store(tops + place, top, mask=live)
    tl.store(sums + place, total, mask=live)
    tl.store(seen + place[:, None] * WIDTH + depth[None, :], sums_of, mask=live[:, None] & inner[None, :])


@triton.jit
def _join(
    seen, tops, sums, lengths, out, rows,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, DEPTH: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """One row and head: its parts, one after the other."""
    row, head = tl.program_id(0), tl.program_id(1)
    depth = tl.arange(0, DEPTH)
    inner = depth < WIDTH
    top = float("-inf")
    total = 0.0
    whole = tl.zeros([DEPTH], tl.float32)
    for split in range(tl.cdiv(tl.load(lengths + row), SPLIT)):
        place = (split * rows + row) * HEADS + head
        here = tl.load(tops + place)
        higher = tl.maximum(top, here)
        kept, added = tl.exp2(top - higher), tl.exp2(here - higher)
        total = total * kept + tl.load(sums + place) * added
        whole = whole * kept + tl.load(seen + place * WIDTH + depth, mask=inner, other=0.0) * added
        top = higher
    total = tl.where(total == 0.0, 1.0, total)  # of rows that only fill up
    tl.store(out + (row * HEADS + head) * WIDTH + depth, (whole / total).to(out.dtype.element_ty), mask=inner)


def tile_rows(heads: int, kv_heads: int) -> int:
    """How many rows of one request share a tile."""
    return max(1, TILE // (heads // kv_heads))


def attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    tiles: Tensor,
    bases: Tensor,
    prefixes: Tensor,
    lengths: Tensor,
    tails: Tensor,
    splits: int,
    scale: float,
) -> Tensor:
    """``(rows, heads * width)`` from query ``(rows, heads, width)`` and the pool's keys and values of a layer
    ``(kv_heads, slots, width)``.

    int32, on the device: ``tiles`` (n, 2): first row and count, at most :func:`tile_rows`, of rows of one request.
    ``bases``, ``prefixes``, ``lengths`` (rows,): the first ``prefix`` of the ``length`` tokens that a row sees lie in
    slots ``base ..``, and the others in its ``tails`` (rows, most). A row of length 0 gets zeros. ``splits``: parts of
    ``SPLIT`` tokens that the longest row has, or more.
    """
    rows, heads, width = query.shape
    assert query.stride()[1:] == (width, 1) and keys.stride() == values.stride() and keys.stride()[1:] == (width, 1)
    kv_heads = keys.shape[0]
    group = heads // kv_heads
    tile, depth = max(TILE, triton.next_power_of_2(group)), max(16, triton.next_power_of_2(width))
    seen = query.new_empty((splits, rows, heads, width), dtype=torch.float32)
    tops, sums = (query.new_empty((splits, rows, heads), dtype=torch.float32) for _ in range(2))
    out = torch.empty_like(query, memory_format=torch.contiguous_format)
    with torch.cuda.device_of(query):  # Triton launches on the current device
        _attend[(len(tiles), kv_heads, splits)](
            query, keys, values, tiles, bases, prefixes, lengths, tails, seen, tops, sums,
            rows, query.stride(0), keys.stride(0), scale * LOG2_E,
            HEADS=heads, GROUP=group, WIDTH=width, DEPTH=depth, TAIL=tails.shape[1],
            TILE=tile, BLOCK=BLOCK, SPLIT=SPLIT,
        )  # fmt: skip
        _join[(rows, heads)](seen, tops, sums, lengths, out, rows, HEADS=heads, WIDTH=width, DEPTH=depth, SPLIT=SPLIT)
    return out.view(rows, heads * width)
