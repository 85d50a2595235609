"""What the soak makes of what it saw: it finds what it is there to find."""

from __future__ import annotations

import os

import pytest

from tests.system import soak_missing
from tests.system.soak_memory import Memory, parts
from tests.system.soak_missing import LOADED_CPU_S, Missing, Process, process
from tests.system.soak_speed import Pace, comeback, problems

# --- memory ----------------------------------------------------------------------------------------------------------


def test_memory_is_that_of_the_first_middle_and_last_thousand_requests():
    sizes = [(requests, requests / 100) for requests in range(0, 10_001, 100)]
    assert parts(sizes, 0, 10_000) == {"first": 10.0, "middle": 55.0, "last": 100.0}


def test_of_few_requests_the_parts_are_thirds():
    assert parts([(0, 1.0), (150, 2.0), (300, 3.0)], 0, 300) == {"first": 1.0, "middle": 2.0, "last": 3.0}


def test_a_part_in_which_nobody_looked_is_left_out():
    assert parts([(0, 1.0), (9_900, 2.0)], 0, 9_900) == {"first": 1.0, "last": 2.0}


def test_steady_memory_is_no_growth():
    memory = Memory()
    for requests in range(0, 5000, 50):
        memory.see(requests, {("verifier", 7): 500.0 + requests % 100, ("drafter", 8): 300.0})
    assert memory.grown() == []


def test_a_role_that_grows_is_found():
    memory = Memory()
    for requests in range(0, 5000, 50):
        memory.see(requests, {("client", 1): 40.0 + requests / 50})
    assert "a client has grown from 60.0 to 139.0 MB" in memory.grown()


def test_where_few_requests_were_made_a_drafter_that_was_loading_during_the_first_has_not_grown():
    memory = Memory()
    for requests in range(0, 60, 2):
        memory.see(requests, {("hired drafter", 3): min(271.0, 37.0 + 8 * requests)})
    assert memory.grown() == []


def test_a_process_that_grows_is_found_although_its_role_held_as_much_before():
    memory = Memory()
    for requests in range(0, 3000, 50):
        killed = requests >= 1000
        memory.see(requests, {("drafter", 2 if killed else 1): 100.0 + (requests - 1000) / 10 if killed else 400.0})
    assert memory.grown() == ["the drafter that lived longest has grown from 165.0 to 295.0 MB"]
    assert memory.of_longest_lived()["drafter"]["requests"] == 1950


# --- speed -----------------------------------------------------------------------------------------------------------


def streams(*rates: tuple[float, float, int]) -> Pace:
    """Each from a time to another, so many tokens/s."""
    pace = Pace()
    for begin, end, rate in rates:
        for step in range(round((end - begin) * rate)):
            pace.add(begin + (step + 0.5) / rate, 1)
    return pace


def test_streams_that_are_at_once_as_fast_as_before_are_not_late():
    pace = streams((0, 4, 300), (4, 6, 100), (6, 10, 300))
    found = comeback(pace, "killed", 0, 4, 6, 10)
    assert (found.normal, found.without, found.seconds, found.late) == (300, 100, 0.0, False)
    assert found.after == (300,) * 8


def test_the_time_to_normal_speed_is_counted_from_the_return():
    pace = streams((0, 4, 300), (4, 7.5, 100), (7.5, 10, 290))
    found = comeback(pace, "killed", 0, 4, 6, 10)
    assert found.seconds == pytest.approx(1.5, abs=0.15) and not found.late


@pytest.mark.parametrize("rate", [100, 260])
def test_streams_that_stay_slow_are_late(rate):
    found = comeback(streams((0, 4, 300), (4, 10, rate)), "stopped", 0, 4, 6, 10)
    assert found.seconds is None and found.late


def test_a_second_at_normal_speed_that_begins_too_late_is_late():
    found = comeback(streams((0, 4, 300), (4, 8.8, 100), (8.8, 10, 300)), "stopped", 0, 4, 6, 10)
    assert found.seconds == pytest.approx(2.7, abs=0.15) and found.late


def test_one_late_return_among_several_is_reported_and_most_are_a_problem():
    fast = comeback(streams((0, 10, 300)), "killed", 0, 4, 6, 10)
    slow = comeback(streams((0, 4, 300)), "killed", 0, 4, 6, 10)
    assert problems([]) == problems([fast, fast, slow]) == []
    assert problems([fast, slow, slow])[0].startswith("2 of 3 times")


# --- drafters that are not back --------------------------------------------------------------------------------------


def missing(*cpu_s: float) -> Missing:
    """One of two is back, and so many processes are not, which have had so much of a CPU."""
    return Missing("killed", 2, 1, tuple(Process(7 + at, 170.0, cpu, hired=True) for at, cpu in enumerate(cpu_s)))


def test_a_drafter_that_has_had_no_time_to_load_is_reported_and_no_problem():
    one = missing(1.4)
    assert soak_missing.problems([one]) == []
    assert soak_missing.summary([one]) == [
        "1 of 2 drafters that were killed together were back: pid 7, started by hand 170 s ago, has had 1.4 s of a CPU"
    ]


@pytest.mark.parametrize("others", [(), (LOADED_CPU_S,), (1.4, LOADED_CPU_S)], ids=["gone", "loaded", "one of them"])
def test_a_drafter_that_nobody_starts_again_or_that_is_loaded_and_not_known_is_a_problem(others):
    one = missing(*others)
    assert soak_missing.problems([one]) == [one.told] and soak_missing.summary([one]) == []


def test_a_process_is_found_with_its_age_and_time():
    found = process(os.getpid(), hired=False)
    assert found is not None and found.age_s > 0 and found.cpu_s > 0
    assert process(2**22 + 1, hired=False) is None
