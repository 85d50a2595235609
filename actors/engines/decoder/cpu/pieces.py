"""A piece of a job, computed. What takes pieces is called by its address, so it is compiled by itself."""

from __future__ import annotations

import numpy as np
from numba import cfunc

from actors.engines.decoder.cpu.atomics import add, array_at
from actors.engines.decoder.cpu.blocks import BlockPanel, GroupedRows, grouped_words, multiply_blocks, panel_bytes
from actors.engines.decoder.cpu.jobs import (
    BLOCK_PIECE,
    DONE,
    PIECE,
    THREADS,
    TODO,
    pieces_of,
    state_at,
)
from actors.engines.decoder.cpu.linking import kept, linked
from actors.engines.decoder.cpu.pool_attention import Heads, QueryRows, Sight, attend_piece
from actors.engines.decoder.cpu.products import PanelRange, multiply_panels
from actors.engines.decoder.cpu.records import JOB, WALK
from actors.engines.decoder.cpu.state_walk import walk_piece
from actors.engines.decoder.cpu.tile import BESIDE, ROWS, WIDE_PANEL, InputRows, Sums
from actors.engines.decoder.cpu.work_stealing import pop, steal_half
from actors.engines.weights.formats import PANEL


@linked
def _attend(job, piece, coming, me, out):
    rows = QueryRows(array_at(job.x, job.rows * job.columns, np.float32), job.columns, out, job.apart)
    sight = Sight(
        array_at(job.sees, job.rows * job.room, np.int64),
        job.room,
        array_at(job.counts, job.rows, np.int64),
        array_at(job.shares, job.rows, np.int64),
        array_at(job.ends, job.requests, np.int64),
        array_at(job.skips, job.rows, np.int64),
    )
    scores = array_at(job.scores + 4 * me * job.own_scores, job.own_scores, np.float32)
    sinks = array_at(job.sinks, job.apart // job.width if job.sinks else 0, np.float32)
    numbers, pool = (job.heads, job.width, sinks, job.scale, job.cap), job.heads * job.slots * job.width
    if job.half:
        keys, values = array_at(job.keys, pool, np.int16), array_at(job.values, pool, np.int16)
        attend_piece(piece, coming, rows, Heads(keys, values, *numbers), sight, scores)
    else:
        whole_keys, whole_values = array_at(job.keys, pool, np.float32), array_at(job.values, pool, np.float32)
        attend_piece(piece, coming, rows, Heads(whole_keys, whole_values, *numbers), sight, scores)


@linked
def _multiply(job, panel, number, out):
    """Multiply ``number`` panels. The last panel of a matrix ends with its last output, so it may share some outputs
    with the panel before."""
    rows, size, pairs = job.rows, job.columns, job.columns // 2
    sums = Sums(out, min(panel * WIDE_PANEL, job.apart - WIDE_PANEL), job.apart, False)
    count = job.panels * size * WIDE_PANEL
    numbers = InputRows(array_at(job.x, rows * size, np.float32), 0, size, rows)
    paired = InputRows(array_at(job.x, rows * pairs, np.uint32), 0, pairs, rows)
    words = array_at(job.weights, count // 2, np.uint32)
    if job.half:
        multiply_panels(paired, PanelRange(words, 1, panel, number), sums)
    elif job.bits == 32:
        whole = array_at(job.weights, count, np.float32)
        multiply_panels(numbers, PanelRange(whole, 1, panel, number), sums)
    elif job.pairs:
        multiply_panels(numbers, PanelRange(words, 2, panel, number), sums)
    else:
        halves = array_at(job.weights, count, np.uint16)
        multiply_panels(numbers, PanelRange(halves, 1, panel, number), sums)


@linked
def _compute_blocks(job, piece):
    """Compute a piece of a product in blocks, in whichever part it lies."""
    part = job
    while piece >= max(1, part.panels // BLOCK_PIECE):
        piece -= max(1, part.panels // BLOCK_PIECE)
        part = array_at(part.more, 1, JOB)[0]
    whole, groups = piece + 1 < max(1, part.panels // BLOCK_PIECE), job.columns // 32
    size, inputs = panel_bytes(part.form, groups), GroupedRows(job.x, grouped_words(job.columns))
    out = array_at(job.out, job.rows * job.apart, np.float32)
    for panel in range(BLOCK_PIECE * piece, BLOCK_PIECE * (piece + 1) if whole else part.panels):
        to = part.first + min(panel * PANEL, part.own - PANEL)
        weights = BlockPanel(part.weights + panel * size, part.form, groups)
        multiply_blocks(job.rows, inputs, weights, Sums(out, to, job.apart, False))


@linked
def _compute(job, piece, following, me):
    """Compute one piece. ``following``: the piece that this thread takes next; negative: not known."""
    out = array_at(job.out, job.rows * job.apart, np.float32)
    if job.walk != 0:
        walk_piece(array_at(job.walk, 1, WALK)[0], piece, out, job.apart, job.scores + 4 * me * job.own_scores)
        return
    if job.bits == 0:
        _attend(job, piece, following, me, out)
        return
    if job.form:
        _compute_blocks(job, piece)
        return
    # one thread computes the last two panels, which may have outputs in common
    panel, end = PIECE * piece, job.panels if piece + 1 == pieces_of(job) else PIECE * (piece + 1)
    most = BESIDE[min(job.rows, ROWS)]
    while panel < end:
        # the last panel alone: its overlap with the one before is computed again
        number = max(1, min(most, min(end, job.panels - 1) - panel))
        _multiply(job, panel, number, out)
        panel += number


@kept("void(int64, int64, int64)", by=cfunc)
def take(jobs, states, me):
    """Compute pieces until all are taken. A job's parts are read after a piece of it is taken, so they belong to this
    job."""
    job, state = array_at(jobs, 1, JOB), state_at(states)
    done, other = 0, 0
    while other < state[THREADS]:
        piece, following = pop(state, TODO, me)
        while piece >= 0:
            _compute(job[0], piece, following, me)
            done += 1
            piece, following = pop(state, TODO, me)
        if not steal_half(state, TODO, me, other):
            other += 1
    add(state, DONE, done)
