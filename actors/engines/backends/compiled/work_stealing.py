"""Work stealing: each thread has a range of a job's pieces, and who is through takes half of what another has left.

A range lies in one stretch of memory, so that what a thread asks for ahead is what it reads next; and in every forward
the same core writes the same outputs of a layer and reads the same heads' keys, which matters where cores have no cache
in common.
"""

from __future__ import annotations

from numba import njit

from actors.engines.backends.compiled.atomics import compare_exchange, read, write

# int64 between what different threads write: two lines of the cache, as processors fetch them in pairs
APART = 16
_FIRST = 1 << 32  # a range is one number: its first piece times this, and its end


@njit(error_model="numpy")
def begin_of(pieces, thread, threads):
    """The first piece of a thread's range; of the thread behind the last: how many there are."""
    return pieces * thread // threads


@njit(error_model="numpy")
def assign(state, todo, pieces, threads):
    """Pieces to so many threads, whose ranges are at ``state[todo]``, ``APART`` from each other; the caller's, which is
    the first, at last."""
    for thread in range(threads - 1, -1, -1):
        first, end = begin_of(pieces, thread, threads), begin_of(pieces, thread + 1, threads)
        write(state, todo + APART * thread, first * _FIRST + end)


@njit(error_model="numpy")
def has_work(state, todo, thread):
    """Whether something is left of a thread's range."""
    known = read(state, todo + APART * thread)
    return known // _FIRST < known % _FIRST


@njit(error_model="numpy")
def pop(state, todo, thread):
    """A piece of one's own range and the one behind it there, or a negative number for what there is not."""
    while True:
        known = read(state, todo + APART * thread)
        first, end = known // _FIRST, known % _FIRST
        if first >= end:
            return -1, -1
        if compare_exchange(state, todo + APART * thread, known, known + _FIRST):
            return first, first + 1 if first + 1 < end else -1


@njit(error_model="numpy")
def steal_half(state, todo, thread, other):
    """The latter half of what is left of somebody's range becomes one's own, of which nothing is left. False: there is
    nothing."""
    while True:
        known = read(state, todo + APART * other)
        first, end = known // _FIRST, known % _FIRST
        if first >= end:
            return False
        middle = (first + end) // 2
        if compare_exchange(state, todo + APART * other, known, first * _FIRST + middle):
            write(state, todo + APART * thread, middle * _FIRST + end)
            return True
