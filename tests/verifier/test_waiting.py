import pytest

from actors.cost import CostModel
from actors.estimate import Estimate
from actors.verifier.waits import DrafterPace, Going, patience


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
