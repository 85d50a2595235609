"""The controller's choices, piece by piece; how it does in a changing world is in test_adaptation."""

import random

import pytest

from actors.controller.choice import Control
from actors.cost import CostModel
from protocols.messages import Budget, DraftStats, RoundStats

GPU = CostModel({1: 10_000.0, 33: 11_000.0})
METHODS = ["sps", "pearl", "duodecoding", "duodecoding-lockstep", "tree", "auto"]


class Rounds:
    """A controller that hears of rounds in which drafts are right with some chance."""

    def __init__(self, method: str, skill: float = 0.7, wanted: int = 1) -> None:
        self.method, self.skill, self.wanted = method, skill, wanted
        self.chance = random.Random(1)
        self.control = Control()
        self.control.calibrated(GPU.calibration())
        self.step_us = 500.0

    def play(self, count: int, streams: int = 1, drafter: str = "d", resting: bool = False) -> Budget | None:
        """The newest budget."""
        budget = None
        for number in range(count):
            self.control.observe_draft(DraftStats(drafter, ((1, self.step_us), (8, 2 * self.step_us)), 0.5))
            ranks = [1 if self.chance.random() < self.skill else self.chance.choice((0, 2, 3)) for _ in range(4)]
            accepted = next((i for i, rank in enumerate(ranks) if rank != 1), 4)
            self.control.observe_round(
                RoundStats(
                    "r",
                    number,
                    self.method,
                    drafter,
                    4,
                    accepted,
                    accepted + 1,
                    5 * streams,
                    GPU(5 * streams),
                    0.0,
                    GPU(5 * streams) + 200.0,
                    sequences=self.wanted,
                    draft_ranks=tuple(ranks[: accepted + 1]),
                    streams=streams,
                    message_us=200.0,
                    resting=resting,
                )
            )
            budget = next(iter(self.control.decide()), budget)
        return budget


@pytest.mark.parametrize("method", METHODS)
def test_whether_drafts_pay_is_left_to_the_verifier(method):
    budget = Rounds(method, skill=0.02).play(300)
    assert budget.gamma >= 1


def test_rounds_of_a_rest_teach_nothing_of_drafts():
    rounds = Rounds("auto")
    before = rounds.play(60)
    assert rounds.play(200, resting=True) is None
    assert rounds.play(1).gamma == before.gamma


@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_told_a_gamma(method):
    assert Rounds(method).play(60).gamma >= 1


@pytest.mark.parametrize("method", ["tree", "auto"])
def test_a_tree_is_told_its_depth_its_leaves_its_window_and_its_wait(method):
    budget = Rounds(method).play(60)
    assert None not in (budget.gamma, budget.sequences, budget.window, budget.wait_us)


def test_a_parallel_chain_is_told_how_much_of_it_is_verified_at_once_and_waits_by_its_own_rule():
    budget = Rounds("pearl").play(60)
    assert budget.window is not None
    assert (budget.sequences, budget.wait_us) == (None, None)


@pytest.mark.parametrize("method", ["sps", "duodecoding-lockstep"])
def test_where_the_sides_take_turns_or_go_in_step_the_window_is_the_chain(method):
    assert Rounds(method).play(60).window is None


@pytest.mark.parametrize("method", METHODS)
def test_a_drafter_that_slows_down_is_asked_for_less(method):
    rounds = Rounds(method)
    before = rounds.play(100)
    rounds.step_us *= 8
    assert rounds.play(100).gamma < before.gamma


def test_streams_that_share_a_forward_do_not_wait():
    rounds = Rounds("tree")
    assert rounds.play(60).wait_us > 0
    assert rounds.play(60, streams=4).wait_us == 0


def test_each_drafter_has_its_own_budget():
    rounds = Rounds("sps")
    fast = rounds.play(60)
    rounds.step_us = 8000.0
    slow = rounds.play(60, drafter="e")
    assert (fast.drafter, slow.drafter) == ("d", "e")
    assert slow.gamma < fast.gamma


def test_gamma_follows_the_number_of_sequences_that_the_theta_rule_really_wants():
    assert Rounds("duodecoding", skill=0.6, wanted=1).play(300).gamma < (
        Rounds("duodecoding", skill=0.6, wanted=4).play(300).gamma
    )


@pytest.mark.parametrize("method", ["pearl", "duodecoding"])
def test_parallel_chains_of_several_streams_wait_for_no_survivor(method):
    rounds = Rounds(method)
    assert rounds.play(60).wait_us is None
    assert rounds.play(60, streams=4).wait_us == 0
