"""What lies between the linear layers of a decode round: residual sums and norms, rotations, new keys and values.

torch takes ten launches for it in each layer, of 2 to 6 us on an H200, where reading a 7B model's layer takes 110.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from actors.engines.compute.operands import RowTurns
from actors.engines.decoder.gpu.triton_kernels.groups import RoundedRows, records_of, write_record
from actors.engines.decoder.layout import Affine
from actors.engines.decoder.spec import Norm

GATED = 512  # inner numbers of a program


@triton.jit
def _normed(value, weight, bias, at, inside, size, eps, CENTRED: tl.constexpr, BIASED: tl.constexpr):
    if CENTRED:
        value = tl.where(inside, value - tl.sum(value, 0) / size, 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(value * value, 0) / size + eps)
    normed = value * scale * tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    if BIASED:
        normed += tl.load(bias + at, mask=inside, other=0.0).to(tl.float32)
    return normed


@triton.jit(do_not_specialize=["rows", "apart"])
def _join(
    x, parts, behind, behind_bias, then, then_bias, out, records, apart, groups, rows, size, scale, eps,
    SPLITS: tl.constexpr, BEHIND: tl.constexpr, BEHIND_BIASED: tl.constexpr, THEN: tl.constexpr,
    THEN_BIASED: tl.constexpr, CENTRED: tl.constexpr, ROUNDED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One row: the splits' sums, normed by ``behind`` and scaled, are added to x, and the result's norm is taken, and
    ``ROUNDED`` to 8 bits, too."""
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < size
    value = tl.load(x + row * size + at, mask=inside, other=0.0).to(tl.float32)
    if SPLITS > 0:
        added = tl.zeros([BLOCK], tl.float32)
        for split in tl.static_range(SPLITS):
            added += tl.load(parts + (split * rows + row) * size + at, mask=inside, other=0.0).to(tl.float32)
        if BEHIND:
            added = _normed(added, behind, behind_bias, at, inside, size, eps, CENTRED, BEHIND_BIASED)
        rounded = (value + added * scale).to(x.dtype.element_ty)
        tl.store(x + row * size + at, rounded, mask=inside)
        value = rounded.to(tl.float32)
    if THEN:
        normed = _normed(value, then, then_bias, at, inside, size, eps, CENTRED, THEN_BIASED)
        normed = normed.to(out.dtype.element_ty)
        tl.store(out + row * size + at, normed, mask=inside)
        if ROUNDED:
            write_record(tl.where(inside, normed.to(tl.float32), 0.0), records, row, 0, apart, groups, BLOCK // 32)


def join(
    x: Tensor,
    parts: Tensor | None,
    scale: float,
    behind: Affine | None,
    then: Affine | None,
    norm: Norm,
    rounded: RoundedRows | None = None,
) -> Tensor:
    """Add ``parts`` ``(splits, rows, size)``, if any, to x ``(rows, size)`` in place, normed by ``behind`` and
    times ``scale``; return x normed by ``then``, which is ``rounded``, too."""
    rows, size = x.shape
    assert x.is_contiguous() and (parts is None or parts.is_contiguous())
    out = x if then is None else torch.empty_like(x)
    block = triton.next_power_of_2(size) if rounded is None else max(128, triton.next_power_of_2(size))

    def told(affine: Affine | None) -> tuple[Tensor, Tensor]:
        return (x, x) if affine is None else (affine.weight, x if affine.bias is None else affine.bias)

    with torch.cuda.device_of(x):
        _join[(rows,)](
            x, x if parts is None else parts, *told(behind), *told(then), out, *records_of(rounded, out),
            rows, size, scale, norm.eps,
            SPLITS=0 if parts is None else len(parts), BEHIND=behind is not None,
            BEHIND_BIASED=behind is not None and behind.bias is not None, THEN=then is not None,
            THEN_BIASED=then is not None and then.bias is not None, CENTRED=norm.centred,
            ROUNDED=rounded is not None, BLOCK=block,
            num_warps=min(16, max(1, block // 512)),
        )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["rows", "apart"])
def _gate(
    parts, out, records, apart, groups, rows, inner, SPLITS: tl.constexpr, ROUNDED: tl.constexpr, BLOCK: tl.constexpr
):
    """Some inner numbers of one row."""
    row, at = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < inner
    gate, up = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
    for split in tl.static_range(SPLITS):
        here = parts + (split * rows + row).to(tl.int64) * (2 * inner) + at
        gate += tl.load(here, mask=inside, other=0.0)
        up += tl.load(here + inner, mask=inside, other=0.0)
    found = (gate / (1.0 + tl.exp(-gate)) * up).to(out.dtype.element_ty)
    tl.store(out + row * inner + at, found, mask=inside)
    if ROUNDED:
        write_record(found.to(tl.float32), records, row, tl.program_id(1) * (BLOCK // 32), apart, groups, BLOCK // 32)


def gate(parts: Tensor, dtype: torch.dtype, rounded: RoundedRows | None = None) -> Tensor:
    """``silu(g) * u`` ``(rows, inner)``, of ``parts`` ``(splits, rows, 2 * inner)`` in which each g stands before u."""
    splits, rows, both = parts.shape
    out = parts.new_empty((rows, both // 2), dtype=dtype)
    with torch.cuda.device_of(parts):
        _gate[(rows, triton.cdiv(both // 2, GATED))](
            parts, out, *records_of(rounded, out), rows, both // 2,
            SPLITS=splits, ROUNDED=rounded is not None, BLOCK=GATED,
        )  # fmt: skip
    return out


@triton.jit
def _normed_pairs(even, odd, by, inside, WIDTH: tl.constexpr, eps):
    scale = 1.0 / tl.sqrt((tl.sum(even * even, 0) + tl.sum(odd * odd, 0)) / WIDTH + eps)
    even = even * scale * tl.load(by, mask=inside, other=0.0).to(tl.float32)
    odd = odd * scale * tl.load(by + 1, mask=inside, other=0.0).to(tl.float32)
    return even, odd


@triton.jit(do_not_specialize=["rows"])
def _turn(
    parts, turns, stretch, norm, queries, keys, values, slots, rows, columns, slot_stride, eps,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, WIDTH: tl.constexpr, HALF: tl.constexpr, PAIRS: tl.constexpr,
    SPLITS: tl.constexpr, NORMED: tl.constexpr, LATE: tl.constexpr, STRETCHED: tl.constexpr,
):  # fmt: skip
    """One head of one row: its pairs, which are side by side, are normed if the family does, and the first turned."""
    row, head = tl.program_id(0), tl.program_id(1)
    pair = tl.arange(0, HALF)
    inside = pair < WIDTH // 2
    even = tl.zeros([HALF], tl.float32)
    odd = tl.zeros([HALF], tl.float32)
    for split in tl.static_range(SPLITS):
        at = parts + (split * rows + row) * columns + head * WIDTH + 2 * pair
        even += tl.load(at, mask=inside, other=0.0).to(tl.float32)
        odd += tl.load(at + 1, mask=inside, other=0.0).to(tl.float32)
    slot = tl.load(slots + row).to(tl.int64)
    if head < NORMED and not LATE:
        even, odd = _normed_pairs(even, odd, norm + head * WIDTH + 2 * pair, inside, WIDTH, eps)
    if PAIRS > 0:
        turned = pair < tl.where(head < HEADS + KV_HEADS, PAIRS, 0)
        turn = turns + row * (2 * PAIRS) + 2 * pair
        real = tl.load(turn, mask=turned, other=1.0)
        imaginary = tl.load(turn + 1, mask=turned, other=0.0)
        even, odd = even * real - odd * imaginary, even * imaginary + odd * real
    if head < NORMED and LATE:
        even, odd = _normed_pairs(even, odd, norm + head * WIDTH + 2 * pair, inside, WIDTH, eps)
    if STRETCHED:
        factor = tl.load(stretch + row, mask=head < HEADS, other=1.0)
        even, odd = even * factor, odd * factor
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
    parts: Tensor,
    heads: tuple[int, int],
    turns: RowTurns | None,
    norm: Tensor | None,
    late: bool,
    pool: tuple[Tensor, Tensor],
    slots: Tensor,
    eps: float,
) -> Tensor:
    """Queries ``(rows, heads, width)`` of a layer, in the type of its keys; the rows' keys and values are written into
    ``slots`` (int64, ``(rows,)``) of its ``pool``, keys and values ``(kv_heads, slots, width)``.

    ``parts``: ``(splits, rows, columns)``, which begin with the heads of queries, keys and values. ``heads``: of
    queries, and of keys (0: the layer reads another's). ``norm``: weights ``(n, width)`` of the first n heads,
    which are normed behind their rotation if that is ``late``.
    """
    (splits, rows, columns), (count, own), (keys, values) = parts.shape, heads, pool
    width = keys.shape[2]
    assert keys.stride() == values.stride() and keys.stride()[1:] == (width, 1) and parts.is_contiguous()
    queries = keys.new_empty((rows, count, width))
    pairs = parts if turns is None else torch.view_as_real(turns.pairs)
    stretch = None if turns is None else turns.stretch
    with torch.cuda.device_of(parts):
        _turn[(rows, count + 2 * own)](
            parts, pairs, parts if stretch is None else stretch, parts if norm is None else norm,
            queries, keys, values, slots, rows, columns, keys.stride(0), eps,
            HEADS=count, KV_HEADS=own, WIDTH=width, HALF=triton.next_power_of_2(width // 2),
            PAIRS=0 if turns is None else turns.pairs.shape[1], SPLITS=splits,
            NORMED=0 if norm is None else len(norm), LATE=late,
            STRETCHED=stretch is not None, num_warps=1,
        )  # fmt: skip
    return queries
