"""Attention of a decode round for a GPU: each row reads its keys and values where they lie in the pool.

A row attends to its text in the text's own order, wherever its slots are: a window's branches, with tokens apart
from each other, need no copies. Parts of ``SPLIT`` tokens are computed side by side, as in Flash-Decoding, and
joined in order. Parts that all rows of a request see whole are computed for several rows at once, the others row by
row. Where parts end depends on nothing but the position, and rows that share a tile never touch each other's numbers,
so a row has the same bits in any company.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from actors.engines.decoder.gpu.triton_kernels.gpu import Gpu
from actors.engines.decoder.gpu.triton_kernels.groups import RoundedRows, records_of, write_record
from actors.engines.decoder.spec import Attention

# Tokens of one part; their keys and values are all on their way at once. On an H200, 32 key heads of 128, in us: 8 rows
# behind 500 tokens 10 (with 128: 14), 64 rows 33 (47), 32 requests of four 109 (140), but one row behind 4,000 32 (29).
SPLIT = 64
PROGRAMS = 8  # programs that one multiprocessor has room for; 4 and 16 take as long
JOINED = 16  # parts that are joined at a time
TILE = 16  # rows of one product, query heads that share keys included: the least that tensor cores take
LOG2_E = 1.4426950408889634


@triton.jit
def _begin(length, WINDOW: tl.constexpr, CHUNKED: tl.constexpr):
    """The first token of its text that a row sees, the last of ``length``."""
    if WINDOW == 0:
        return length * 0
    if CHUNKED:
        return tl.maximum(length - 1, 0) // WINDOW * WINDOW
    return tl.maximum(length - WINDOW, 0)


@triton.jit
def _attend(
    query, keys, values, count, items, starts, bases, prefixes, lengths, tails, seen, tops, sums, head_stride, scale,
    cap, HEADS: tl.constexpr, GROUP: tl.constexpr, WIDTH: tl.constexpr, DEPTH: tl.constexpr, TAIL: tl.constexpr,
    TILE: tl.constexpr, SPLIT: tl.constexpr, WINDOW: tl.constexpr, CHUNKED: tl.constexpr, CAPPED: tl.constexpr,
):  # fmt: skip
    """One item and key head after the other: how many there are is data, so that one recording serves all texts."""
    within = tl.arange(0, TILE)
    of_row = within // GROUP
    depth = tl.arange(0, DEPTH)
    inner = depth < WIDTH
    for unit in range(tl.program_id(0), tl.load(count) * (HEADS // GROUP), tl.num_programs(0)):
        item, kv_head = unit // (HEADS // GROUP), unit % (HEADS // GROUP)
        first = tl.load(items + 3 * item)
        live = of_row < tl.load(items + 3 * item + 1)
        split = tl.load(items + 3 * item + 2)
        row = first + of_row
        head = kv_head * GROUP + within % GROUP
        # several rows see all of the part, in a row of slots; one row alone may end in it, or go on somewhere else
        places = split * SPLIT + tl.arange(0, SPLIT)
        inside = places < tl.load(lengths + first)
        length = tl.load(lengths + row, mask=live, other=0)
        begin = _begin(length, WINDOW, CHUNKED)
        live = live & (split >= begin // SPLIT)  # parts before a row's window are not its own
        inside = inside & (places >= tl.min(tl.where(live, begin, 2147483647), 0))
        behind = places - tl.load(prefixes + first)
        apart = tl.load(tails + first * TAIL + behind, mask=(behind >= 0) & inside, other=0)
        slots = tl.where(behind < 0, tl.load(bases + first) + places, apart).to(tl.int64) * WIDTH
        slots += head_stride.to(tl.int64) * kv_head
        read = inside[:, None] & inner[None, :]
        key = tl.load(keys + slots[:, None] + depth[None, :], mask=read, other=0.0)
        value = tl.load(values + slots[:, None] + depth[None, :], mask=read, other=0.0)
        at = (row * HEADS + head)[:, None] * WIDTH + depth[None, :]
        asked = tl.load(query + at, mask=live[:, None] & inner[None, :], other=0.0)
        scores = tl.dot(asked, tl.trans(key), input_precision="ieee") * scale
        if CAPPED:
            bent = tl.exp2(-tl.abs(scores))  # a hyperbolic tangent's exponential
            scores = tl.where(scores < 0, -1.0, 1.0) * cap * (1 - bent) / (1 + bent)
        shown = inside[None, :] & live[:, None]
        if WINDOW > 0:
            shown = shown & (places[None, :] >= begin[:, None])
        scores = tl.where(shown, scores, float("-inf"))
        top = tl.where(live, tl.max(scores, 1), 0.0)
        weights = tl.exp2(scores - top[:, None])
        place = (tl.load(starts + row, mask=live, other=0) + split).to(tl.int64) * HEADS + head
        tl.store(tops + place, top, mask=live)
        tl.store(sums + place, tl.sum(weights, 1), mask=live)
        sums_of = tl.dot(weights.to(value.dtype), value, input_precision="ieee")
        tl.store(seen + place[:, None] * WIDTH + depth[None, :], sums_of, mask=live[:, None] & inner[None, :])


@triton.jit(do_not_specialize=["apart"])
def _join(
    seen, tops, sums, starts, lengths, sinks, log2_e, out, records, apart, groups,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, DEPTH: tl.constexpr, SPLIT: tl.constexpr, JOINED: tl.constexpr,
    WINDOW: tl.constexpr, CHUNKED: tl.constexpr, SINKS: tl.constexpr, ROUNDED: tl.constexpr,
):  # fmt: skip
    """One row and head: its parts, ``JOINED`` after ``JOINED``."""
    row, head = tl.program_id(0), tl.program_id(1)
    depth = tl.arange(0, DEPTH)
    length = tl.load(lengths + row)
    parts = tl.cdiv(length, SPLIT)
    start = tl.load(starts + row).to(tl.int64)
    top = float("-inf")
    total = 0.0
    whole = tl.zeros([DEPTH], tl.float32)
    for first in range(_begin(length, WINDOW, CHUNKED) // SPLIT, parts, JOINED):
        part = first + tl.arange(0, JOINED)
        some = part < parts
        place = (start + part) * HEADS + head
        here = tl.load(tops + place, mask=some, other=float("-inf"))
        higher = tl.maximum(top, tl.max(here, 0))
        kept, added = tl.exp2(top - higher), tl.exp2(here - higher)
        total = total * kept + tl.sum(tl.load(sums + place, mask=some, other=0.0) * added, 0)
        at = place[:, None] * WIDTH + depth[None, :]
        given = tl.load(seen + at, mask=some[:, None] & (depth < WIDTH)[None, :], other=0.0)
        whole = whole * kept + tl.sum(given * added[:, None], 0)
        top = higher
    if SINKS:  # a score that takes a share and has no value
        sink = tl.load(sinks + head).to(tl.float32) * log2_e
        higher = tl.maximum(top, sink)
        total = total * tl.exp2(top - higher) + tl.exp2(sink - higher)
        whole = whole * tl.exp2(top - higher)
    total = tl.where(total == 0.0, 1.0, total)  # rows that only fill up
    place = (row * HEADS + head) * WIDTH + depth
    found = (whole / total).to(out.dtype.element_ty)
    tl.store(out + place, found, mask=depth < WIDTH)
    if ROUNDED:
        first = head * (WIDTH // 32)
        write_record(found.to(tl.float32), records, row, first, apart, first + WIDTH // 32, DEPTH // 32)


def tile_rows(heads: int, kv_heads: int) -> int:
    """How many rows of one request share a tile."""
    return max(1, TILE // (heads // kv_heads))


class Partial:
    """Room for what :func:`attend` has seen of each part of each row, which every layer of every round uses."""

    def __init__(self, parts: int, layers: Sequence[Attention], device: torch.device) -> None:
        """``parts``: of all rows of a round."""
        heads, numbers = (
            max(map(of, layers), default=0) for of in (lambda one: one.heads, lambda one: one.heads * one.width)
        )
        self.seen = torch.empty(parts * numbers, dtype=torch.float32, device=device)
        self.tops, self.sums = (torch.empty(parts * heads, dtype=torch.float32, device=device) for _ in range(2))


def attend(
    query: Tensor,
    pool: tuple[Tensor, Tensor],
    numbers: tuple[Tensor, ...],
    partial: Partial,
    spec: Attention,
    sinks: Tensor | None,
    gpu: Gpu,
    rounded: RoundedRows | None = None,
) -> Tensor:
    """``(rows, heads * width)`` from query ``(rows, heads, width)`` and the ``pool``'s keys and values of a layer
    ``(kv_heads, slots, width)``. ``spec``: of the layer, whose ``sinks`` ``(heads,)`` take part.

    ``numbers``, int32, on the device: ``count``, ``starts``, ``bases``, ``prefixes``, ``lengths``, ``tails`` and
    ``items``. The first ``count`` (1,) of ``items`` (n, 3) are a first row, a number of rows, and which
    part of ``SPLIT`` tokens of their texts: one row, or up to :func:`tile_rows` of one request that all see the part
    whole, in a row of slots. Every part of every row is in one item. ``bases``, ``prefixes``, ``lengths`` (rows,): the
    first ``prefix`` of the ``length`` tokens that a row sees lie in slots ``base ..``, and the others in its ``tails``
    (rows, most). A row of length 0 gets zeros. ``rounded``: the same in 8 bits. ``starts`` (rows,): parts of the rows
    before, in ``partial``.
    """
    (rows, heads, width), (keys, values) = query.shape, pool
    count, starts, bases, prefixes, lengths, tails, items = numbers
    assert query.is_contiguous() and keys.stride() == values.stride() and keys.stride()[1:] == (width, 1)
    group = heads // keys.shape[0]
    tile, depth = max(TILE, triton.next_power_of_2(group)), max(16, triton.next_power_of_2(width))
    seen, tops, sums = partial.seen, partial.tops, partial.sums
    scale = spec.scale * LOG2_E * (2 / spec.cap if spec.cap else 1)
    window = {"WINDOW": spec.window, "CHUNKED": spec.chunked}
    out = torch.empty_like(query)
    with torch.cuda.device_of(query):  # Triton launches on the current device
        _attend[(PROGRAMS * gpu.processors,)](
            query, keys, values, count, items, starts, bases, prefixes, lengths, tails, seen, tops, sums,
            keys.stride(0), scale, spec.cap * LOG2_E,
            HEADS=heads, GROUP=group, WIDTH=width, DEPTH=depth, TAIL=tails.shape[1], TILE=tile, SPLIT=SPLIT,
            CAPPED=spec.cap != 0, **window, num_stages=1,
        )  # fmt: skip
        _join[(rows, heads)](
            seen, tops, sums, starts, lengths, query if sinks is None else sinks, LOG2_E, out,
            *records_of(rounded, out),
            HEADS=heads, WIDTH=width, DEPTH=depth, SPLIT=SPLIT, JOINED=JOINED, SINKS=sinks is not None,
            ROUNDED=rounded is not None, **window,
            num_warps=1,
        )  # fmt: skip
    return out.view(rows, heads * width)
