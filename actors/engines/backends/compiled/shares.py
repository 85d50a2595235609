"""Which thread computes which pieces of a job: each its own share of neighbours, then half of what another has left.

A share lies in one stretch of memory, so that what a thread asks for ahead is what it reads next; and a layer's outputs
and keys are written and read by the same core in every forward, where two cores that have no cache in common take 30 to
100 ns for each line that goes from one to the other.
"""

from __future__ import annotations

from numba import njit

from actors.engines.backends.compiled.atomics import compare_exchange, read, write

# int64 between what different threads write: two lines of the cache, as processors fetch them in pairs
APART = 16
_FIRST = 1 << 32  # a share is one number: its first piece times this, and its end


@njit(error_model="numpy")
def begin_of(pieces, thread, threads):
    """The first piece of a thread's share; of the thread behind the last: how many there are."""
    return pieces * thread // threads


@njit(error_model="numpy")
def share_out(state, todo, pieces, threads):
    """Among so many threads, whose shares are ``state[todo]`` and what is ``APART`` behind. The caller's own, the
    first, comes last."""
    for thread in range(threads - 1, -1, -1):
        first, end = begin_of(pieces, thread, threads), begin_of(pieces, thread + 1, threads)
        write(state, todo + APART * thread, first * _FIRST + end)


@njit(error_model="numpy")
def is_left(state, todo, thread):
    """Whether something is left of a thread's share."""
    share = read(state, todo + APART * thread)
    return share // _FIRST < share % _FIRST


@njit(error_model="numpy")
def take_first(state, todo, thread):
    """A piece of one's own share and the one behind it in this share, or a negative number for what there is not."""
    while True:
        share = read(state, todo + APART * thread)
        first, end = share // _FIRST, share % _FIRST
        if first >= end:
            return -1, -1
        if compare_exchange(state, todo + APART * thread, share, share + _FIRST):
            return first, first + 1 if first + 1 < end else -1


@njit(error_model="numpy")
def take_over(state, todo, thread, other):
    """The latter half of what is left of somebody's share becomes one's own, of which nothing is left. False: there is
    nothing."""
    while True:
        share = read(state, todo + APART * other)
        first, end = share // _FIRST, share % _FIRST
        if first >= end:
            return False
        middle = (first + end) // 2
        if compare_exchange(state, todo + APART * other, share, first * _FIRST + middle):
            write(state, todo + APART * thread, middle * _FIRST + end)
            return True
