"""A forward's work shared out among threads, without OpenMP's pool.

A product or a layer's attention is a job of pieces that any thread may take. The caller takes pieces too and waits for
those alone that somebody has begun: a helper that the system has put aside, because a client or a socket wants its
core, costs nothing, where each of OpenMP's regions waits for all of its threads. Who computes a piece changes no bit
of it.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numba import cfunc, from_dtype, njit, types

from actors.engines.decoder.cpu.atomics import add, array_at, call, read, write
from actors.engines.decoder.cpu.between import halved
from actors.engines.decoder.cpu.block_forms import PANEL as BLOCK_PANEL
from actors.engines.decoder.cpu.block_forms import panel_bytes
from actors.engines.decoder.cpu.blocks import BlockPanel, GroupedRows, grouped_words, multiply_blocks, quantize_groups
from actors.engines.decoder.cpu.formats import BESIDE, PANEL, ROWS, TABLE, TWELVE
from actors.engines.decoder.cpu.pool_attention import Heads, QueryRows, Sight, attend_piece
from actors.engines.decoder.cpu.products import (
    ESCAPE,
    ROOM,
    PanelRange,
    add_escapes,
    multiply_packed_panels,
    multiply_panels,
)
from actors.engines.decoder.cpu.state_walk import WALK, walk_piece
from actors.engines.decoder.cpu.tile import InputRows, Sums
from actors.engines.decoder.cpu.work_stealing import APART, assign, begin_of, has_work, pop, steal_half

# places in the state: what threads write to has cache lines of its own; TAKE: the address of what takes pieces;
# ROUNDED: of room for a product's input in bfloat16; ROOMS: of each thread's ``ROOM``; TODO: where their ranges are
STOP, AWAKE, TAKE, ROUNDED, ROOMS, THREADS, DONE, TODO = 0, 1, 2, 3, 4, 5, APART, 2 * APART
SPIN = 200_000  # looks for work, some 0.2 ms, longer than what stands between two jobs: then others may have the core
# Some 30 ms: rounds are nearer to each other (with 1 ms it slept into every other forward: 1.14x)
YIELD = SPIN + 100_000
NAP_US = 1_000
REST = YIELD + 1_000  # naps in a row, a second: then they are longer
PATIENCE = 10_000  # looks for the last piece, some 10 us
PAGE = 1024  # numbers: 4 KiB, within which a processor fetches ahead of its own accord
PIECE = 96 // PANEL  # panels: the bundled target's smallest product has four pieces
BLOCK_PIECE = 96 // BLOCK_PANEL

# A job, whose arrays are addresses. Rows of ``x`` and ``out`` are ``columns`` and ``apart`` numbers apart; ``bits``:
# of a weight, or 0: attention; ``half``: 1 where a product's inputs, or keys and values, are bfloat16; ``pairs``: 1
# where weights are pairs of it; ``escapes``: weights beside the matrix, or 0, and ``starts``: where each panel's begin;
# ``bias``: what is added to outputs, or 0; ``then``: the product behind it, or 0; ``sinks``: of each query head, or 0.
# With a ``form`` of ``block_forms.FORMS`` the weights are ``own`` outputs from ``first`` on in that form, and ``more``
# is the address of a job with the others, or 0. ``walk``: the address of a ``WALK`` in place of attention, or 0
JOB = np.dtype(
    [(name, np.int64) for name in ("rows", "x", "columns", "out", "apart")]
    + [(name, np.int64) for name in ("bits", "half", "pairs", "weights", "panels", "outputs", "bias")]
    + [(name, np.int64) for name in ("starts", "escapes", "then", "form", "first", "own", "more")]
    + [(name, np.int64) for name in ("keys", "values", "heads", "slots", "width")]
    + [(name, np.int64) for name in ("sees", "room", "counts", "shares", "ends", "requests", "scores", "own_scores")]
    + [(name, np.int64) for name in ("skips", "sinks", "walk")]
    + [("scale", np.float32), ("cap", np.float32)]
)


def _apart(numbers: int) -> int:
    """Numbers from the beginning of a thread's buffer of so many to the next one's: no two are in one page or in
    neighbours. Else a processor fetches the beginning of what another one writes to, again and again (more than eight
    rows in 12 bits took 1.3 times as long, where two cores have no cache in common)."""
    return -(-numbers // PAGE) * PAGE + PAGE


ROOM_APART = _apart(ROOM)
_job = types.Array(from_dtype(JOB), 1, "C")
_state = types.Array(types.int64, 1, "C")
SOURCES = "7940a78cdd74395d"  # see :mod:`actors.engines.decoder.cpu`
_kept = {"cache": True, "nogil": True, "error_model": "numpy"}

_yield = types.ExternalFunction("sched_yield", types.int32())
_sleep = types.ExternalFunction("usleep", types.int32(types.uint32))


@njit(error_model="numpy")
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


@njit(error_model="numpy")
def _multiply(job, panel, number, room, out, then):
    """The outputs of ``number`` panels. The last panel of a matrix ends with its last output, so it may have some
    outputs in common with the one before. ``room``: the address of this thread's own; ``then``: of what is read next,
    if not what lies behind."""
    rows, size, pairs = job.rows, job.columns, job.columns // 2
    sums, count = Sums(out, min(panel * PANEL, job.apart - PANEL), job.apart, False), job.panels * size * PANEL
    numbers = InputRows(array_at(job.x, rows * size, np.float32), 0, size, rows)
    paired = InputRows(array_at(job.x, rows * pairs, np.uint32), 0, pairs, rows)
    words = array_at(job.weights, count // 2, np.uint32)
    if job.bits == 12:
        packed = array_at(job.weights, TABLE + count // PANEL * TWELVE, np.uint8)
        unpacked = array_at(room, ROOM, np.uint32)
        if job.half:
            multiply_packed_panels(paired, PanelRange(packed, 2, panel, number), sums, unpacked, then)
        else:
            multiply_packed_panels(numbers, PanelRange(packed, 1, panel, number), sums, unpacked, then)
    elif job.half:
        multiply_panels(paired, PanelRange(words, 1, panel, number), sums, then)
    elif job.bits == 32:
        whole = array_at(job.weights, count, np.float32)
        multiply_panels(numbers, PanelRange(whole, 1, panel, number), sums, then)
    elif job.pairs:
        multiply_panels(numbers, PanelRange(words, 2, panel, number), sums, then)
    else:
        halves = array_at(job.weights, count, np.uint16)
        multiply_panels(numbers, PanelRange(halves, 1, panel, number), sums, then)
    if job.escapes != 0:
        starts = array_at(job.starts, job.panels + 1, np.int64)
        escapes = array_at(job.escapes, starts[job.panels], ESCAPE)
        add_escapes(job, escapes[starts[panel] : starts[panel + number]], out)


@njit(error_model="numpy")
def _compute_blocks(job, piece):
    """A piece of one of the parts of a product in blocks."""
    part = job
    while piece >= max(1, part.panels // BLOCK_PIECE):
        piece -= max(1, part.panels // BLOCK_PIECE)
        part = array_at(part.more, 1, JOB)[0]
    whole, groups = piece + 1 < max(1, part.panels // BLOCK_PIECE), job.columns // 32
    size, inputs = panel_bytes(part.form, groups), GroupedRows(job.x, grouped_words(job.columns))
    out = array_at(job.out, job.rows * job.apart, np.float32)
    for panel in range(BLOCK_PIECE * piece, BLOCK_PIECE * (piece + 1) if whole else part.panels):
        to = part.first + min(panel * BLOCK_PANEL, part.own - BLOCK_PANEL)
        weights = BlockPanel(part.weights + panel * size, part.form, groups)
        multiply_blocks(job.rows, inputs, weights, Sums(out, to, job.apart, False))


@njit(error_model="numpy")
def _compute(job, piece, following, me, state):
    """``following``: the piece that this thread takes next, if it is known, or a negative number."""
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
    panel, end = PIECE * piece, job.panels if piece + 1 == _pieces(job) else PIECE * (piece + 1)
    then = _first_weights(job.then, me, 1 + state[AWAKE]) if following < 0 else 0
    most, room = BESIDE[min(job.rows, ROWS)], state[ROOMS] + 4 * me * ROOM_APART
    while panel < end:
        # the last one alone: its overlap with the one before is computed again, escapes too
        number = max(1, min(most, min(end, job.panels - 1) - panel))
        _multiply(job, panel, number, room, out, then if panel + number == end else 0)
        panel += number


@njit(error_model="numpy")
def _pieces(job):
    if job.form:
        count, part = max(1, job.panels // BLOCK_PIECE), job
        while part.more != 0:
            part = array_at(part.more, 1, JOB)[0]
            count += max(1, part.panels // BLOCK_PIECE)
        return count
    return job.requests * job.heads if job.bits == 0 else max(1, job.panels // PIECE)


@njit(error_model="numpy")
def _first_weights(place, me, threads):
    """The address of those that thread ``me`` of so many multiplies first in the job at that address, or 0."""
    if place == 0:
        return 0
    job = array_at(place, 1, JOB)[0]
    if job.form:
        return 0
    begin = PIECE * begin_of(_pieces(job), me, threads) * job.columns * PANEL
    return job.weights + (TABLE if job.bits == 12 else 0) + begin * job.bits // 8


@cfunc("void(int64, int64, int64)", cache=True)
def _take(jobs, states, me):
    """Compute pieces until all are taken. What a job consists of is read behind a piece of it, so it is that job's."""
    job, state = array_at(jobs, 1, JOB), array_at(states, TODO, np.int64)
    done, other = 0, 0
    while other < state[THREADS]:
        piece, following = pop(state, TODO, me)
        while piece >= 0:
            _compute(job[0], piece, following, me, state)
            done += 1
            piece, following = pop(state, TODO, me)
        if not steal_half(state, TODO, me, other):
            other += 1
    add(state, DONE, done)


