"""When the learner works: while nobody is served, and beside streams only if their rounds do not suffer."""

import random

from actors.backoff import LONGEST
from actors.learner.pace import COMPARED, REST_S, SILENT_S, WORK_S, Pace
from protocols.messages import Kind, RoundStats


def stats(wall_us: float, rows: int = 1, wait_us: float = 0.0) -> RoundStats:
    return RoundStats("r", 1, Kind("auto", "d"), 0, 0, 1, rows, wall_us, wait_us, wall_us + wait_us)


class Served:
    """Streams whose rounds take 10 ms, or another time, and more while the learner works."""

    def __init__(self, slower: float = 1.0, round_s: float = 0.01, seed: int = 0) -> None:
        self.pace, self.now, self.slower, self.round_s = Pace(), 0.0, slower, round_s
        self.pace.calibrated([(1, 5000.0), (8, 6000.0)])
        self.dice = random.Random(seed)

    def run(self, seconds: float) -> float:
        """A stream; the share of the time that it worked. It is asked once a second."""
        worked, end, asked = 0.0, self.now + seconds, 0.0
        at_work = self.pace.may_work(self.now)
        while self.now < end:
            self.now += self.round_s
            worked += self.round_s * at_work
            rows = self.dice.choice([1, 8])
            took = (5000 if rows == 1 else 6000) * self.dice.gauss(1, 0.1) * (self.slower if at_work else 1)
            self.pace.round(stats(took, rows), self.now)
            if self.now - asked >= 1.0:
                at_work, asked = self.pace.may_work(self.now), self.now
        return worked / seconds

    def requests(self, seconds: float, gap_s: float, count: int) -> float:
        """Streams of so many seconds with gaps between them; the share of their time that it worked."""
        worked = 0.0
        for _ in range(count):
            self.now += gap_s
            assert self.pace.may_work(self.now) is (gap_s > SILENT_S)
            self.pace.round(stats(5000), self.now)
            worked += self.run(seconds)
        return worked / count


def test_rounds_that_do_not_suffer_let_it_work_most_of_the_time():
    assert Served().run(600) > 0.75


def test_rounds_that_get_slower_by_a_twentieth_make_it_rest_ever_longer():
    served = Served(slower=1.05)
    served.run(600)
    assert served.run(1200) < 0.03


def test_it_works_again_when_it_does_not_disturb_any_more():
    served = Served(slower=1.1)
    served.run(1200)
    served.slower = 1.0
    served.run(6 * LONGEST * REST_S)
    assert served.run(600) > 0.5


def test_while_nobody_is_served_it_works():
    pace = Pace()
    assert all(pace.may_work(float(now)) for now in range(100))


def test_whoever_is_served_after_a_silence_is_not_disturbed_before_it_knows_what_it_costs():
    served = Served(slower=1.5)
    assert served.requests(2.0, gap_s=3.0, count=200) == 0.0


def test_a_target_of_few_rounds_a_second_is_not_slowed_for_long_to_find_out():
    served = Served(slower=1.3, round_s=0.2)
    assert served.run(600) < 0.06


def test_what_a_piece_of_work_that_began_in_silence_does_to_a_stream_says_nothing():
    pace = Pace()
    pace.calibrated([(1, 5000.0)])
    assert pace.may_work(0.0)
    for number in range(2 * COMPARED):
        pace.round(stats(50_000), number * 0.001)
    assert not pace.may_work(0.6)
    for number in range(COMPARED - 1):
        pace.round(stats(5000), 0.6 + number * 0.1)
    assert not pace.may_work(0.6 + (COMPARED - 1) * 0.1)  # there is nothing to compare with yet


def test_it_rests_between_two_turns_so_that_there_is_something_to_compare_with():
    pace = Pace()
    pace.calibrated([(1, 5000.0)])
    pace.round(stats(10_000), 0.0)
    assert not pace.may_work(0.0)
    for number in range(COMPARED):
        pace.round(stats(10_000), number * REST_S / COMPARED)
    assert not pace.may_work(REST_S / 2)
    assert pace.may_work(REST_S)
    pace.round(stats(10_000), REST_S + WORK_S)
    assert not pace.may_work(REST_S + WORK_S)
