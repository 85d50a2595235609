"""Every piece of a job is taken once, by whomever."""

import itertools
import random

import numpy as np
import pytest

pytest.importorskip("numba")

from actors.engines.backends.compiled.team import PAGE, Team
from actors.engines.backends.compiled.work_stealing import APART, assign, begin_of, has_work, pop, steal_half

TODO = 8


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


def test_no_two_threads_have_buffers_in_one_page_or_in_neighbours():
    team = Team(2)
    buffers = team.buffers(PAGE + 1)
    begins = [buffer.ctypes.data // 4 for buffer in buffers]
    assert all(begin % PAGE == 0 for begin in begins)
    assert all(later - begin >= 3 * PAGE for begin, later in itertools.pairwise(begins))
