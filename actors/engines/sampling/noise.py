"""Shared noise: the Gumbel variable ``G(seed, position, token)`` that target and draft both add to their logits.

``argmax(logits / T + G)`` is a sample of ``softmax(logits / T)`` (Gumbel, 1954); because the noise is a hash of
``(seed, position, token)`` instead of a generator's state, target and draft see the same one and tend to pick the
same token (Gumbel coupling; Daliri, Musco, Suresh, arXiv 2408.07978), and a resumed request goes on with it.

    k0, k1 = the two halves of splitmix64's output function over (seed, position)         on the host
    h      = mix(token * GOLDEN + k0, k1) >> 1                                            31 bits, per token
    u      = (float32(h) + 0.5) * 2**-31, at most 1 - 2**-24
    G      = -log(-log1p(-u))                                                             within [-2.9, 22.2]

``mix`` is murmur3's 32-bit finaliser with better constants (lowbias32: Wellons, "Prospecting for hash functions",
2018), with the second key folded in between its two multiplications. Everything before ``u`` is integer arithmetic
modulo 2**32 and so gives the same bits everywhere; the logarithms may differ between devices in the last place.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_M64 = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15  # splitmix64's increment: 2**64 / golden ratio
_GOLDEN, _MUL1, _MUL2 = 0x9E3779B1, 0x7FEB352D, 0x846CA68B
_BELOW_ONE = 1.0 - 2.0**-24
_CACHED = 1 << 17  # elements that the passes over one block keep in a core's L2 cache


Keys = tuple[int, int]


def _mix64(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _M64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _M64
    return z ^ (z >> 31)


def keys(seed: int, position: int) -> Keys:
    """The two unsigned 32-bit keys of a text position; ``seed`` counts modulo 2**64."""
    z = _mix64((_mix64((seed + _STEP) & _M64) + (position + 1) * _STEP) & _M64)
    return z >> 32, z & 0xFFFFFFFF


def _signed(x: int) -> int:
    return x - (1 << 32) if x >= 1 << 31 else x


def hash31(keyed: Sequence[Keys], tokens: int | Tensor, device: torch.device | str = "cpu") -> Tensor:
    """int32 ``(len(keyed), k)`` in [0, 2**31): the same on every device and for any selection of tokens.

    ``keyed``: :func:`keys` of every row. ``tokens``: a vocabulary size, for ids 0 .. size - 1, or ids of shape ``(k,)``
    or ``(len(keyed), k)``.
    """
    if isinstance(tokens, int):
        ids = torch.arange(tokens, dtype=torch.int32, device=device)
    else:
        ids = tokens.to(device=device, dtype=torch.int32)
    key = torch.tensor([[_signed(a), _signed(b)] for a, b in keyed], dtype=torch.int32).view(-1, 2)
    key = key.to(device, non_blocking=True)  # a blocking copy would wait for the running forward
    x = ids * _signed(_GOLDEN) + key[:, :1]
    part = torch.empty_like(x)

    def fold(shift: int) -> None:  # x ^= x >> shift, logically: int32 shifts drag the sign along
        torch.bitwise_right_shift(x, shift, out=part)
        part.bitwise_and_((1 << (32 - shift)) - 1)
        x.bitwise_xor_(part)

    fold(16)
    x.mul_(_MUL1)
    fold(15)
    x.bitwise_xor_(key[:, 1:])
    x.mul_(_signed(_MUL2))
    fold(16)
    return x.bitwise_right_shift_(1).bitwise_and_(0x7FFFFFFF)


def gumbel(seed: int, positions: Sequence[int], tokens: int | Tensor, device: torch.device | str = "cpu") -> Tensor:
    """float32 ``(len(positions), k)`` of standard Gumbel noise; always finite. ``tokens`` as in :func:`hash31`."""
    return gumbel_of([keys(seed, position) for position in positions], tokens, device)


def gumbel_of(keyed: Sequence[Keys], tokens: int | Tensor, device: torch.device | str = "cpu") -> Tensor:
    """:func:`gumbel` of rows of any seeds. A GPU is told once for all rows; a CPU takes as many as its cache holds."""
    rows = max(1, _CACHED // max(1, tokens if isinstance(tokens, int) else tokens.shape[-1]))
    if len(keyed) <= rows or torch.device(device).type != "cpu":
        return _gumbel(hash31(keyed, tokens, device))
    blocks = []
    for start in range(0, len(keyed), rows):
        block = slice(start, start + rows)
        ids = tokens[block] if isinstance(tokens, Tensor) and tokens.dim() == 2 else tokens
        blocks.append(_gumbel(hash31(keyed[block], ids, device)))
    return torch.cat(blocks)


def _gumbel(h: Tensor) -> Tensor:
    u = h.to(torch.float32).add_(0.5).mul_(2.0**-31).clamp_(max=_BELOW_ONE)
    return u.neg_().log1p_().neg_().log_().neg_()
