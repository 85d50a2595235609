"""The order in which a matrix's rows are laid out.

Rotary embedding turns pairs ``(i, i + d/2)`` in most families; here the rows of the query and key weights are reordered
so that such pairs are neighbours. Turning a pair is then one complex multiplication. Scores do not change: queries and
keys are permuted alike.
"""

from __future__ import annotations

import torch
from torch import Tensor

from actors.engines.decoder.spec import Attention, DeltaNet, Recurrent, Scan


def head_order(attention: Attention) -> Tensor:
    """The dimensions of a head with the partners of its rotation side by side."""
    places = torch.arange(attention.width)
    turning = attention.rotation
    if turning is None or turning.neighbours:
        return places
    turned = 2 * len(turning.frequencies)
    return torch.cat([places[:turned].view(2, -1).t().reshape(-1), places[turned:]])


def qkv_order(attention: Attention) -> Tensor | None:
    """Order of the rows of queries, keys and values; None: as they are."""
    width, order = attention.width, head_order(attention)
    if attention.woven:
        return _unwoven(attention)
    beside = attention.gated and len(attention.qkv) < 4  # each head's gates follow its queries
    if order.tolist() == [*range(width)] and not beside and not attention.head_gates:
        return None
    kv_heads = attention.kv_heads if attention.shares is None else 0
    apart, queries = (2 if beside else 1) * width, torch.arange(attention.heads)[:, None]
    keys = torch.arange(kv_heads)[:, None] * width + attention.heads * apart
    values = torch.arange(kv_heads * width) + attention.heads * apart + kv_heads * width
    gates = queries * apart + width + torch.arange(width) if beside else values[:0]
    if attention.gated and not beside:
        own = attention.heads if attention.head_gates else attention.heads * width
        gates = torch.arange(own).repeat_interleave(attention.heads * width // own)
        gates = gates + (attention.heads + 2 * kv_heads) * width
    heads = [(queries * apart + order).reshape(-1), (keys + order).reshape(-1)]
    return torch.cat([*heads, values, gates.reshape(-1)])


def _unwoven(attention: Attention) -> Tensor:
    """Row order of a matrix that holds queries, key and value of one head of keys, then of the next."""
    order, each = head_order(attention), attention.heads // attention.kv_heads
    rows = torch.arange((attention.heads + 2 * attention.kv_heads) * attention.width)
    rows = rows.view(attention.kv_heads, -1, attention.width)
    queries, keys, values = torch.split(rows, [each, 1, 1], 1)
    return torch.cat([queries[..., order].reshape(-1), keys[..., order].reshape(-1), values.reshape(-1)])


def recurrent_order(mixer: Recurrent) -> Tensor | None:
    """Order of the rows of all inputs; None: as they are."""
    shared, inner = mixer.groups * mixer.keys, mixer.inner
    if isinstance(mixer, Scan):
        every = torch.arange(2 * inner + 2 * shared + mixer.heads)
        gate, values, keys, queries, steps = torch.split(every, [inner, inner, shared, shared, mixer.heads])
        return torch.cat([queries, keys, values, gate, steps])
    if isinstance(mixer, DeltaNet) and mixer.woven:
        own = inner // mixer.groups
        whole = torch.arange(2 * shared + 2 * inner).view(mixer.groups, -1)
        parts = torch.split(whole, [mixer.keys, mixer.keys, own, own], 1)
        numbers = torch.arange(2 * mixer.heads).view(mixer.groups, 2, -1) + 2 * shared + 2 * inner
        return torch.cat([part.reshape(-1) for part in (*parts, *numbers.unbind(1))])
    return None
