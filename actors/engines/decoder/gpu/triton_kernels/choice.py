"""The token that a row's logits and its noise (:mod:`actors.engines.sampling.noise`) give, in two launches."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import libdevice

BLOCK = 1024  # tokens of a program
_GOLDEN, _MUL1, _MUL2 = tl.constexpr(0x9E3779B1), tl.constexpr(0x7FEB352D), tl.constexpr(0x846CA68B)
_BELOW_ONE = tl.constexpr(1.0 - 2.0**-24)


@triton.jit
def _noise(token, key, other):
    """Gumbel's, by the logarithms that torch's own kernels take: Triton's are less exact."""
    x = token.to(tl.uint32) * _GOLDEN + key.to(tl.uint32, bitcast=True)
    x = x ^ (x >> 16)
    x = x * _MUL1
    x = x ^ (x >> 15) ^ other.to(tl.uint32, bitcast=True)
    x = x * _MUL2
    x = (x ^ (x >> 16)) >> 1
    u = tl.minimum((x.to(tl.float32) + 0.5) * (2.0**-31), _BELOW_ONE)
    return -libdevice.log(-libdevice.log1p(-u))


@triton.jit
def _choose(logits, told, tops, ids, vocabulary, apart, BLOCK: tl.constexpr):
    """The best of some tokens of a row. ``told``: two keys, and the bits of a factor of the row's logits."""
    row, block = tl.program_id(0), tl.program_id(1)
    token = block * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(logits + row.to(tl.int64) * apart + token, mask=token < vocabulary, other=-float("inf"))
    heat = tl.load(told + 3 * row + 2).to(tl.float32, bitcast=True)
    noise = _noise(token, tl.load(told + 3 * row), tl.load(told + 3 * row + 1))
    scaled = tl.inline_asm_elementwise(  # rounded before noise is added, as torch does
        "mul.rn.f32 $0, $1, $2;", "=f,f,f", [value, heat], dtype=tl.float32, is_pure=True, pack=1
    )
    value = scaled + noise
    value = tl.where(value < float("inf"), value, float("inf"))  # NaN too
    top, at = tl.max(value, 0, return_indices=True, return_indices_tie_break_left=True)
    place = row * tl.num_programs(1) + block
    tl.store(tops + place, top)
    tl.store(ids + place, block * BLOCK + at)


@triton.jit
def _join(tops, ids, out, parts, PARTS: tl.constexpr):
    """The best of a row's parts, of which the first wins a tie; -1: a logit is no number."""
    row, part = tl.program_id(0), tl.arange(0, PARTS)
    top = tl.load(tops + row * parts + part, mask=part < parts, other=-float("inf"))
    best, at = tl.max(top, 0, return_indices=True, return_indices_tie_break_left=True)
    tl.store(out + row, tl.where(best < float("inf"), tl.load(ids + row * parts + at), -1).to(tl.int64))


def choose(logits: Tensor, told: Tensor) -> Tensor:
    """int64 ``(rows,)`` of float32 ``logits`` ``(rows, vocabulary)``; ``told``: int32 ``(rows, 3)``, see
    :func:`_choose`."""
    rows, vocabulary = logits.shape
    parts = triton.cdiv(vocabulary, BLOCK)
    tops, ids = logits.new_empty((rows, parts)), told.new_empty((rows, parts))
    out = torch.empty(rows, dtype=torch.int64, device=logits.device)
    assert logits.stride(1) == 1 and told.is_contiguous()
    with torch.cuda.device_of(logits):  # Triton launches on the current device
        _choose[(rows, parts)](logits, told, tops, ids, vocabulary, logits.stride(0), BLOCK=BLOCK)
        _join[(rows,)](tops, ids, out, parts, PARTS=triton.next_power_of_2(parts))
    return out
