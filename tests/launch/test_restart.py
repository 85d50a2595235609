"""Restart policy, without processes."""

from __future__ import annotations

import pytest

from duoactor.launch.restart import Lifecycle, describe_exit


def test_the_first_start_again_is_at_once_and_then_the_delay_doubles_to_ten_seconds():
    life = Lifecycle()
    delays = []
    for _ in range(8):
        life.ready(0.0)
        delays.append(life.died(1.0, -9) - 1.0)
    assert delays == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


def test_an_actor_that_served_is_started_again_at_once_however_often_it_is_killed():
    life = Lifecycle()
    for _ in range(4):
        life.ready(0.0)
        life.died(1.0, -9)
    for now in (101.0, 111.0, 121.0):
        life.ready(now)
        assert life.died(now + 2.0, -9) == now + 2.0


def test_a_healthy_time_counts_from_readiness_and_not_from_the_start():
    life = Lifecycle()
    for now in (0.0, 100.0):
        life.ready(now + 50.0)
        again = life.died(now + 51.0, -9)
    assert again == 151.5


def test_five_deaths_before_readiness_are_enough():
    life = Lifecycle()
    again = [life.died(float(now), -11) for now in range(5)]
    assert None not in again[:4]
    assert again[4] is None and life.deaths == 5


def test_an_actor_that_was_ready_once_is_started_again_however_often_it_dies_while_it_loads():
    """What killed it may pass: a machine without memory to spare, or one so busy that loading takes minutes."""
    life = Lifecycle()
    for now in range(4):
        life.died(float(now), -11)
    life.ready(10.0)
    assert life.died(11.0, -11) is not None
    for now in range(20):
        again = life.died(20.0 + now, -9)
    assert again == 49.0


@pytest.mark.parametrize("code", [1, 2])
def test_an_actor_that_says_why_it_cannot_run_is_not_started_again(code: int):
    life = Lifecycle()
    assert life.died(0.3, code) is None


def test_the_same_exit_code_after_a_good_life_is_a_crash():
    life = Lifecycle()
    life.ready(1.0)
    assert life.died(5.0, 1) == 5.0
    assert life.died(5.1, 1) == 5.6


def test_an_exit_is_described_by_its_signal():
    assert describe_exit(-9) == "was killed by SIGKILL"
    assert describe_exit(-100) == "was killed by signal 100"
    assert describe_exit(3) == "ended with exit code 3"
