"""A job of a forward, a product or a layer's attention, and the pieces that it has for threads to share."""

from __future__ import annotations

import numpy as np

from actors.engines.decoder.cpu.atomics import array_at
from actors.engines.decoder.cpu.linking import linked
from actors.engines.decoder.cpu.records import JOB
from actors.engines.decoder.cpu.tile import WIDE_PANEL
from actors.engines.decoder.cpu.work_stealing import APART
from actors.engines.weights.formats import PANEL

# places in the state: what threads write to has cache lines of its own; TAKE: the address of what takes pieces;
# ROUNDED: of room for a product's input in bfloat16; TODO: where their ranges are
STOP, AWAKE, TAKE, ROUNDED, THREADS, DONE, TODO = 0, 1, 2, 3, 4, APART, 2 * APART
PIECE = 96 // WIDE_PANEL  # panels: the bundled target's smallest product has four pieces
BLOCK_PIECE = 96 // PANEL


@linked
def state_at(place):
    """The whole state of a team, at its address."""
    threads = array_at(place, TODO, np.int64)[THREADS]
    return array_at(place, TODO + APART * threads, np.int64)


@linked
def pieces_of(job):
    if job.form:
        count, part = max(1, job.panels // BLOCK_PIECE), job
        while part.more != 0:
            part = array_at(part.more, 1, JOB)[0]
            count += max(1, part.panels // BLOCK_PIECE)
        return count
    return job.requests * job.heads if job.bits == 0 else max(1, job.panels // PIECE)
