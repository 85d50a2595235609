"""The states of a recurrent layer: one head's, or some of its values, row by row through a window's tree or a prompt.

Values of a state do not depend on one another. A row goes on from its parent's state, so that its bits are those of
plain decoding in any company.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from actors.engines.compute.ops import Steps
from actors.engines.decoder.spec import DELTA, SELECTIVE, Recurrent

TILE = 16  # values of a program


@triton.jit(do_not_specialize=["rows", "kept"])
def _walk(
    queries, keys, values, decays, rates, parents, state, room, out, left, rows, kept,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, TILED: tl.constexpr, KEYS: tl.constexpr, DEPTH: tl.constexpr,
    VALUES: tl.constexpr, TILE: tl.constexpr, DELTA: tl.constexpr, EACH: tl.constexpr, CHAIN: tl.constexpr,
):  # fmt: skip
    """``room``: the states behind rows, for those that come later. ``CHAIN``: each row follows the one before it.
    ``EACH``: decays are logarithms, by rate, of each number of a state."""
    head = tl.program_id(0)
    group = head % GROUPS if TILED else head * GROUPS // HEADS
    depth = tl.arange(0, DEPTH)
    value = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = (depth < KEYS)[:, None] & (value < VALUES)[None, :]
    at = (head * KEYS + depth)[:, None] * VALUES + value[None, :]
    own = tl.load(state + at, mask=inside, other=0.0)
    text = own
    if EACH:
        logarithms = tl.load(decays + at, mask=inside, other=0.0)
    for row in range(rows):
        if not CHAIN:
            parent = tl.load(parents + row)
            there = room + tl.maximum(parent, 0) * (HEADS * KEYS * VALUES)
            own = tl.where(parent < 0, text, tl.load(there + at, mask=inside & (parent >= 0), other=0.0))
        key = tl.load(keys + (row * GROUPS + group) * KEYS + depth, mask=depth < KEYS, other=0.0)
        query = tl.load(queries + (row * GROUPS + group) * KEYS + depth, mask=depth < KEYS, other=0.0)
        change = tl.load(values + (row * HEADS + head) * VALUES + value, mask=value < VALUES, other=0.0)
        if EACH:
            rate = tl.load(rates + (row * HEADS + head) * VALUES + value, mask=value < VALUES, other=0.0)
            own = own * tl.exp(logarithms * rate[None, :])
        else:
            rate = tl.load(rates + row * HEADS + head)
            own = own * tl.load(decays + row * HEADS + head)
        if DELTA:
            change = change - tl.sum(own * key[:, None], 0)
        own = own + key[:, None] * (change * rate)[None, :]
        tl.store(out + (row * HEADS + head) * VALUES + value, tl.sum(own * query[:, None], 0), mask=value < VALUES)
        if not CHAIN:
            tl.store(room + row * (HEADS * KEYS * VALUES) + at, own, mask=inside)
            tl.debug_barrier()  # a later row reads it
        if row == kept:
            tl.store(left + at, own, mask=inside)


def walk(mixer: Recurrent, steps: Steps, state: Tensor, kept: int) -> tuple[Tensor, Tensor]:
    """See :meth:`actors.engines.compute.ops.Ops.walk`."""
    rows, device = len(steps.values), state.device
    chain = [*steps.parents] == [*range(-1, rows - 1)]
    parents = state if chain else torch.tensor(steps.parents, dtype=torch.int32, device=device)
    room = state if chain else torch.empty((rows, *state.shape), device=device)
    out, left = torch.empty_like(steps.values), torch.empty_like(state)
    parts = (steps.queries, steps.keys, steps.values, steps.decays, steps.rates)
    with torch.cuda.device_of(state):
        _walk[(mixer.heads, -(-mixer.values // TILE))](
            *(part.contiguous() for part in parts), parents, state.contiguous(), room, out, left, rows, kept,
            HEADS=mixer.heads, GROUPS=mixer.groups, TILED=mixer.tiled, KEYS=mixer.keys,
            DEPTH=triton.next_power_of_2(mixer.keys), VALUES=mixer.values, TILE=TILE, DELTA=mixer.kind == DELTA,
            EACH=mixer.kind == SELECTIVE, CHAIN=chain,
        )  # fmt: skip
    return out, left if kept >= 0 else state
