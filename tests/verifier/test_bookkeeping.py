import random
from types import SimpleNamespace

import pytest

from actors.verifier.bookkeeping import Bookkeeping
from actors.verifier.forward import Job
from actors.verifier.rounds import Load


def of_round(streams, drafts, drafting_us=0.0, lent=False, piece=None, grammar=None, method="auto"):
    spec = SimpleNamespace(windows=SimpleNamespace(grammar=grammar))
    requests = [SimpleNamespace(has_drafter=lent, spec=spec, method=method)] * streams
    return Job(requests, [], rows=streams + drafts, drafting_us=drafting_us, piece=piece)  # type: ignore[arg-type]


def seen(rounds=300, row_us=50.0, stream_us=200.0, streams=(1,), **job):
    book, chance = Bookkeeping(), random.Random(1)
    for _ in range(rounds):
        own, drafts = chance.choice(streams), chance.randrange(5)
        took_us = 1000.0 + 300.0 * drafts + own * stream_us + drafts * row_us + chance.gauss(0.0, 50.0)
        book.observe(of_round(own, drafts, drafting_us=200.0 * drafts, **job), took_us, 1000.0 + 100.0 * drafts)
    return book


def test_nothing_is_said_of_rows_before_any_was_seen():
    assert Bookkeeping().row_us(1, "auto") == 0.0


def test_what_a_row_takes_beside_forward_and_drafting_is_learnt():
    assert seen().row_us(1, "auto") == pytest.approx(50.0, abs=10.0)


def test_streams_of_different_numbers_are_not_compared():
    assert seen(streams=(8, 15), stream_us=500.0).row_us(9, "auto") == pytest.approx(50.0, abs=10.0)


def test_what_forwards_in_a_row_take_is_counted_for_each_where_drafts_of_several_streams_would_end_the_row():
    book, chance = Bookkeeping(), random.Random(1)
    for number in range(300):
        drafts = chance.randrange(1, 20)
        book.observe(of_round(8, drafts), 2000.0 + 150.0 * drafts + chance.gauss(0.0, 50.0), 1000.0 + 100.0 * drafts)
        plain = of_round(8, 0)
        plain.forwards, plain.most_steps = (4, 4) if number % 2 else (1, 4)  # the row may be cut short
        book.observe(plain, 1000.0 * plain.forwards + 1000.0, 1000.0 * plain.forwards)
    # without drafts a forward has a quarter of 1000 µs beside it, with ten drafts 1500; among the latter a row has 50
    assert 85.0 < book.row_us(8, "auto") < 125.0


def test_what_a_lone_stream_of_another_method_takes_tells_nothing():
    assert seen(method="pld").row_us(1, "auto") == 0.0
    assert seen(method="pld", streams=(8,)).row_us(8, "auto") > 0.0


def test_a_machine_that_does_it_for_nothing_is_no_gain():
    assert seen(row_us=-50.0).row_us(1, "auto") == 0.0


@pytest.mark.parametrize("other", [{"lent": True}, {"piece": SimpleNamespace()}, {"grammar": SimpleNamespace()}])
def test_rounds_that_wait_or_share_their_forward_with_a_prompt_or_follow_a_grammar_tell_nothing(other):
    assert seen(**other).row_us(1, "auto") == 0.0


def test_a_row_of_a_lone_stream_costs_its_bookkeeping_on_top_of_the_forward():
    price = Load(1, 0.001, row_us=50.0).beside(0.001, 0).price(lambda rows: 1000.0 + 100.0 * (rows > 6))
    assert price(7) - price(1) == pytest.approx(100.0 + 6 * 50.0)
