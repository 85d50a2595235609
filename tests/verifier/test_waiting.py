import pytest

from actors.cost import CostModel
from actors.estimate import Estimate
from actors.verifier.rate import Rate, UsualRates
from actors.verifier.waits import DrafterPace, patience


def test_a_request_begins_with_the_rate_that_others_reached():
    rates = UsualRates()
    first = Rate(rates.of("auto", False))
    assert first.value == 0.0
    for _ in range(30):
        first.add(4, 1000.0)
    assert Rate(rates.of("auto", False)).value == pytest.approx(0.004)
    assert Rate(rates.of("auto", True)).value == Rate(rates.of("tree", False)).value == 0.0


def test_a_requests_own_rounds_soon_weigh_more_than_others():
    usual = Estimate(0.004, weight=100, memory=200)
    rate = Rate(usual)
    for _ in range(12):
        rate.add(1, 1000.0)
    assert 0.001 < rate.value < 0.002
    assert usual.mean > 0.0035


def test_a_request_alone_needs_no_others():
    rate = Rate()
    rate.add(2, 1000.0)
    assert rate.value == pytest.approx(0.002)


def test_waiting_must_pay_for_itself():
    pace = DrafterPace(CostModel({1: 500.0}), message=Estimate(200.0))

    def cost(rows: int) -> float:
        return 10_000.0

    empty = 1.0 / cost(1)
    assert patience(pace, cost, 0.7, empty) > 1
    assert patience(pace, cost, 0.02, empty) == 0
    assert patience(DrafterPace(CostModel({1: 50_000.0})), cost, 0.7, empty) == 0
    assert patience(pace, cost, 0.7, 4.0 / cost(4)) == 0
