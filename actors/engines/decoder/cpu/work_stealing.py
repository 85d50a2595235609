"""Work stealing: each thread has a range of a job's pieces; an idle thread takes half of another's rest.

A range is contiguous in memory, so a thread prefetches its next reads. In every forward the same core writes the same
outputs of a layer and reads the same heads' keys. That matters where cores share no cache.
"""

from __future__ import annotations

from actors.engines.decoder.cpu.atomics import compare_exchange, read, write
from actors.engines.decoder.cpu.linking import linked

# int64 between what different threads write: two lines of the cache, as processors fetch them in pairs
APART = 16
# A range is one number: the job's, the first piece and the end. Without the job's number a thread that was put aside
# between two reads took the next job's range for the last one's, where both read alike
_BITS = 18
_FIRST, _JOB, _LAST = 1 << _BITS, 1 << 2 * _BITS, (1 << 27) - 1


@linked
def _parted(known):
    """Job number, first piece left, and end of a range."""
    return known // _JOB, known // _FIRST % _FIRST, known % _FIRST


@linked
def begin_of(pieces, thread, threads):
    """First piece of a thread's range; for ``thread == threads`` the number of pieces."""
    return pieces * thread // threads


@linked
def assign(state, todo, pieces, threads):
    """Divide a job's pieces (fewer than 2^18) among threads. Their ranges start at ``state[todo]``, ``APART`` numbers
    from each other. The caller's own range, the first, is written last."""
    job = _parted(read(state, todo))[0] % _LAST + 1
    for thread in range(threads - 1, -1, -1):
        first, end = begin_of(pieces, thread, threads), begin_of(pieces, thread + 1, threads)
        write(state, todo + APART * thread, job * _JOB + first * _FIRST + end)


@linked
def has_work(state, todo, thread):
    """Whether a thread's range has pieces left."""
    _, first, end = _parted(read(state, todo + APART * thread))
    return first < end


@linked
def pop(state, todo, thread):
    """Take a piece of this thread's range. Return it and the next one there; negative numbers: there is none."""
    while True:
        known = read(state, todo + APART * thread)
        _, first, end = _parted(known)
        if first >= end:
            return -1, -1
        if compare_exchange(state, todo + APART * thread, known, known + _FIRST):
            return first, first + 1 if first + 1 < end else -1


@linked
def steal_half(state, todo, thread, other):
    """Take the second half of another thread's rest, when this thread's range is empty. False: there is nothing.

    The job may end meanwhile and the next one begin. If this thread has a range of the next job then, that range stays
    as it is (True). If the two ranges belong to different jobs, this thread's own may be about to be written: nothing
    is taken.
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
