"""Is the drafter worth it, where the verifier has guesses of its own? Rounds in, one decision out."""

from __future__ import annotations

import random

import pytest

from actors.controller.worth import Worth
from protocols.messages import RoundStats

OVERHEAD_US = 500.0


def cost(rows: int) -> float:
    return 10_000.0 + 300.0 * (rows - 1)


class Stream:
    """Rounds as they would be published, obeying the controller's word with a round's delay."""

    def __init__(self, filing_us: float = 0.0) -> None:
        """``filing_us``: what a drafting round takes more than a resting one, beside its forward."""
        self.worth = Worth()
        self.filing_us = filing_us
        self.drafting = True

    def round(
        self, copied: int, drafted: int, wait_us: float = 0.0, slower: float = 1.0, window: int | None = None
    ) -> None:
        """``copied`` tokens the verifier guesses right by itself; ``drafted`` more the drafter adds, if it drafts.
        ``slower``: the forward, because a drafter works beside it."""
        right = copied + (drafted if self.drafting else 0)
        window = min(16, 2 * right + 2) if window is None else window
        forward = cost(1 + window) * (slower if self.drafting else 1.0)
        wait = wait_us if self.drafting else 0.0
        overhead = OVERHEAD_US + (self.filing_us if self.drafting else 0.0)
        stats = RoundStats(
            "r", 1, "auto", "d", window, right, right + 1, 1 + window, forward, wait, forward + wait + overhead,
            retrieved=copied, resting=not self.drafting,
        )  # fmt: skip
        self.worth.observe(stats, cost)
        self.drafting = self.worth.drafting
        self.worth.decide()

    def rounds(self, count: int, *, copied: int, drafted: int, **what: float) -> int:
        """In how many of them the drafter was at work."""
        at_work = 0
        for number in range(count):
            at_work += self.drafting
            self.round(copied, drafted if number % 2 else 0, **what)
        return at_work


def test_text_that_copies_while_the_drafter_rests_is_not_held_against_it():
    stream = Stream()
    stream.rounds(60, copied=1, drafted=0)
    assert not stream.worth.drafting
    at_work = 0
    for _ in range(20):  # answers that begin afresh, and then repeat themselves
        at_work += stream.rounds(15, copied=0, drafted=3, wait_us=800.0)
        stream.rounds(25, copied=4, drafted=1, wait_us=800.0)
    assert at_work > 0.75 * 20 * 15  # all but the first rest


def test_a_few_unlucky_rounds_are_no_evidence():
    stream = Stream()
    for number in range(26):  # the windows of a calibration that is still too sure of itself
        stream.round(number % 2, 5 if number % 12 == 11 else 0, wait_us=3000.0, window=8)
    assert stream.worth.drafting


def test_a_drafter_that_adds_nothing_rests_whatever_there_is_to_copy():
    stream = Stream()
    for copied in (0, 3, 0, 5) * 5:
        stream.rounds(60, copied=copied, drafted=0, wait_us=1000.0)
    assert stream.rounds(600, copied=2, drafted=0, wait_us=1000.0) < 100


def test_a_probe_on_a_stretch_that_only_copies_is_not_lost():
    stream = Stream()
    stream.rounds(100, copied=0, drafted=0)
    assert not stream.worth.drafting
    while not stream.drafting:
        stream.round(6, 0)
    assert stream.rounds(40, copied=6, drafted=0) == 40
    assert stream.rounds(80, copied=0, drafted=2) == 80


def test_a_drafter_that_slows_every_round_more_than_it_adds_rests_on_after_its_probe():
    stream = Stream()
    stream.rounds(60, copied=1, drafted=0)
    assert not stream.worth.drafting
    assert stream.rounds(600, copied=1, drafted=1, wait_us=4000.0, slower=1.4) < 150


def test_a_drafter_that_pays_is_kept_through_every_kind_of_text():
    stream = Stream()
    for copied in (0, 3, 1, 6, 0, 2) * 3:
        assert stream.rounds(40, copied=copied, drafted=2, wait_us=800.0) == 40


class Chance:
    """Rounds in which a drafter's one draft is right with some chance, so that profits scatter as real ones do."""

    def __init__(self, seed: int, chance: float, filing_us: float, slower: float = 1.0) -> None:
        self.random, self.chance, self.slower = random.Random(seed), chance, slower
        self.stream = Stream(filing_us)

    def drafting_share(self, rounds: int) -> float:
        at_work = 0
        for _ in range(rounds):
            at_work += self.stream.drafting
            right = sum(self.random.random() < self.chance for _ in range(2))
            self.stream.round(0, right, slower=self.slower, window=1)
        return at_work / rounds


def gain(chance: float, filing_us: float) -> float:
    """Of drafting, in tokens per second over those of resting."""
    drafting = (1 + 2 * chance) / (cost(2) + OVERHEAD_US + filing_us)
    return drafting * (cost(1) + OVERHEAD_US)


@pytest.mark.parametrize("seed", range(5))
def test_a_drafter_whose_filing_costs_more_than_its_drafts_bring_rests(seed):
    assert 0.95 < gain(0.22, 5000.0) < 0.96
    traffic = Chance(seed, 0.22, 5000.0)
    traffic.drafting_share(1000)
    assert traffic.drafting_share(4000) < 0.2


@pytest.mark.parametrize("seed", range(5))
def test_a_drafter_that_brings_a_little_more_than_it_costs_drafts(seed):
    assert 1.05 < gain(0.3, 5000.0) < 1.08
    traffic = Chance(seed, 0.3, 5000.0)
    assert traffic.drafting_share(5000) > 0.8


def test_a_drafter_that_slows_the_forward_beside_it_rests_though_the_cost_model_learns_from_slowed_forwards():
    stream = Stream()

    def round_beside(number: int) -> None:  # the model of cost follows what forwards take
        slowdown = 1.4 if stream.drafting else 1.0
        took = slowdown * cost(2)
        right = number % 4 == 0 and stream.drafting
        resting = not stream.drafting
        stats = RoundStats(
            "r", 1, "auto", "d", 1, right, right + 1, 2, took, 0.0, took + OVERHEAD_US,
            resting=resting, slowdown=slowdown,
        )  # fmt: skip
        stream.worth.observe(stats, lambda rows: slowdown * cost(rows))
        stream.drafting = stream.worth.drafting
        stream.worth.decide()

    at_work = 0
    for number in range(4000):
        at_work += stream.drafting
        round_beside(number)
    assert at_work < 1200
