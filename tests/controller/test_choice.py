"""The controller's estimates and choices, piece by piece; how it does in a changing world is in test_adaptation."""

import random

import pytest

from actors.controller.belief import LineCost
from actors.controller.choice import Control
from actors.verifier.cost import CostModel
from protocols.messages import RoundStats

GPU = CostModel({1: 10_000.0, 33: 11_000.0})


def line_after(pace: float, rounds: int, line: LineCost | None = None) -> LineCost:
    line = line or LineCost()
    chance = random.Random(0)
    for _ in range(rounds):
        rows = chance.randrange(1, 12)
        line.observe(rows, pace * (1000.0 + 100.0 * rows))
    return line


def test_a_line_is_recovered_from_rounds():
    line = line_after(1.0, 60)
    assert [line(rows) for rows in (1, 8, 16)] == pytest.approx([1100.0, 1800.0, 2600.0], rel=0.02)


@pytest.mark.parametrize("pace", [0.1, 10.0])
def test_a_target_that_changes_its_pace_is_believed_within_a_few_rounds(pace):
    line = line_after(pace, 5, line_after(1.0, 60))
    assert line(8) == pytest.approx(1800.0 * pace, rel=0.15)


def test_a_single_stall_moves_no_belief():
    line = line_after(1.0, 60)
    line.observe(4, 1e6)
    assert line(8) == pytest.approx(1800.0, rel=0.02)


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
                draft_us=2400.0, draft_steps=8, sequences=wanted, needed_sequences=rank, gamma=8,
            )  # fmt: skip
            control.observe_round(stats)
            budgets = control.decide()
        chosen[wanted] = budgets[0]
    assert chosen[1].gamma < chosen[4].gamma
    assert chosen[4].sequences == 0
