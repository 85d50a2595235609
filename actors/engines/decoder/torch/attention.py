"""Attention of a flat batch, with bits that depend on what a row sees and on nothing else.

Speculation is bit-exact only if a token's logits depend neither on the number of rows in its batch nor on the span of
slots. Three measures make it so; each was measured, and ``tests/engines/test_attention.py`` sweeps lengths, rows and
spans:

- queries are padded to ``MIN_ROWS`` rows: for fewer, BLAS uses gemv, which adds up in another order;
- spans are multiples of ``SPAN``, so that vectorised reductions have no scalar tail;
- probabilities are multiplied with values in blocks of ``BLOCK`` keys at fixed offsets, added one after the other in
  float32. A matrix product splits a long inner dimension by its length: MKL adds up 256 keys in another order than 192
  keys and 64 zeros; with 128 and 64 it does not.

Masked slots contribute an exact zero, so their number does not matter. The branches of a window attend to copies
(:mod:`actors.engines.decoder.torch.branches`), with scores and blocks after the span's.

Requests lie anywhere in the pool, so each has matrix products of its own. All else (scaling, masks, softmax, the
order of rows) is done once for all requests with the same span. What is the same in every layer is prepared once a
forward.

Pieces of a prompt in whole chunks have more rows than any round, and need no such care: a prompt is always cut in the
same way from its first token on, so its shapes repeat, and so do its bits. They go to torch's own attention
(:func:`attend_prompt`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from actors.engines.cache.pool import KVPool, LayerView
from actors.engines.decoder.torch.branches import BLOCK

MIN_ROWS = 4  # see above
MAX_ROUND = 64  # rows of the largest window: more rows are a chunk of a prompt


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive rows that attend to the same slots ``base .. base + span`` of the pool, and to copies of others."""

    base: int
    span: int
    mask: Tensor  # (rows, span + slots of the copies), on the pool's device: 0 where visible, -inf elsewhere
    copies: NDArray[np.int64] | None = None  # (branches, slots): see :class:`View`


