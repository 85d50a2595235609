"""Trials of settings in virtual time: whose rounds are counted for which setting, and where the climb ends.

A world as simple as can be: goodput falls with the distance of gamma from the best one. A command comes into force two
rounds after it was given, and rounds name it one round too early, as the verifier's do.
"""

import math
import random
from collections import deque

import pytest

from actors.controller.climb import STEP, Control
from actors.cost import Curve
from protocols.messages import Kind, Method, Plan, RoundStats

PERIOD_S = 0.05  # seconds between decisions
KIND = Kind(str(Method.PEARL), "d")


class Load:
    """Streams that share rounds of one length, under a controller."""

    def __init__(self, streams: int, round_ms: float, best: int, seed: int = 0) -> None:
        self.streams, self.round_ms, self.best = streams, round_ms, best
        self.chance, self.control = random.Random(seed), Control()
        self.control.calibrated(((1, 1000.0 * round_ms), (8, 1010.0 * round_ms), (64, 1100.0 * round_ms)))
        self.control.steps["d"] = Curve({1: round_ms * 1000 / 6})
        self.gammas = deque([6, 6, 6])  # settings of the rounds that come: in force, named, commanded
        self.now = self.decides = 0.0
        self.right = self.counted = 0

    def goodput(self, gamma: int) -> float:
        """Relative to the best setting's."""
        return max(0.2, 1 - 0.1 * abs(math.log2(gamma / self.best)))

    @property
    def climb(self):
        return self.control.climbs.get((KIND, self.streams.bit_length()))

    def play(self, seconds: float) -> list[float]:
        """The goodput of each round."""
        until, found = self.now + seconds, []
        while self.now < until:
            self.now += self.round_ms / 1000
            while self.decides <= self.now:
                self.decides += PERIOD_S
                for budget in self.control.decide():
                    self.gammas[-1] = budget.gamma
            found.append(self.goodput(self.gammas[0]))
            self._round(self.gammas[0], self.gammas[1])
            self.gammas.append(self.gammas[-1])
            self.gammas.popleft()
        return found

    def _round(self, in_force: int, named: int) -> None:
        for stream in range(self.streams):
            tokens = max(1, round(self.chance.gauss(3 * self.goodput(in_force), 1.2)))
            trial = self.climb.trial if self.climb is not None else None
            before = len(trial.booked) if trial is not None else 0
            self.control.observe_round(
                RoundStats(
                    f"r{stream}", 0, KIND, in_force, min(in_force, tokens - 1), tokens, self.streams * (1 + in_force),
                    1000 * self.round_ms, 0.0, 1000 * self.round_ms,
                    plan=Plan(Method.PEARL, named), streams=self.streams,
                )
            )  # fmt: skip
            if (trial := self.climb.trial) is not None and len(trial.booked) > before * bool(stream):
                self.counted += 1
                self.right += in_force == trial.setting


LOADS = [(1, 10), (1, 5), (4, 10), (8, 20), (16, 20), (32, 40)]


@pytest.mark.parametrize(("streams", "round_ms"), LOADS)
def test_a_round_counts_for_the_setting_that_it_was_drafted_by(streams: int, round_ms: float):
    load = Load(streams, round_ms, best=6)
    load.play(30.0)
    assert load.counted > 100 * streams and load.right >= 0.97 * load.counted


@pytest.mark.parametrize(("streams", "round_ms"), [load for load in LOADS if load[0] > 1])
def test_the_climb_ends_near_the_best_setting_however_many_streams_share_rounds(streams: int, round_ms: float):
    load = Load(streams, round_ms, best=20)
    first = load.play(3.0)
    load.play(60.0)
    last = load.play(15.0)  # trials of neighbours included
    assert sum(first) / len(first) < 0.85 and sum(last) / len(last) >= 0.95


@pytest.mark.parametrize(("streams", "round_ms"), LOADS)
def test_a_start_that_is_right_is_not_left_for_luck(streams: int, round_ms: float):
    load = Load(streams, round_ms, best=6)
    load.play(40.0)
    last = load.play(15.0)
    assert sum(last) / len(last) >= 0.97


def test_a_setting_that_never_comes_into_force_is_given_up():
    """A user has fixed another."""
    load = Load(4, 10, best=6)
    load.gammas = deque([3, 3, 3], maxlen=3)
    load.control.decide, decide = list, load.control.decide
    trials = []
    for _ in range(200):
        load.play(0.1)
        decide()
        trials.append(load.climb.ways[0][1] if load.climb is not None else 1)
    assert load.counted == 0 and set(trials) == {1, -1}


def test_costs_that_change_end_a_trial_of_settings_that_are_far_off():
    load = Load(4, 10, best=6)
    while load.climb is None or load.climb.trial is None:
        load.play(0.1)
    load.control.steps["d"] = Curve({1: load.round_ms * 1000})  # a drafter that is six times slower
    before = load.gammas[-1]
    load.play(2 * PERIOD_S)
    assert load.gammas[-1] < before / STEP
