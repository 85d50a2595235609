import pytest

from actors.cost import CostModel
from actors.estimate import Estimate
from actors.tree.tree import TokenTree
from actors.verifier.waits import DrafterPace, Going, Wait, patience


def going(value: float, longest_us: float | None = None) -> Going:
    return Going(0.0, lambda rows: 10_000.0, value, False, True, None, longest_us)


EMPTY = 1.0 / 10_000.0


def test_waiting_must_pay_for_itself():
    pace = DrafterPace(CostModel({1: 500.0}), message=Estimate(200.0))
    assert patience(pace, 0.7, going(EMPTY)) > 1
    assert patience(pace, 0.02, going(EMPTY)) == 0
    assert patience(DrafterPace(CostModel({1: 50_000.0})), 0.7, going(EMPTY)) == 0
    assert patience(pace, 0.7, going(4 * EMPTY)) == 0


@pytest.mark.parametrize(("longest_us", "drafts"), [(0.0, 0), (700.0, 1), (1200.0, 2)])
def test_the_controller_bounds_a_wait(longest_us, drafts):
    pace = DrafterPace(CostModel({1: 500.0}), message=Estimate(200.0))
    assert patience(pace, 0.7, going(EMPTY, longest_us)) == drafts


def test_a_moment_of_slow_messages_does_not_end_waiting_for_ever():
    pace, wait, tree = DrafterPace(CostModel({1: 500.0})), Wait("priced", 8), TokenTree(1)

    def waits() -> bool:
        wait.decide(pace, tree, going(EMPTY))
        return wait.until is not None

    assert waits()
    wait.arrived()
    wait.end_phase()
    assert wait.over(500_000.0, tree), "the drafts came after half a second"
    assert not waits()
    assert any(waits() for _ in range(1000)), "a wait is the only way to find that messages are quick again"
