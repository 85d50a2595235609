"""Products shared out among threads, without OpenMP's pool.

A product is cut into pieces that any thread may take. The caller takes pieces too and waits for those alone that
somebody has begun: a helper that the system has put aside, because a client or a socket wants its core, costs nothing,
where each of OpenMP's regions waits for all of its threads. Who computes a piece changes no bit of it.
"""

from __future__ import annotations

import threading
import weakref

import numpy as np
from numba import carray, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from actors.engines.backends.llama.products import multiply_panels
from actors.engines.backends.llama.tile import PANEL

# places in the state, those that several threads write to in cache lines of their own
LEFT, DONE, STOP, JOB, SIZE = 0, 8, 16, 24, 32
SPIN = (
    200_000  # looks for work, some 0.2 ms, longer than what stands between two products: then others may have the core
)
YIELD = SPIN + 2_000  # and then nobody computes: it sleeps, and misses the first products of the next round
NAP_US = 1_000
REST = YIELD + 1_000  # naps in a row, a second: then they are longer
PATIENCE = 10_000  # looks for the last piece, some 10 us

_yield = types.ExternalFunction("sched_yield", types.int32())
_sleep = types.ExternalFunction("usleep", types.int32(types.uint32))


def _place(context, builder, kind, array, at):
    return builder.gep(cgutils.create_struct_proxy(kind)(context, builder, array).data, [at])


@intrinsic
def _read(typing, state, at):
    def generate(context, builder, signature, arguments):
        return builder.load_atomic(_place(context, builder, signature.args[0], *arguments), "seq_cst", 8)

    return types.int64(state, types.intp), generate


@intrinsic
def _write(typing, state, at, value):
    def generate(context, builder, signature, arguments):
        state, at, value = arguments
        builder.store_atomic(value, _place(context, builder, signature.args[0], state, at), "seq_cst", 8)
        return context.get_dummy_value()

    return types.void(state, types.intp, types.int64), generate


@intrinsic
def _add(typing, state, at, more):
    """Adds, and returns what was there."""

    def generate(context, builder, signature, arguments):
        state, at, more = arguments
        return builder.atomic_rmw("add", _place(context, builder, signature.args[0], state, at), more, "seq_cst")

    return types.int64(state, types.intp, types.int64), generate


@intrinsic
def _memory(typing, address):
    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


@njit(error_model="numpy")
def _compute(state, piece):
    rows, size, panels, columns = state[JOB + 3], state[JOB + 4], state[JOB + 5], state[JOB + 6]
    x = carray(_memory(state[JOB]), (rows * size,), np.float32)
    out = carray(_memory(state[JOB + 2]), (rows * columns,), np.float32)
    if state[JOB + 7]:
        halves = carray(_memory(state[JOB + 1]), (panels * size * PANEL,), np.uint16)
        multiply_panels(x, rows, size, halves, 2 * piece, min(2 * piece + 2, panels), out, columns)
    else:
        weights = carray(_memory(state[JOB + 1]), (panels * size * PANEL,), np.float32)
        multiply_panels(x, rows, size, weights, 2 * piece, min(2 * piece + 2, panels), out, columns)


@njit(error_model="numpy")
def _take(state):
    """Compute pieces until all are taken. What a job consists of is read behind a piece of it, so it is that job's."""
    while _read(state, LEFT) > 0:
        piece = _add(state, LEFT, -1) - 1
        if piece >= 0:
            _compute(state, piece)
            _add(state, DONE, 1)


@njit("void(i8[::1])", cache=True, nogil=True, error_model="numpy")
def help_out(state):
    """A helper's whole life."""
    idle = 0
    while _read(state, STOP) == 0:
        idle += 1
        if _read(state, LEFT) > 0:
            _take(state)
            idle = 0
        elif idle > YIELD:
            _sleep(NAP_US if idle < REST else 10 * NAP_US)
        elif idle > SPIN:
            _yield()


@njit(
    [
        "void(f4[:, ::1], u2[:, :, ::1], f4[:, ::1], i8, i8[::1])",
        "void(f4[:, ::1], f4[:, :, ::1], f4[:, ::1], i8, i8[::1])",
    ],
    cache=True,
    nogil=True,
    error_model="numpy",
)
def share(x, weights, out, halves, state):
    """:func:`products.multiply` by all who help."""
    panels = weights.shape[0]
    pieces = (panels + 1) // 2
    state[JOB], state[JOB + 1], state[JOB + 2] = x.ctypes.data, weights.ctypes.data, out.ctypes.data
    state[JOB + 3], state[JOB + 4] = x.shape
    state[JOB + 5], state[JOB + 6], state[JOB + 7] = panels, out.shape[1], halves
    _write(state, DONE, 0)
    _write(state, LEFT, pieces)
    _take(state)
    waited = 0
    while _read(state, DONE) < pieces:
        waited += 1
        if waited > PATIENCE:  # a helper on this very core may be the one that is waited for
            _yield()


class Team:
    """The threads that help the caller; they end with it."""

    def __init__(self, helpers: int) -> None:
        self._state = np.zeros(SIZE, dtype=np.int64)
        self.threads = [
            threading.Thread(target=help_out, args=(self._state,), name="products", daemon=True) for _ in range(helpers)
        ]
        for thread in self.threads:
            thread.start()
        weakref.finalize(self, _stop, self._state, self.threads)

    def multiply(self, x: np.ndarray, weights: np.ndarray, out: np.ndarray) -> None:
        share(x, weights, out, weights.dtype == np.uint16, self._state)


def _stop(state: np.ndarray, threads: list[threading.Thread]) -> None:
    """Waits for them: a thread that comes back from compiled code into an interpreter that is ending would crash it."""
    state[STOP] = 1
    for thread in threads:
        thread.join()
