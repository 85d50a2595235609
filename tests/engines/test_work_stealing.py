"""Every piece of a job is taken once, by whomever."""

import contextlib
import itertools
import random
import threading

import numpy as np
import pytest

pytest.importorskip("numba")

from numba import njit

from actors.engines.decoder.cpu import work_stealing
from actors.engines.decoder.cpu.engine import _buffers
from actors.engines.decoder.cpu.work_stealing import APART

TODO = 8


def called(function):
    """What compiled code calls, for Python."""
    return njit(error_model="numpy")(function.py_func)


assign, begin_of, has_work = map(called, (work_stealing.assign, work_stealing.begin_of, work_stealing.has_work))
pop, steal_half = called(work_stealing.pop), called(work_stealing.steal_half)


def ranges(pieces, threads):
    state = np.zeros(TODO + APART * threads, np.int64)
    assign(state, TODO, pieces, threads)
    return state


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
@pytest.mark.parametrize("pieces", [0, 1, 2, 5, 64, 86])
def test_ranges_are_neighbours_that_differ_by_a_piece_at_most(pieces, threads):
    begins = [begin_of(pieces, thread, threads) for thread in range(threads + 1)]
    sizes = [end - begin for begin, end in itertools.pairwise(begins)]
    assert begins[0] == 0 and begins[-1] == pieces and max(sizes) - min(sizes) <= 1
    state = ranges(pieces, threads)
    assert [has_work(state, TODO, thread) for thread in range(threads)] == [size > 0 for size in sizes]


def test_ones_own_pieces_come_in_order_and_each_tells_which_is_next():
    state = ranges(7, 2)
    found = [pop(state, TODO, 1) for _ in range(5)]
    assert found == [(3, 4), (4, 5), (5, 6), (6, -1), (-1, -1)]
    assert not has_work(state, TODO, 1) and has_work(state, TODO, 0)


def test_what_another_steals_is_the_latter_half_of_what_is_left():
    state = ranges(12, 2)
    assert pop(state, TODO, 1) == (6, 7)
    while pop(state, TODO, 0)[0] >= 0:
        pass
    assert steal_half(state, TODO, 0, 1)
    assert [pop(state, TODO, 0) for _ in range(4)] == [(9, 10), (10, 11), (11, -1), (-1, -1)]
    assert [pop(state, TODO, 1) for _ in range(3)] == [(7, 8), (8, -1), (-1, -1)]
    assert not steal_half(state, TODO, 0, 1)


def test_a_single_piece_that_is_left_is_stolen_whole():
    state = ranges(2, 2)
    assert pop(state, TODO, 0) == (0, -1)
    assert steal_half(state, TODO, 0, 1)
    assert pop(state, TODO, 0) == (1, -1) and pop(state, TODO, 1) == (-1, -1)


def taken_by(state, *threads):
    found = []
    for thread in threads:
        while (piece := pop(state, TODO, thread)[0]) >= 0:
            found.append(piece)
    return found


@pytest.mark.parametrize("other", [0, 1])
def test_who_still_looks_for_the_last_jobs_pieces_when_the_next_one_begins_loses_none_of_its_own(other):
    state = ranges(12, 2)
    taken_by(state, 0, 1)
    assign(state, TODO, 12, 2)
    assert steal_half(state, TODO, 1, other), "there is work"
    assert taken_by(state, 1, 0) == [*range(6, 12), *range(6)]


def test_nothing_is_stolen_of_a_job_whose_part_one_has_not_been_given_yet():
    """It would be overwritten. Ranges are given from the last thread's on."""
    state = ranges(12, 3)
    taken_by(state, 0, 1, 2)
    before = state.copy()
    assign(state, TODO, 12, 3)
    after, half_way = state.copy(), before.copy()
    half_way[TODO + 2 * APART] = after[TODO + 2 * APART]
    assert not steal_half(half_way, TODO, 1, 2)
    assert taken_by(half_way, 2) == [8, 9, 10, 11]


def test_ranges_of_two_jobs_are_never_the_same_number():
    """Else what was read of one could be exchanged in the other."""
    state, seen = ranges(12, 2), set()
    for _ in range(20):
        for thread in (0, 1):
            while pop(state, TODO, thread)[0] >= 0:
                seen.add(int(state[TODO + APART * thread]))
        assign(state, TODO, 12, 2)
    assert len(seen) == 20 * 12


