"""A forward's work shared out among threads, without OpenMP's pool.

A product or a layer's attention is a job of pieces that any thread may take. The caller takes pieces too and waits for
those alone that somebody has begun: a helper that the system has put aside, because a client or a socket wants its
core, costs nothing, where each of OpenMP's regions waits for all of its threads. Who computes a piece changes no
bit of it.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numba import from_dtype, types

from actors.engines.decoder.cpu.atomics import array_at, call, read, write
from actors.engines.decoder.cpu.between import halved
from actors.engines.decoder.cpu.blocks import grouped_words, quantize_groups
from actors.engines.decoder.cpu.jobs import (
    AWAKE,
    DONE,
    ROUNDED,
    STOP,
    TAKE,
    THREADS,
    TODO,
    pieces_of,
)
from actors.engines.decoder.cpu.linking import kept, linked
from actors.engines.decoder.cpu.records import JOB
from actors.engines.decoder.cpu.tile import WIDE_PANEL
from actors.engines.decoder.cpu.work_stealing import APART, assign, has_work
from actors.engines.weights.formats import PANEL

SPIN = 200_000  # looks for work, some 0.2 ms, longer than what stands between two jobs: then others may have the core
# Some 30 ms: rounds are nearer to each other (with 1 ms it slept into every other forward: 1.14x)
YIELD = SPIN + 100_000
NAP_US = 1_000
REST = YIELD + 1_000  # naps in a row, a second: then they are longer
PATIENCE = 10_000  # looks for the last piece, some 10 us

_job = types.Array(from_dtype(JOB), 1, "C")
_state = types.Array(types.int64, 1, "C")

_yield = types.ExternalFunction("sched_yield", types.int32())
_sleep = types.ExternalFunction("usleep", types.int32(types.uint32))


@kept(types.void(_job, _state, types.int64), nogil=True)
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


@linked
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
    pieces = pieces_of(job)
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


@kept(types.void(_job, types.float32[:, ::1], types.float32[:, ::1], _job, _state), nogil=True)
def _run(job, x, out, current, state):
    job[0].columns, job[0].apart = x.shape[1], out.shape[1]
    perform(job[0], x.reshape(-1), len(x), out.reshape(-1), Helpers(current, state))


class Team:
    """The threads that help the caller, which end with it. One caller at a time."""

    def __init__(self, helpers: int, spare_cpus: Sequence[int] = ()) -> None:
        """``spare_cpus``: CPUs with one more helper each, which sleeps until there is work for it."""
        from actors.engines.decoder.cpu.pieces import take  # compiles, see :mod:`...compiler`

        self.size, self.own = 1 + helpers + len(spare_cpus), 1 + helpers  # threads: all, and all but spare ones
        self.job, self.state = np.zeros(1, JOB), np.zeros(TODO + APART * self.size, dtype=np.int64)
        self._rounded = np.empty(0, dtype=np.int16)
        self.state[THREADS], self.state[AWAKE] = self.size, helpers
        self.state[TAKE] = take.address
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
                os.sched_setaffinity(0, {cpu})  # this thread's
        help_out(job, state, me)

    def make_room(self, numbers: int) -> None:
        """For the largest input of a product in bfloat16 or in groups, in numbers of 16 bits."""
        if len(self._rounded) < numbers:
            self._rounded = np.empty(numbers, dtype=np.int16)
            self.state[ROUNDED] = self._rounded.ctypes.data

    def use_spare_cpus(self, used: bool) -> None:
        self.state[AWAKE] = self.size - 1 if used else self.own - 1

    def run(self, job: np.ndarray, x: np.ndarray, out: np.ndarray) -> None:
        """A job of :func:`product`, or a layer's attention, for float32 ``x`` and ``out`` of a row each."""
        _run(job, x, out, self.job, self.state)


def _stop(state: np.ndarray, threads: list[threading.Thread]) -> None:
    """Waits for them: a thread that comes back from compiled code into an interpreter that is ending would crash it."""
    state[STOP] = 1
    for thread in threads:
        thread.join()


def product(weights: np.ndarray, panels: int, inputs: int, outputs: int, half: bool = False) -> np.ndarray:
    """The job ``out = x W^T``. ``weights``: in panels, float32, float16 (its bits, uint16) or pairs of bfloat16
    (uint32); they must live as long. ``half``: inputs are rounded to bfloat16."""
    job = np.zeros(1, JOB)
    job["half"], job["pairs"] = half, weights.dtype == np.uint32
    job["bits"] = 32 if weights.dtype == np.float32 else 16
    job["weights"], job["panels"] = weights.ctypes.data, panels
    job["columns"], job["outputs"], job["apart"] = inputs, outputs, max(outputs, WIDE_PANEL)
    return job


def block_product(parts: Sequence[tuple[int, np.ndarray, int]], inputs: int) -> np.ndarray:
    """The job ``out = x W^T`` of several matrices over the same inputs: the form of each, its panels, which must live
    as long, and its outputs. The array holds the jobs of all; the first is to be run."""
    jobs = np.zeros(len(parts), JOB)
    first = 0
    for index, (form, weights, outputs) in enumerate(parts):
        job = jobs[index]
        job["form"], job["bits"], job["weights"] = form, 8, weights.ctypes.data
        job["panels"], job["first"], job["own"] = -(-outputs // PANEL), first, outputs
        if index + 1 < len(parts):
            job["more"] = jobs.ctypes.data + (index + 1) * jobs.itemsize
        first += outputs
    jobs["columns"], jobs["outputs"], jobs["apart"] = inputs, first, max(first, WIDE_PANEL)
    return jobs
