"""The one model of cost, fed by rounds of a machine whose times are known."""

import pytest

from actors.cost import CostModel
from actors.verifier.price import GUESSED, Price
from actors.verifier.rounds import Part, Round, Share
from protocols.messages import Sampling
from tests.world.models import ToyLanguage, ToyTarget
from tests.world.table import Table, asked

CURVE = {1: 1000.0, 8: 1700.0, 16: 2500.0, 32: 4100.0}


def a_round(streams=1, drafts=0, forward_us=1000.0, **fields) -> Round:
    known = {
        "streams": streams, "rows": streams + drafts, "prompt_rows": 0, "steps": 1, "forward_us": forward_us,
        "prompt_us": 0.0, "own_us": forward_us, "waited_us": 0.0, "whole_piece": True,
        "tokens": streams,
    }  # fmt: skip
    return Round(**{**known, **fields})


def learnt(*rounds: Round, times: int = 60) -> Price:
    price = Price(CostModel(CURVE))
    for _ in range(times):
        for one in rounds:
            price.observe(one)
    return price


def test_before_anything_is_measured_the_calibration_counts():
    price = Price(CostModel(CURVE))
    assert (price.forward(1), price.forward(1, 7), price.plain(1)) == (1000.0, 1700.0, 1000.0)
    assert price.rate(1) == pytest.approx(1 / 1000.0)


def test_streams_that_share_a_forward_take_more_than_as_many_rows():
    price = learnt(a_round(streams=8, forward_us=3400.0))
    assert price.forward(8) == pytest.approx(3400.0, rel=0.02)
    assert price.forward(1) == pytest.approx(1000.0, rel=0.05)


def test_rows_of_a_prompt_have_a_price_of_their_own():
    price = learnt(a_round(), a_round(prompt_rows=100, forward_us=6000.0))
    assert price.forward(1) + 100 * price.prompt_row == pytest.approx(6000.0, rel=0.1)


@pytest.mark.parametrize("streams", [0, 4])
def test_the_last_piece_of_a_prompt_does_not_change_the_price_of_its_rows(streams):
    """It has fewer rows than were asked for."""
    price = learnt(a_round(streams, prompt_rows=64, forward_us=42_000.0))
    before = price.prompt_row
    for _ in range(4):
        price.observe(a_round(streams, prompt_rows=64, forward_us=3_000.0, whole_piece=False))
    assert price.prompt_row == before


def test_a_drafter_on_cpus_of_the_target_is_tried_only_where_a_good_draft_could_pay():
    slow = {rows: 2 * us for rows, us in CURVE.items()}
    price = Price(CostModel(slow, lent=CURVE))
    assert price.drafter_may_pay(1)
    assert not price.drafter_may_pay(8)
    assert Price(CostModel(slow)).drafter_may_pay(8)


def test_a_round_that_asked_for_drafts_in_vain_does_not_make_plain_ones_look_dear():
    """Several of those follow one another, and pay once for what is beside a forward."""
    share = Share("text", 0, 1, 300.0)
    asked = a_round(own_us=1600.0, parts=(Part(None, None, 1, 1, 1600.0, (share,), None),))
    row = a_round(steps=10, forward_us=10_000.0, own_us=10_900.0, tokens=10)
    assert learnt(asked, row).plain(1) == pytest.approx(1090.0, rel=0.01)
    assert learnt(asked).plain(1) == pytest.approx(1600.0, rel=0.01)  # until there is a better one


def test_the_rate_follows_the_text():
    price = learnt(a_round(drafts=7, forward_us=1700.0, tokens=5))
    assert price.rate(1) == pytest.approx(5 / 1700.0, rel=0.01)


def test_rounds_without_drafts_have_a_price_for_each_number_of_streams():
    """Many streams share what is beside a forward."""
    price = learnt(a_round(own_us=1100.0), a_round(streams=8, forward_us=1700.0, own_us=1980.0))
    assert price.beside(1) == pytest.approx(100.0) and price.beside(8) == pytest.approx(280.0)
    assert price.beside(32) == 4 * price.beside(8), "the nearest number that is known counts"


def test_drafts_are_judged_by_rounds_without_any_and_the_first_round_is_cold():
    price, share = Price(CostModel(CURVE)), Share("inline", 3, 1, 0.0)
    drafted = a_round(
        drafts=3, own_us=1600.0, unattended=False, parts=(Part(None, None, 1, 1, 1600.0, (share,), None),)
    )
    assert price.unmeasured(1) == 1
    price.observe(a_round(own_us=9000.0))
    assert price.unmeasured(1) == GUESSED and price.beside(1) == 8000.0
    for left in range(GUESSED, 0, -1):
        assert price.unmeasured(1) == left
        price.observe(a_round(own_us=1100.0))
        price.observe(drafted)
    assert price.unmeasured(1) == 0 and price.unmeasured(8) == 1
    for _ in range(20):
        price.observe(drafted)
    assert price.beside(1) == pytest.approx(100.0, rel=0.02)


def test_a_question_about_unknown_numbers_of_streams_hides_none_that_is_known():
    price = learnt(a_round(own_us=1100.0), a_round(own_us=1100.0 + 120.0, drafts=2, forward_us=1100.0))
    assert price.unmeasured(8) and price.plain(2) and price.beside(4) == 4 * price.beside(1)
    assert price.interruption(8) == pytest.approx(8 * price.interruption(1)) and price.interruption(1) > 0.0


@pytest.mark.parametrize(("measured", "again"), [(1.0, 0), (1.2, 0), (1.3, 1), (3.0, 1), (0.5, 0)])
def test_times_of_a_busy_machine_are_measured_again_at_the_next_start(measured, again):
    """``measured``: over what rounds take. Rounds that take longer than was measured prove nothing."""
    said, stream = [], asked((5, 9, 33), "vanilla", sampling=Sampling(max_tokens=60, ignore_eos=True))
    cost = CostModel({1: measured * 1000.0})
    table = Table(ToyTarget(ToyLanguage()), stream, cost=cost, measure_again=lambda: said.append(True))
    while not table.over:
        table.verifier._learn(table.forward())
    assert len(said) == again
