"""Work stealing: each thread has a range of a job's pieces, and who is through takes half of what another has left.

A range lies in one stretch of memory, so that what a thread asks for ahead is what it reads next; and in every forward
the same core writes the same outputs of a layer and reads the same heads' keys, which matters where cores have no cache
in common.
"""

from __future__ import annotations

from actors.engines.decoder.cpu.atomics import compare_exchange, read, write
from actors.engines.decoder.cpu.linking import linked

# int64 between what different threads write: two lines of the cache, as processors fetch them in pairs
APART = 16
# A range is one number: the job's, the first piece and the end. Without the job's number a thread that was put aside
# between two looks took the next job's range for the last one's, where both read alike
_BITS = 18
_FIRST, _JOB, _LAST = 1 << _BITS, 1 << 2 * _BITS, (1 << 27) - 1


@linked
def _parted(known):
    """A job's number, the first piece that is left and the end."""
    return known // _JOB, known // _FIRST % _FIRST, known % _FIRST


@linked
def begin_of(pieces, thread, threads):
    """The first piece of a thread's range; of the thread behind the last: how many there are."""
    return pieces * thread // threads


@linked
def assign(state, todo, pieces, threads):
    """A job's pieces, fewer than 2^18, to so many threads, whose ranges are at ``state[todo]``, ``APART`` from each
    other; the caller's, which is the first, comes last."""
    job = _parted(read(state, todo))[0] % _LAST + 1
    for thread in range(threads - 1, -1, -1):
        first, end = begin_of(pieces, thread, threads), begin_of(pieces, thread + 1, threads)
        write(state, todo + APART * thread, job * _JOB + first * _FIRST + end)


@linked
def has_work(state, todo, thread):
    """Whether something is left of a thread's range."""
    _, first, end = _parted(read(state, todo + APART * thread))
    return first < end


@linked
def pop(state, todo, thread):
    """A piece of one's own range and the one behind it there, or a negative number where there is none."""
    while True:
        known = read(state, todo + APART * thread)
        _, first, end = _parted(known)
        if first >= end:
            return -1, -1
        if compare_exchange(state, todo + APART * thread, known, known + _FIRST):
            return first, first + 1 if first + 1 < end else -1


@linked
def steal_half(state, todo, thread, other):
    """The latter half of what is left of somebody's range becomes one's own, of which nothing is left. False: there is
    nothing.

    Meanwhile the job may end and the next one begin, of which there is a range of one's own then: that one is left as
    it is (True). And where one's own range is not of the other's job it may be about to be written: nothing is taken.
    """
    while True:
        known = read(state, todo + APART * other)
        job, first, end = _parted(known)
        own_job, own_first, own_end = _parted(read(state, todo + APART * thread))
        if own_first < own_end:
            return True
        if first >= end or job != own_job:
            return False
        middle = (first + end) // 2
        if compare_exchange(state, todo + APART * other, known, known - end + middle):
            write(state, todo + APART * thread, job * _JOB + middle * _FIRST + end)
            return True