class PoolAttention:
    """The attention of one forward over a pool: made once, called in every layer."""

    def __init__(
        self,
        pool: KVPool,
        stretches: Sequence[Stretch],
        heads: tuple[int, int],
        scale: float,
        softcap: float | None = None,
        exact: bool = True,
    ) -> None:
        """``heads``: of queries, and of keys. ``scale``: of the scores; ``softcap``: see transformers' Gemma 2.
        ``exact``: with the bits promised above; else with as few operations as possible."""
        (self.heads, kv_heads), self.scale, self.softcap = heads, scale, softcap
        least = -(-MIN_ROWS * kv_heads // self.heads) if exact else 1
        shapes: dict[tuple[int, ...], list[tuple[int, Stretch]]] = {}
        start = 0
        for stretch in stretches:
            rows = len(stretch.mask)
            copies = (0, 0) if stretch.copies is None else stretch.copies.shape
            shapes.setdefault((rows, stretch.span, *copies), []).append((start, stretch))
            start += rows
        self._rows = start
        self._groups = [
            _StretchGroup(pool, members, max(rows, least), start, BLOCK if exact else span)
            for (rows, span, *_), members in shapes.items()
        ]

    def __call__(self, layer: int, queries: Tensor, sinks: Tensor | None = None) -> Tensor:
        """``(rows, heads * width)`` from queries ``(rows, heads, width)``, with keys and values in the pool.
        ``sinks`` ``(heads,)``: a logit of each head that takes part in the softmax and has no value (gpt-oss)."""
        parts = [group.attend(layer, queries, self, sinks) for group in self._groups]
        if len(parts) == 1:
            return parts[0]
        out = queries.new_empty(self._rows, parts[0].shape[1])
        for group, part in zip(self._groups, parts, strict=True):
            assert group.places is not None
            out.index_copy_(0, group.places, part)
        return out


class _StretchGroup:
    """Stretches with the same number of rows and the same span, which share one softmax."""

    def __init__(self, pool: KVPool, members: Sequence[tuple[int, Stretch]], rows: int, total: int, block: int) -> None:
        """``members``: each with the index of its first row. ``rows``: what each is padded to. ``total``: rows of the
        batch. ``block``: slots of a block of values."""
        span, own_rows = members[0][1].span, len(members[0][1].mask)
        self.own_rows, self.rows = own_rows, rows
        whole = len(members) * own_rows == total
        self.places = self.padded = None
        device = pool.device
        if not whole or rows > own_rows:
            own = np.array([start for start, _ in members])[:, None]
            self.places = None if whole else torch.from_numpy((own + np.arange(own_rows)).ravel()).to(device)
            self.padded = torch.from_numpy((own + np.minimum(np.arange(rows), own_rows - 1)).ravel()).to(device)
        masks = [stretch.mask if rows == own_rows else _lengthened(stretch.mask, rows) for _, stretch in members]
        self.mask = (torch.stack(masks) if len(masks) > 1 else masks[0][None])[:, None, None]
        self.views = [pool.views(stretch.base, span, block) for _, stretch in members]
        self.copied = [
            torch.from_numpy(stretch.copies).to(device)
            for _, stretch in members
            if stretch.copies is not None and stretch.copies.size
        ]
        self._pool = pool

    def attend(self, layer: int, queries: Tensor, shared: PoolAttention, sinks: Tensor | None) -> Tensor:
        """The group's part of :meth:`PoolAttention.__call__`: ``(its rows, heads * width)``."""
        if self.padded is not None:
            queries = queries.index_select(0, self.padded)
        views: list[LayerView] = [each[layer] for each in self.views]
        if self.copied:
            views = [self._with_copies(layer, *each) for each in zip(views, self.copied, strict=True)]
        count, kv_heads, width = len(views), views[0][0][0].shape[0], queries.shape[2]
        split = queries.view(count, self.rows, kv_heads, shared.heads // kv_heads, width).permute(0, 2, 3, 1, 4)
        if self.rows > MAX_ROUND and shared.softcap is None and sinks is None:
            seen = _attend_prompts(split, views, self.mask, shared.scale)
        else:
            seen = _attend(split, views, self.mask, shared.scale, shared.softcap, sinks)
        return seen.permute(0, 3, 1, 2, 4)[:, : self.own_rows].reshape(count * self.own_rows, -1)

    def _with_copies(self, layer: int, view: LayerView, slots: Tensor) -> LayerView:
        keys, values = self._pool.gather(layer, slots.flatten())
        blocks = torch.split(values.view(len(values), *slots.shape, -1), BLOCK, 2)
        return (*view[0], keys.transpose(1, 2)), (*view[1], *blocks)


def _lengthened(mask: Tensor, rows: int) -> Tensor:
    return torch.cat([mask, mask[-1:].expand(rows - len(mask), -1)])


def _attend(
    queries: Tensor,
    views: Sequence[LayerView],
    mask: Tensor,
    scale: float,
    softcap: float | None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attention of n stretches, of the shape of ``queries`` ``(n, kv_heads, group, rows, width)``.

    For each of n: keys in parts ``(kv_heads, width, part of the span)``, and values in blocks as :func:`_weighed` takes
    them. ``mask``: ``(n, 1, 1, rows, span)``. ``sinks``: ``(heads,)``."""
    dtype = queries.dtype
    if queries.device.type == "cpu" and dtype != torch.float32:  # 16 bits are 5 times slower without instructions
        queries = queries.float()
        views = [(tuple(map(Tensor.float, keys)), tuple(map(Tensor.float, values))) for keys, values in views]
    keys, values = zip(*views, strict=True)
    count, kv_heads, group, rows, width = queries.shape
    stacked = queries.reshape(count, kv_heads, group * rows, width)
    if count == 1:
        scores = _scored(stacked[0], keys[0])
    else:
        scores = stacked.new_empty(count, kv_heads, group * rows, mask.shape[-1])
        for query, key, out in zip(stacked.unbind(), keys, scores.unbind(), strict=True):
            _scored(query, key, out)
    apart = scores.view(count, kv_heads, group, rows, -1)
    if softcap is None:
        torch.add(mask, apart, alpha=scale, out=apart)
    else:
        apart.mul_(scale / softcap).tanh_().mul_(softcap).add_(mask)
    weights = torch.softmax(scores, -1, dtype=torch.float32)
    if sinks is not None:
        weights.view(apart.shape).mul_(_left_by(sinks.view(kv_heads, group, 1, 1), apart, weights.view(apart.shape)))
    weights = weights.to(scores.dtype)
    if count == 1:
        seen = _weighed(weights, values[0])
    else:
        seen = torch.stack([_weighed(*each) for each in zip(weights.unbind(), values, strict=True)])
    return seen.to(dtype).view(queries.shape)


def _scored(query: Tensor, parts: Sequence[Tensor], out: Tensor | None = None) -> Tensor:
    if len(parts) == 1:
        return torch.bmm(query, parts[0], out=out)
    return torch.cat([torch.bmm(query, part) for part in parts], -1, out=out)


def _left_by(sinks: Tensor, scores: Tensor, weights: Tensor) -> Tensor:
    """What sinks leave of the softmax ``weights``, as a factor of each row. The sum of the exponentials follows from
    the largest weight; summing them again would add up in an order that depends on the span."""
    taken = torch.exp(sinks.float() - scores.float().amax(-1, keepdim=True)) * weights.amax(-1, keepdim=True)
    return 1.0 / (1.0 + taken)


def _weighed(weights: Tensor, blocks: Sequence[Tensor]) -> Tensor:
    """float32 ``(kv_heads, rows, width)``: the sum over blocks of values ``(kv_heads, up to BLOCK, width)``, in order.
    Blocks of copies are ``(kv_heads, branches, up to BLOCK, width)``: a row sees one branch, and the others add
    zeros."""
    if len(blocks) == 1:
        return torch.bmm(weights, blocks[0]).float()
    own = [block for block in blocks if block.dim() == 3]
    parts = list(torch.split(weights[:, :, : sum(block.shape[1] for block in own)], BLOCK, 2))
    if copied := blocks[len(own) :]:
        branches = weights[:, :, sum(part.shape[2] for part in parts) :]
        branches = branches.view(*weights.shape[:2], copied[0].shape[1], -1).transpose(1, 2)
        parts += torch.split(branches, BLOCK, 3)
    out = torch.bmm(parts[0], blocks[0]).float()
    for part, values in zip(parts[1:], blocks[1:], strict=True):
        if values.dim() == 4:
            out += torch.matmul(part, values).sum(1)
        elif part.dtype == torch.float32:
            out.baddbmm_(part, values)
        else:
            out += torch.bmm(part, values)
    return out


def _attend_prompts(queries: Tensor, views: Sequence[LayerView], mask: Tensor, scale: float) -> Tensor:
    seen = []
    for query, ([key], blocks), bias in zip(queries.unbind(), views, mask.unbind(), strict=True):
        flat = query.reshape(-1, *query.shape[2:])
        value = blocks[0] if len(blocks) == 1 else torch.cat(list(blocks), 1)
        seen.append(attend_prompt(flat, key.transpose(1, 2), value, bias[0, 0], scale).view(query.shape))
    return torch.stack(seen)


def attend_prompt(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Attention of a single stretch by torch's own kernel, which never stores all scores at once. Its bits depend on
    the shapes.

    ``(heads, rows, width)`` from query ``(heads, rows, width)``, keys and values ``(kv_heads, span, width)`` and a mask
    ``(rows, span)``, which is added, or true where a row sees; None: rows see the slots up to their own."""
    dtype = query.dtype
    if query.device.type == "cpu" and dtype != torch.float32:
        query, keys, values = query.float(), keys.float(), values.float()
    heads, rows, width = query.shape
    kv_heads = keys.shape[0]
    group = heads // kv_heads  # not every kernel of torch's knows grouped queries
    out = functional.scaled_dot_product_attention(
        query.reshape(kv_heads, group, rows, width),
        keys[:, None].expand(-1, group, -1, -1),
        values[:, None].expand(-1, group, -1, -1),
        attn_mask=mask if mask is None or mask.dtype == torch.bool else mask.to(query.dtype),
        is_causal=mask is None,
        scale=scale,
    )
    return out.to(dtype).reshape(heads, rows, width)