@pytest.mark.parametrize("seed", range(20))
def test_whoever_takes_and_whenever_every_piece_is_taken_once(seed):
    chance = random.Random(seed)
    threads, pieces = chance.randrange(1, 6), chance.randrange(90)
    state, taken = ranges(pieces, threads), []
    while any(has_work(state, TODO, thread) for thread in range(threads)):
        thread, other = chance.randrange(threads), chance.randrange(threads)
        if has_work(state, TODO, thread):
            taken.append(pop(state, TODO, thread)[0])
        else:
            steal_half(state, TODO, thread, other)
    assert sorted(taken) == list(range(pieces))


class Over(Exception):
    """Nobody goes on."""


class Turns:
    """Lets one of several threads go on at a time, up to its next look at the shared state; which, chance decides."""

    def __init__(self, chance):
        self.chance, self.open = chance, True
        self.waiting = {}  # by thread
        self.stopped = threading.Semaphore(0)  # released by each that waits for its turn, or is through

    def _wait(self):
        mine = self.waiting[threading.current_thread()] = threading.Semaphore(0)
        self.stopped.release()
        mine.acquire()
        if not self.open:
            raise Over

    def read(self, state, at):
        self._wait()
        return int(state[at])

    def write(self, state, at, value):
        self._wait()
        state[at] = value

    def compare_exchange(self, state, at, known, new):
        self._wait()
        if state[at] != known:
            return False
        state[at] = new
        return True

    def add(self, state, at, more):
        self._wait()
        state[at] += more

    def run(self, *works, most=5000):
        """Until the first of them is through, in ``most`` turns."""

        ended = set()

        def until_over(work):
            with contextlib.suppress(Over):
                work()
            ended.add(threading.current_thread())
            self.stopped.release()

        threads = [threading.Thread(target=until_over, args=(work,), daemon=True) for work in works]
        for thread in threads:
            thread.start()
            self.stopped.acquire()
        for turn in range(most):
            if threads[0] in ended:
                break
            if turn % 30 == 0:  # some are put aside for long
                speeds = {thread: 10 ** self.chance.uniform(-3, 0) for thread in threads}
            here = [thread for thread in threads if thread in self.waiting]  # in an order that repeats
            self.waiting.pop(*self.chance.choices(here, [speeds[one] for one in here])).release()
            self.stopped.acquire()
        through, self.open = threads[0] in ended, False
        for mine in self.waiting.values():
            mine.release()
        for thread in threads:
            thread.join()
        return through


@pytest.mark.parametrize("seed", range(20))
def test_in_whatever_order_threads_look_and_write_every_piece_of_every_job_is_taken_once(seed, monkeypatch):
    chance = random.Random(seed)
    threads, pieces = chance.randrange(2, 4), chance.randrange(1, 9)
    state, taken, jobs = np.zeros(TODO + APART * threads, np.int64), [], 8
    turns = Turns(chance)
    for name in ("read", "write", "compare_exchange"):
        monkeypatch.setattr(work_stealing, name, getattr(turns, name))
    for name in ("_parted", "begin_of"):
        monkeypatch.setattr(work_stealing, name, getattr(work_stealing, name).py_func)
    done = TODO - 1

    def take(me):  # as the team does
        other = mine = 0
        while other < threads:
            while (piece := pop.py_func(state, TODO, me)[0]) >= 0:
                taken.append(piece)
                mine += 1
            other += not steal_half.py_func(state, TODO, me, other)
        turns.add(state, done, mine)

    def lead():
        for _ in range(jobs):
            turns.write(state, done, 0)
            assign.py_func(state, TODO, pieces, threads)
            take(0)
            while turns.read(state, done) < pieces:
                pass

    def help_out(me):
        while True:
            if has_work.py_func(state, TODO, me):
                take(me)

    assert turns.run(lead, *(lambda me=me: help_out(me) for me in range(1, threads))), "a piece is lost"
    assert sorted(taken) == sorted([*range(pieces)] * jobs)


def test_each_threads_buffer_begins_with_a_line_of_the_cache_and_two_lines_behind_the_last_ones_end():
    buffers = _buffers(3, 50)
    begins = [buffer.ctypes.data for buffer in buffers]
    assert buffers.shape[1] >= 50 and all(begin % 64 == 0 for begin in begins)
    assert all(later - begin >= 4 * 50 + 2 * 64 for begin, later in itertools.pairwise(begins))
