"""Recurrent layers of all texts of a round: the convolution before their states, and the states.

A row goes on from its parent's state, so that its bits are those of plain decoding in any company. Values of a state do
not depend on one another: a program has some values of one head. What each reads and writes is data, see
:class:`actors.engines.compute.states.Indices`, so that one recording serves all texts.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from actors.engines.compute.operands import Steps
from actors.engines.compute.states import FIELDS, GO_ON, TEXT, Indices, LayerMemory, rooms_of
from actors.engines.decoder.layout import RecurrentWeights
from actors.engines.decoder.spec import CONVOLUTION, DELTA, Recurrent

TILE = 16  # values of a program
CHANNELS = 512  # channels of a program


@triton.jit
def _input(number, rows, pool, channel, inside, CHANNELS: tl.constexpr):
    """An input by its number: a row of the round, or an input of the pool."""
    own = tl.load(rows + (-1 - number) * CHANNELS + channel, mask=inside & (number < 0), other=0.0)
    return tl.where(
        number < 0, own, tl.load(pool + number * CHANNELS + channel, mask=inside & (number >= 0), other=0.0)
    )


@triton.jit(do_not_specialize=["first"])
def _convolve(
    rows, pool, taps, places, weights, bias, out, first,
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr, PAST: tl.constexpr, BIASED: tl.constexpr, BENT: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < CHANNELS
    made = tl.zeros([BLOCK], tl.float32)
    if BIASED:
        made = tl.load(bias + channel, mask=inside, other=0.0)
    for tap in tl.static_range(PAST):
        number = tl.load(taps + row * PAST + tap).to(tl.int64)
        factor = tl.load(weights + tap * CHANNELS + channel, mask=inside, other=0.0)
        made += _input(number, rows, pool, channel, inside, CHANNELS) * factor
    own = tl.load(rows + row * CHANNELS + channel, mask=inside, other=0.0)
    made += own * tl.load(weights + PAST * CHANNELS + channel, mask=inside, other=0.0)
    if BENT:
        made = made / (1 + tl.exp(-made))
    tl.store(out + row * CHANNELS + channel, made, mask=inside)
    place = tl.load(places + row).to(tl.int64)
    tl.store(pool + (first + place) * CHANNELS + channel, own, mask=inside & (place > 0))


@triton.jit
def _remember(
    rows, pool, texts, past,
    FIELDS: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr, PAST: tl.constexpr, FILLED: tl.constexpr,
):  # fmt: skip
    """The past inputs of a slot that is written. All are read before one is written: they move within it."""
    text = tl.program_id(0)
    written = tl.load(texts + text * FIELDS + 1).to(tl.int64)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    tap = tl.arange(0, FILLED)
    number = tl.load(past + text * PAST + tap, mask=tap < PAST, other=0).to(tl.int64)[:, None]
    inside = (channel < CHANNELS)[None, :] & (tap < PAST)[:, None] & (written > 0)
    found = _input(number, rows, pool, channel[None, :], inside, CHANNELS)
    tl.debug_barrier()
    tl.store(pool + (written * PAST + tap)[:, None] * CHANNELS + channel[None, :], found, mask=inside)


@triton.jit
def _behind(
    state, record, logarithms, at, head, group, depth, value, inside,
    GROUPS: tl.constexpr, HEADS: tl.constexpr, KEYS: tl.constexpr, VALUES: tl.constexpr, DELTA: tl.constexpr,
    EACH: tl.constexpr,
):  # fmt: skip
    """The state after a record's inputs."""
    key = tl.load(record + group * KEYS + depth, mask=depth < KEYS, other=0.0)
    record += GROUPS * KEYS
    change = tl.load(record + head * VALUES + value, mask=value < VALUES, other=0.0)
    record += HEADS * VALUES
    if EACH:
        rate = tl.load(record + head * VALUES + value, mask=value < VALUES, other=0.0)
        state = state * tl.exp(tl.load(logarithms + at, mask=inside, other=0.0) * rate[None, :])
    else:
        rate = tl.load(record + head)
        state = state * tl.load(record + HEADS + head)
    if DELTA:
        change = change - tl.sum(state * key[:, None], 0)
    return state + key[:, None] * (change * rate)[None, :]