@njit(types.void(_job, _state, types.int64), **_kept)
def help_out(job, state, me):
    """The whole life of helper ``me``, counted from 1."""
    idle = 0
    while read(state, STOP) == 0:
        idle += 1
        if has_work(state, TODO, me):
            call(state[TAKE], job.ctypes.data, state.ctypes.data, me)
            idle = 0
        elif idle > YIELD:
            _sleep(NAP_US if idle < REST else 10 * NAP_US)
        elif idle > SPIN:
            _yield()


class Helpers(NamedTuple):
    """What the helping threads see: the job at which they work, and their state."""

    current: Any
    state: Any


@njit(error_model="numpy")
def perform(job, x, rows, out, helpers):
    """``job`` for flat ``x`` into flat ``out``, together with the helpers."""
    current, state = helpers
    current[0] = job
    current[0].rows, current[0].x, current[0].out = rows, x.ctypes.data, out.ctypes.data
    if job.form:
        current[0].x = state[ROUNDED]
        quantize_groups(x, rows, job.columns, array_at(state[ROUNDED], rows * grouped_words(job.columns), np.int32))
    elif job.half and job.bits:
        current[0].x = state[ROUNDED]
        halved(x, 0, array_at(state[ROUNDED], rows * job.columns, np.int16), 0, rows * job.columns)
    pieces = _pieces(job)
    write(state, DONE, 0)
    assign(state, TODO, pieces, 1 + state[AWAKE])
    call(state[TAKE], current.ctypes.data, state.ctypes.data, 0)
    waited = 0
    while read(state, DONE) < pieces:
        waited += 1
        if waited > PATIENCE:  # the awaited helper may be on this very core
            _yield()
    if job.bias != 0:
        bias = array_at(job.bias, job.outputs, np.float32)
        for row in range(rows):
            for i in range(job.outputs):
                out[row * job.apart + i] += bias[i]


