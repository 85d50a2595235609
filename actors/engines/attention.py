"""Attention of one segment, with bits that depend on what a row sees and on nothing else.

Speculation is bit-exact only if a token's logits do not change with the number of rows computed beside it or with
the span of slots looked at (DESIGN section 3). Three measures make it so; each was measured, and
``tests/engines/test_attention.py`` sweeps lengths, rows and spans:

- queries are padded to ``MIN_ROWS`` rows: BLAS takes another path (gemv) for fewer, which adds in another order;
- spans are multiples of ``SPAN_STEP``, so that vectorised reductions have no scalar tail;
- probabilities times values is done in blocks of ``BLOCK`` keys at fixed offsets, added one after the other in
  float32, because a matrix product chooses how to split a long inner dimension by its length (with MKL 256 keys are
  added in another order than 192 and a rest of zeros; 128 and 64 are not).

Masked slots contribute an exact zero, so it does not matter how many of them there are.

Chunks of a prompt have more rows than any round, and need no such care: a prompt is always cut alike from its first
token on, so its shapes and hence its bits repeat. They go to the library's attention (:func:`attend_prompt`).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

MIN_ROWS = 4
SPAN_STEP = 64
BLOCK = 128
MAX_ROUND = 64  # rows of the largest window: more are a chunk of a prompt


def span_for(slots: int) -> int:
    """The span that covers that many slots."""
    return -(-slots // SPAN_STEP) * SPAN_STEP


def attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor,
    scale: float,
    softcap: float | None = None,
) -> Tensor:
    """``(heads, rows, d_v)`` from query ``(heads, rows, d)``, keys ``(kv_heads, span, d)``, values ``(…, d_v)``.

    ``mask``: ``(rows, span)``, 0 where visible and -inf elsewhere, float32 or the query's dtype.
    """
    dtype = query.dtype
    if query.device.type == "cpu" and dtype != torch.float32:  # without its own instructions bfloat16 is 5 times slower
        query, keys, values = query.float(), keys.float(), values.float()
    heads, rows, width = query.shape
    if rows > MAX_ROUND and softcap is None:
        return attend_prompt(query, keys, values, mask, scale).to(dtype)
    kv_heads, span, _ = keys.shape
    depth = values.shape[2]
    group = heads // kv_heads
    padded = max(rows, -(-MIN_ROWS // group))
    if padded > rows:
        query = torch.cat([query, query[:, -1:].expand(-1, padded - rows, -1)], dim=1)
        mask = torch.cat([mask, mask[-1:].expand(padded - rows, -1)])
    stacked = query.reshape(kv_heads, group * padded, width)
    scores = torch.bmm(stacked, keys.transpose(1, 2)).mul_(scale)
    if softcap is not None:
        scores = scores.div_(softcap).tanh_().mul_(softcap)
    scores = scores.view(kv_heads, group, padded, span).add_(mask).view(kv_heads, group * padded, span)
    probabilities = torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    out = torch.bmm(probabilities[:, :, :BLOCK], values[:, :BLOCK]).float()
    for start in range(BLOCK, span, BLOCK):
        out += torch.bmm(probabilities[:, :, start : start + BLOCK], values[:, start : start + BLOCK])
    return out.to(dtype).view(heads, padded, depth)[:, :rows]


def attend_prompt(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float) -> Tensor:
    """:func:`attend` by torch's own kernel, which never holds all scores at once. Bits depend on the shapes."""
    heads, rows, width = query.shape
    kv_heads = keys.shape[0]
    group = heads // kv_heads
    out = functional.scaled_dot_product_attention(
        query.reshape(kv_heads, group, rows, width),
        keys[:, None].expand(-1, group, -1, -1),
        values[:, None].expand(-1, group, -1, -1),
        attn_mask=mask.to(query.dtype),
        scale=scale,
    )
    return out.view(heads, rows, values.shape[2])