@triton.jit
def _walk(
    queries, own, records, logarithms, states, texts, sources, kept, pending, room, out,
    FIELDS: tl.constexpr, GO_ON: tl.constexpr, TEXT: tl.constexpr, WIDTH: tl.constexpr,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, TILED: tl.constexpr, KEYS: tl.constexpr, DEPTH: tl.constexpr,
    VALUES: tl.constexpr, TILE: tl.constexpr, DELTA: tl.constexpr, EACH: tl.constexpr,
):  # fmt: skip
    """``own``: records of the round's rows; ``room``: states behind rows from which branches go on."""
    head, fields = tl.program_id(0), texts + tl.program_id(2) * FIELDS
    group = head % GROUPS if TILED else head * GROUPS // HEADS
    depth = tl.arange(0, DEPTH)
    value = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = (depth < KEYS)[:, None] & (value < VALUES)[None, :]
    at = (head * KEYS + depth)[:, None] * VALUES + value[None, :]
    text = tl.load(states + tl.load(fields).to(tl.int64) * (HEADS * KEYS * VALUES) + at, mask=inside, other=0.0)
    listed = tl.load(fields + 5)
    for index in range(listed, listed + tl.load(fields + 6)):
        record = records + tl.load(pending + index).to(tl.int64) * WIDTH
        text = _behind(
            text, record, logarithms, at, head, group, depth, value, inside, GROUPS, HEADS, KEYS, VALUES, DELTA, EACH
        )  # fmt: skip
    state = text
    first = tl.load(fields + 3)
    for row in range(first, first + tl.load(fields + 4)):
        source = tl.load(sources + row)
        branch = tl.load(
            room + source.to(tl.int64) * (HEADS * KEYS * VALUES) + at, mask=inside & (source >= 0), other=0.0
        )
        state = tl.where(source == GO_ON, state, tl.where(source == TEXT, text, branch))
        record = own + row * WIDTH
        state = _behind(
            state, record, logarithms, at, head, group, depth, value, inside, GROUPS, HEADS, KEYS, VALUES, DELTA, EACH
        )  # fmt: skip
        query = tl.load(queries + (row * GROUPS + group) * KEYS + depth, mask=depth < KEYS, other=0.0)
        tl.store(out + (row * HEADS + head) * VALUES + value, tl.sum(state * query[:, None], 0), mask=value < VALUES)
        keeping = tl.load(kept + row).to(tl.int64)
        tl.store(room + keeping * (HEADS * KEYS * VALUES) + at, state, mask=inside & (keeping >= 0))
        tl.debug_barrier()  # a later row reads it
    written = tl.load(fields + 1).to(tl.int64)
    left = tl.where(tl.load(fields + 2) > 0, state, text)
    tl.store(states + written * (HEADS * KEYS * VALUES) + at, left, mask=inside & (written > 0))


@triton.jit
def _record(own, records, places, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Rows' records go to their places, which no text has pending."""
    row, place = tl.program_id(0).to(tl.int64), tl.load(places + tl.program_id(0)).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = (at < WIDTH) & (place > 0)
    tl.store(records + place * WIDTH + at, tl.load(own + row * WIDTH + at, mask=inside, other=0.0), mask=inside)


def convolve(
    mixer: Recurrent, weights: RecurrentWeights, rows: Tensor, memory: LayerMemory, indices: Indices
) -> Tensor:
    """See :meth:`actors.engines.compute.ops_torch.TorchOps.convolve`."""
    channels, past = mixer.channels, mixer.kernel - 1
    out, blocks = torch.empty_like(rows), triton.cdiv(channels, CHANNELS)
    sizes = {"CHANNELS": channels, "BLOCK": CHANNELS, "PAST": past}
    biased = weights.bias is not None
    with torch.cuda.device_of(rows):
        _convolve[(len(rows), blocks)](
            rows, memory.inputs, indices.taps, indices.places, weights.convolution, weights.bias if biased else rows,
            out, memory.first, BIASED=biased, BENT=mixer.kind != CONVOLUTION, **sizes,
        )  # fmt: skip
        if past:
            _remember[(len(indices.texts), blocks)](
                rows, memory.inputs, indices.texts, indices.past,
                FIELDS=FIELDS, FILLED=triton.next_power_of_2(past), **sizes,
            )  # fmt: skip
    return out


def walk(mixer: Recurrent, steps: Steps, memory: LayerMemory, indices: Indices) -> Tensor:
    """See :meth:`actors.engines.compute.ops_torch.TorchOps.walk`."""
    rows, width = steps.records.shape
    out = torch.empty((rows, mixer.heads, mixer.values), device=steps.records.device)
    room = torch.empty((max(1, rooms_of(rows)), *memory.states.shape[1:]), device=out.device)
    each = memory.states if steps.logarithms is None else steps.logarithms
    with torch.cuda.device_of(out):
        _walk[(mixer.heads, triton.cdiv(mixer.values, TILE), len(indices.texts))](
            steps.queries.contiguous(), steps.records, memory.records, each.contiguous(), memory.states, indices.texts,
            indices.sources, indices.rooms, indices.pending, room, out,
            FIELDS=FIELDS, GO_ON=GO_ON, TEXT=TEXT, WIDTH=width, HEADS=mixer.heads, GROUPS=mixer.groups,
            TILED=mixer.tiled, KEYS=mixer.keys, DEPTH=triton.next_power_of_2(mixer.keys), VALUES=mixer.values,
            TILE=TILE, DELTA=mixer.kind == DELTA, EACH=steps.logarithms is not None,
        )  # fmt: skip
        _record[(rows, triton.cdiv(width, CHANNELS))](
            steps.records, memory.records, indices.places, WIDTH=width, BLOCK=CHANNELS
        )
    return out
