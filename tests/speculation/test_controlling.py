"""The controller against a simulated decoder whose true parameters change under it."""

import random

import pytest

from actors.speculation.budget import MOST_GAMMA, Belief, best_setting, goodput
from actors.speculation.controlling import Control
from actors.speculation.costs import CostModel
from protocols.messages import DraftStats, RoundStats


class World:
    """PEARL decoding in virtual time with acceptance ``a``, draft step and verify cost in microseconds."""

    def __init__(self, a: float, step: float, cost: CostModel, seed: int = 0) -> None:
        self.a, self.step, self.cost = a, step, cost
        self.random = random.Random(seed)
        self.control = Control()
        self.gamma = 8
        self.chain = False
        self.round = 0

    def belief(self) -> Belief:
        return Belief((self.a,), (self.a,), self.step, overhead_us=100.0)

    def optimum(self) -> float:
        return best_setting("pearl", self.belief(), self.cost, MOST_GAMMA)[2]

    def regret(self) -> float:
        """How far the true goodput of the setting in force lies below the best."""
        return 1 - goodput("pearl", self.gamma, 1, self.belief(), self.cost) / self.optimum()

    def run(self, rounds: int) -> None:
        for _ in range(rounds):
            window = max(0, self.gamma - 1) if self.chain else 0
            accepted = 0
            while accepted < window and self.random.random() < self.a:
                accepted += 1
            hit = accepted == window and self.gamma > 0 and self.random.random() < self.a
            forward = self.cost(1 + window) * self.random.uniform(0.97, 1.03)
            wall = max(forward, self.gamma * self.step) + 100.0
            self.round += 1
            self.control.observe_round(
                RoundStats(
                    "r",
                    self.round,
                    "pearl",
                    "d",
                    window,
                    accepted,
                    accepted + 1,
                    1 + window,
                    forward,
                    wall - forward - 100.0,
                    wall,
                    needed_sequences=1 if hit else 0,
                    gamma=self.gamma,
                )
            )
            self.chain = hit
            self.control.observe_draft(DraftStats("d", ((1, self.step),), 0.5))
            for budget in self.control.decide():
                self.gamma = budget.gamma


GPU = CostModel({1: 10_000.0, 33: 11_000.0})


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"step": 4000.0}, id="the drafter slows down 5 times"),
        pytest.param({"a": 0.5}, id="acceptance falls"),
        pytest.param({"a": 0.95}, id="acceptance rises"),
        pytest.param({"cost": CostModel({1: 1000.0, 33: 1100.0})}, id="the verifier gets 10 times faster"),
        pytest.param({"cost": CostModel({1: 10_000.0, 33: 60_000.0})}, id="every row costs, as in a larger batch"),
    ],
)
def test_after_a_change_the_setting_is_near_the_best_fixed_one_again(change, seed):
    world = World(0.8, 800.0, GPU, seed)
    world.run(120)
    assert world.regret() < 0.05
    for name, value in change.items():
        setattr(world, name, value)
    world.run(50)
    assert world.regret() < 0.08
    world.run(50)
    assert world.regret() < 0.05


def test_a_useless_drafter_is_switched_off_and_probed_again():
    world = World(0.02, 6000.0, CostModel({1: 5000.0, 33: 50_000.0}))
    seen = set()
    for _ in range(300):
        world.run(1)
        seen.add((world.round > 60, world.gamma))
    late = [gamma for after, gamma in seen if after]
    assert 0 in late and any(late)
    assert world.control.methods["pearl"].predicted > 0
    world.a, world.step = 0.9, 300.0
    world.run(250)
    assert world.gamma > 0 and world.regret() < 0.1


def test_settings_do_not_thrash_under_noise():
    world = World(0.8, 800.0, GPU)
    world.run(100)
    changes, last = 0, world.gamma
    for _ in range(200):
        world.run(1)
        changes += world.gamma != last
        last = world.gamma
    assert changes < 20


def test_gamma_follows_the_number_of_sequences_that_the_theta_rule_really_wants():
    chosen = {}
    for wanted in (1, 4):
        control = Control()
        chance = random.Random(1)
        for i in range(400):
            accepted = 0
            while accepted < 3 and chance.random() < 0.7:
                accepted += 1
            hit = chance.random() < (0.6 if wanted == 1 else 0.95)
            rank = (1 if chance.random() < 0.6 else 3) if hit else 0
            stats = RoundStats(
                "r", i, "duodecoding", "d", 3, accepted, accepted + 1, 4, GPU(4), 0.0, GPU(4) + 100.0,
                sequences=wanted, needed_sequences=rank, gamma=8,
            )  # fmt: skip
            control.observe_round(stats)
            control.observe_draft(DraftStats("d", ((1, 300.0),), 0.5))
            budgets = control.decide()
        chosen[wanted] = budgets[0]
    assert chosen[1].gamma < chosen[4].gamma
    assert chosen[4].sequences == 0
