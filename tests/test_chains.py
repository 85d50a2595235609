"""The first draft length of a chain, in closed form."""

import random

import pytest

from actors.chains import Costs
from actors.cost import Curve
from actors.models import DEFAULT_NODES
from protocols.messages import Method

METHODS = (Method.SPS, Method.PEARL, Method.DUODECODING)


class Counted(Curve):
    asked = 0

    def __call__(self, rows: int) -> float:
        self.asked += 1
        return super().__call__(rows)


def some_costs(seed: int) -> Costs:
    dice = random.Random(seed)
    row = dice.choice([0.0, 20.0, 500.0])
    forward = Counted({rows: 1000.0 + row * rows * dice.uniform(0.8, 1.2) for rows in (1, 4, 6, 7, 8, 16, 32, 64)})
    step = Curve({1: dice.choice([10.0, 300.0, 5000.0]), 8: 6000.0})
    streams, chance = dice.choice([1, 1, 4]), dice.choice([0.01, 0.3, 0.6, 0.9, 0.99])
    return Costs(forward, step, 1.0, dice.choice([0.0, 200.0]), dice.choice([0.0, 600.0]), streams, chance)


@pytest.mark.parametrize("method", METHODS)
def test_no_other_draft_length_is_better(method):
    for seed in range(300):
        costs = some_costs(seed)
        best = max(costs.goodput(method, gamma) for gamma in range(1, DEFAULT_NODES + 1))
        assert costs.goodput(method, costs.gamma(method)) == best, costs


@pytest.mark.parametrize("method", METHODS)
def test_lengths_that_cannot_be_better_are_not_tried(method):
    """A verifier asks for every stream in every round."""
    forward = Counted({1: 1000.0, 64: 2000.0})
    Costs(forward, Curve({1: 300.0}), 1.0, 200.0, 600.0, 1, 0.6).gamma(method)
    assert forward.asked < DEFAULT_NODES


def test_the_accepted_tokens_of_a_chain_are_a_geometric_sum():
    costs = some_costs(0)._replace(chance=0.6)
    assert costs.expected(0) == 0 and costs.expected(3) == pytest.approx(0.6 + 0.36 + 0.216)
