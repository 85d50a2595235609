"""Attention of a round for a GPU: few launches, and bits that the span cannot touch.

Softmax kernels choose by the length of the row how they add it up, and a token is computed in one span bucket when it
is speculated and in another when it is decoded plainly. Here every reduction is over ``FOLD`` slots, and the blocks'
results are added element by element in an order that blocks of zeros behind them do not change.
"""

from __future__ import annotations

import torch
from torch import Tensor

from actors.engines.decoder.torch.branches import BLOCK

FOLD = BLOCK


def attend_folded(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float, order: Tensor | None = None
) -> Tensor:
    """:func:`actors.engines.decoder.torch.attention.attend` of several streams at once, for spans that are multiples of
    ``FOLD``; sums are in float32.

    ``(streams, heads, rows, depth)`` from query ``(streams, heads, rows, width)``, keys ``(kv_heads, streams, span,
    width)``, values ``(kv_heads, streams, span, depth)`` and a mask ``(streams, rows, span)``. ``order``: int64
    ``(streams, rows, blocks)``, which blocks of slots stand for the text in each row's eyes, in the order of the text
    (None: all, as they lie). Which those are changes no bit.
    """
    streams, heads, rows, width = query.shape
    kv_heads, _, span, depth = values.shape
    group, blocks = heads // kv_heads, span // FOLD
    stacked = query.reshape(streams, kv_heads, group * rows, width).transpose(0, 1)
    stacked = stacked[:, :, None].expand(-1, -1, blocks, -1, -1)
    products = torch.bmm(
        stacked.reshape(-1, group * rows, width), keys.reshape(-1, FOLD, width).transpose(1, 2)
    ).float()
    scores = products.view(kv_heads, streams, blocks, group, rows, FOLD).mul_(scale)
    scores.add_(mask.view(streams, rows, blocks, 1, FOLD).permute(0, 2, 3, 1, 4))
    weights = scores.sub_(scores.amax((2, 5), keepdim=True)).exp_()
    # the product comes first: folding spends the weights
    parts = torch.bmm(weights.to(query.dtype).view(-1, group * rows, FOLD), values.reshape(-1, FOLD, depth)).float()
    parts = parts.view(kv_heads, streams, blocks, group, rows, depth)
    if order is not None:
        chosen = order.transpose(1, 2)[None, :, :, None, :, None]
        weights, parts = weights.take_along_dim(chosen, 2), parts.take_along_dim(chosen, 2)
    total = _fold(weights).contiguous().sum(-1, keepdim=True)
    seen = (_fold(parts) / total).to(query.dtype)
    return seen.transpose(0, 1).reshape(streams, heads, rows, depth)


def _fold(x: Tensor) -> Tensor:
    """The sum over dimension 2, in place. The upper half, from the largest power of two on, is added to the lower:
    so blocks of zeros behind the last one change no bit."""
    count = x.shape[2]
    while count > 1:
        half = 1 << (count - 1).bit_length() - 1
        x[:, :, : count - half].add_(x[:, :, half:count])
        count = half
    return x[:, :, 0]