@njit(types.void(_job, types.float32[:, ::1], types.float32[:, ::1], _job, _state), **_kept)
def _run(job, x, out, current, state):
    job[0].columns, job[0].apart = x.shape[1], out.shape[1]
    perform(job[0], x.reshape(-1), len(x), out.reshape(-1), Helpers(current, state))


class Team:
    """The threads that help the caller, which end with it. One caller at a time."""

    def __init__(self, helpers: int, spare_cpus: Sequence[int] = ()) -> None:
        """``spare_cpus``: CPUs with one more helper each, which sleeps until there is work for it."""
        self.size, self._own = 1 + helpers + len(spare_cpus), helpers
        self.job, self.state = np.zeros(1, JOB), np.zeros(TODO + APART * self.size, dtype=np.int64)
        self._rounded = np.empty(0, dtype=np.int16)
        self._rooms = self.buffers(ROOM)
        self.state[THREADS], self.state[AWAKE] = self.size, helpers
        self.state[TAKE], self.state[ROOMS] = _take.address, self._rooms.ctypes.data
        places: list[int | None] = [*[None] * helpers, *spare_cpus]
        self.threads = [
            threading.Thread(target=self._help, args=(self.job, self.state, me, cpu), name="helper", daemon=True)
            for me, cpu in enumerate(places, 1)
        ]
        for thread in self.threads:
            thread.start()
        weakref.finalize(self, _stop, self.state, self.threads)

    @staticmethod
    def _help(job: np.ndarray, state: np.ndarray, me: int, cpu: int | None) -> None:
        if cpu is not None and hasattr(os, "sched_setaffinity"):
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, {cpu})  # of this thread
        help_out(job, state, me)

    def buffers(self, numbers: int) -> np.ndarray:
        """One for each thread, float32 ``(threads, at least that many)``, see :func:`_apart`."""
        apart = _apart(numbers)
        whole = np.empty(self.size * apart + PAGE, dtype=np.float32)
        first = -(whole.ctypes.data // 4) % PAGE
        return whole[first : first + self.size * apart].reshape(self.size, apart)

    def make_room(self, numbers: int) -> None:
        """For the largest input of a product in bfloat16 or in groups, in numbers of 16 bits."""
        if len(self._rounded) < numbers:
            self._rounded = np.empty(numbers, dtype=np.int16)
            self.state[ROUNDED] = self._rounded.ctypes.data

    def use_spare_cpus(self, used: bool) -> None:
        self.state[AWAKE] = self.size - 1 if used else self._own

    def run(self, job: np.ndarray, x: np.ndarray, out: np.ndarray) -> None:
        """A job of :func:`product`, or a layer's attention, for float32 ``x`` and ``out`` of a row each."""
        _run(job, x, out, self.job, self.state)


def _stop(state: np.ndarray, threads: list[threading.Thread]) -> None:
    """Waits for them: a thread that comes back from compiled code into an interpreter that is ending would crash it."""
    state[STOP] = 1
    for thread in threads:
        thread.join()


def product(weights: np.ndarray, panels: int, inputs: int, outputs: int, half: bool = False) -> np.ndarray:
    """The job ``out = x W^T``. ``weights``: in panels, float32, float16 (its bits, uint16), pairs of bfloat16 (uint32)
    or bfloat16 in 12 bits (uint8); they must live as long. ``half``: inputs are rounded to bfloat16."""
    job = np.zeros(1, JOB)
    bits = {np.dtype(np.uint8): 12, np.dtype(np.uint32): 16}
    job["bits"], job["half"] = bits.get(weights.dtype, 8 * weights.itemsize), half
    job["pairs"] = weights.dtype == np.uint32
    job["weights"], job["panels"] = weights.ctypes.data, panels
    job["columns"], job["outputs"], job["apart"] = inputs, outputs, max(outputs, PANEL)
    return job


def block_product(parts: Sequence[tuple[int, np.ndarray, int]], inputs: int) -> np.ndarray:
    """The job ``out = x W^T`` of several matrices over the same inputs: the form of each, its panels, which must live
    as long, and its outputs. The array holds the jobs of all; the first is to be run."""
    jobs = np.zeros(len(parts), JOB)
    first = 0
    for index, (form, weights, outputs) in enumerate(parts):
        job = jobs[index]
        job["form"], job["bits"], job["weights"] = form, 8, weights.ctypes.data
        job["panels"], job["first"], job["own"] = -(-outputs // BLOCK_PANEL), first, outputs
        if index + 1 < len(parts):
            job["more"] = jobs.ctypes.data + (index + 1) * jobs.itemsize
        first += outputs
    jobs["columns"], jobs["outputs"], jobs["apart"] = inputs, first, max(first, PANEL)
    return jobs
