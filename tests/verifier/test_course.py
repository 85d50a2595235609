"""Whether one stream makes use of its drafter, beside what the drafter brings to others."""

from __future__ import annotations

import random

import pytest

from actors.cost import CostModel
from actors.verifier.course import Course
from actors.verifier.plain import PlainRounds

COST = CostModel({1: 10_000.0, 31: 19_000.0})  # 300 us a row
OVERHEAD_US = 500.0


class Stream:
    """Rounds of a stream whose drafter other texts say ``prior`` of."""

    def __init__(self, prior: float = 1.0, filing_us: float = 0.0, slower: float = 1.0, seen: bool = True) -> None:
        """``filing_us``: what a drafting round takes more than a resting one, beside its forward. ``slower``: its
        forward, because a drafter works beside it. ``seen``: what rounds take without it has been measured."""
        self.prior, self.filing_us, self.slower = prior, filing_us, slower
        self.course, self.plain = Course(), PlainRounds()
        if seen:
            self.plain.observe(COST, 1, 10_000.0, OVERHEAD_US, 1)

    def round(self, copied: int, added: int, window: int | None = None) -> bool:
        """``copied`` tokens the verifier guesses by itself; ``added`` more the drafter. Whether it was at work."""
        if self.course.resting:
            self.plain.observe(COST, 1 + copied, COST.curve(1 + copied), OVERHEAD_US, 1)
            self.course.rested()
            return False
        rows = 1 + (copied + 2 * added + 1 if window is None else copied + window)
        wall_us = self.slower * COST.curve(rows) + OVERHEAD_US + self.filing_us
        without = (1 + copied) * wall_us / self.plain.time(COST, 1 + copied, 1)
        self.course.drafted(1 + copied + added, without, self.prior, self.plain.known)
        return True

    def share(self, rounds: int, chance: float, copied: int = 0, seed: int = 0) -> float:
        """Of rounds with the drafter, whose two drafts are each right with that chance."""
        luck = random.Random(seed)
        return sum(self.round(copied, sum(luck.random() < chance for _ in "ab"), 2) for _ in range(rounds)) / rounds


def test_a_drafter_that_pays_is_kept_through_every_kind_of_text():
    stream = Stream(1.3)
    assert all(stream.round(copied, added) for copied in (0, 3, 1, 6, 0, 2) * 3 for added in (0, 2) * 20)


def test_a_drafter_that_adds_nothing_rests_whatever_there_is_to_copy():
    stream = Stream(1.1)
    for copied in (0, 3, 0, 5) * 5:
        for _ in range(60):
            stream.round(copied, 0, 4)
    assert sum(stream.round(2, 0, 4) for _ in range(600)) < 60


def test_a_few_unlucky_rounds_are_no_evidence_against_what_others_say():
    stream = Stream(1.3)
    assert all(stream.round(0, 5 if number == 25 else 0, 2) for number in range(26))


def test_a_stream_in_which_drafts_fail_rests_where_those_of_others_pay_and_the_other_way_round():
    pays, fails = Stream(0.97), Stream(1.05, filing_us=1000.0)
    assert pays.share(400, 0.5) > 0.8
    assert fails.share(400, 0.02) < 0.3


def test_the_longer_a_stream_rests_the_rarer_it_tries_again():
    stream = Stream()
    used = [stream.round(0, 0, 4) for _ in range(4000)]
    assert sum(used[:400]) < 60
    assert sum(used[2000:]) < 40


def test_a_text_that_becomes_one_in_which_drafts_pay_has_them_again():
    stream = Stream()
    stream.share(100, 0.0)
    assert stream.course.resting
    assert stream.share(800, 0.7) > 0.6


@pytest.mark.parametrize("seed", range(3))
def test_what_a_drafter_costs_beside_its_rows_is_held_against_it(seed):
    costs, slows, does_not = Stream(filing_us=5000.0), Stream(slower=1.4), Stream()
    assert costs.share(4000, 0.15, seed=seed) < 0.2
    assert slows.share(4000, 0.15, seed=seed) < 0.2
    assert does_not.share(4000, 0.15, seed=seed) > 0.8


def test_before_a_round_without_it_was_seen_a_drafter_that_may_not_pay_rests_for_a_look_and_one_that_does_never():
    doubtful, good = Stream(filing_us=2000.0, seen=False), Stream(1.3, seen=False)
    assert good.share(100, 0.8) == 1.0
    rounds = [doubtful.round(0, number % 4 == 0, 2) for number in range(60)]
    look = rounds.index(False)
    assert rounds[look : look + 8] == [False] * 8 and rounds[look + 8]


def test_a_drafter_whose_cpu_would_bring_the_target_more_than_its_drafts_do_rests_before_that_was_seen():
    cost = CostModel({1: 10_000.0, 31: 19_000.0}, lent={1: 6_000.0, 31: 10_000.0})
    assert PlainRounds().time(CostModel({1: 10_000.0, 31: 19_000.0}), 1, 1) == 10_000.0
    assert PlainRounds().time(cost, 1, 1) == 6_000.0
    course = Course()
    for _ in range(10):
        course.drafted(2, 12_000.0 / PlainRounds().time(cost, 1, 1) + 0.1, 1.0, plain_known=False)
    assert course.resting, "1.3 of what the target makes on its own CPUs alone is less than it makes on all"
