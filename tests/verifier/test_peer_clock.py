"""When a drafter worked, by the verifier's clock."""

from itertools import pairwise

import pytest

from actors.verifier.drafters import DRIFT, PeerClock
from tests.world.simulation import Simulation, World


def test_a_message_that_waited_says_nothing_of_the_clocks():
    clock = PeerClock()
    clock.sent(1000.0, 501_100.0)
    assert clock.sent(2000.0, 512_000.0) == pytest.approx(502_100.0, abs=10)  # it waited for a forward of 10 ms
    clock.sent(3000.0, 503_050.0)  # the quickest yet
    assert clock.sent(4000.0, 514_000.0) == 504_050.0


def test_clocks_that_part_slowly_are_followed():
    clock = PeerClock()
    for second in range(100):
        peer_us = second * 1e6
        sent = clock.sent(peer_us, 500.0 + peer_us * (1 + DRIFT / 2))
    assert sent == pytest.approx(500.0 + 99e6 * (1 + DRIFT / 2), abs=1.0)


def test_a_drafter_that_began_anew_has_a_clock_of_its_own():
    clock = PeerClock()
    clock.sent(9e6, 9e6 + 70.0)
    assert PeerClock() != clock and PeerClock().offset is None


@pytest.mark.parametrize("step_us", [300.0, 1300.0])
@pytest.mark.parametrize("method", ["sps", "duodecoding", "duodecoding-lockstep", "tree"])
def test_drafting_is_published_when_it_was_and_as_long_as_it_was(method, step_us):
    world = World(skill=0.7, step=step_us, leaf=0.0)
    sim = Simulation(world, method)
    sim.gamma = 5
    sim.play((world, 150, 1))
    published = [forward for _, stats in sim.trace.rounds[1:] for forward in stats.drafting.forwards]
    assert len(published) > 50
    for start, length in published:
        truly = min(sim.trace.forwards, key=lambda one: abs(one[0] - start))
        assert abs(truly[0] - start) < world.message + 20 and abs(truly[1] - length) <= 1
    for (start, length), (following, _) in pairwise(sorted(published)):
        assert following >= start + length - 20
