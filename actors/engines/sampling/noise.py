"""Shared noise (:mod:`actors.noise`) of many tokens at once, as tensors on any device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from actors.noise import BELOW_ONE, GOLDEN, MUL1, MUL2, Keys, keys


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
    x = ids * _signed(GOLDEN) + key[:, :1]
    part = torch.empty_like(x)

    def fold(shift: int) -> None:  # x ^= x >> shift, logically: int32 shifts drag the sign along
        torch.bitwise_right_shift(x, shift, out=part)
        part.bitwise_and_((1 << (32 - shift)) - 1)
        x.bitwise_xor_(part)

    fold(16)
    x.mul_(MUL1)
    fold(15)
    x.bitwise_xor_(key[:, 1:])
    x.mul_(_signed(MUL2))
    fold(16)
    return x.bitwise_right_shift_(1).bitwise_and_(0x7FFFFFFF)


def gumbel(seed: int, positions: Sequence[int], tokens: int | Tensor, device: torch.device | str = "cpu") -> Tensor:
    """float32 ``(len(positions), k)`` of standard Gumbel noise; always finite. ``tokens`` as in :func:`hash31`."""
    return gumbel_of([keys(seed, position) for position in positions], tokens, device)


def gumbel_of(keyed: Sequence[Keys], tokens: int | Tensor, device: torch.device | str = "cpu") -> Tensor:
    """:func:`gumbel` of rows of any seeds."""
    return _gumbel(hash31(keyed, tokens, device))


def _gumbel(h: Tensor) -> Tensor:
    u = h.to(torch.float32).add_(0.5).mul_(2.0**-31).clamp_(max=BELOW_ONE)
    return u.neg_().log1p_().neg_().log_().neg_()
