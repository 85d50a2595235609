"""A shadow by itself: what a second drafter is asked of a stream's past, and what its answers say."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from actors.verifier.course import MAX_PLACES, DrafterCourse, Place, agreement
from actors.verifier.shadow import PLAN, Shadow
from protocols.messages import (
    Grow,
    Open,
    Sampling,
    Verdict,
)

TEXT = [10, 11, 12, 13, 14, 15, 16, 17]
PLACES = (Place(3, True), Place(4, None), Place(7, False))


def shadow() -> Shadow:
    spec = SimpleNamespace(rid="r", committed=TEXT, prompt_len=2, sampling=Sampling(seed=7))
    request = SimpleNamespace(rid="r", spec=spec, message=SimpleNamespace(cache_salt="salt"))
    return Shadow(request, SimpleNamespace(actor_id="other"), 9, PLACES, began=0.0)


def said(base_len: int, *tokens: int, complete: bool = True) -> Grow:
    """A chain."""
    return Grow("r", 9, base_len, tuple(range(-1, len(tokens) - 1)), tokens, (-0.5,) * len(tokens), complete=complete)


def test_it_is_lent_the_text_up_to_the_first_place_and_asked_for_one_token():
    assert shadow().opening() == Open("r", 9, (10, 11, 12), 2, Sampling(seed=7), PLAN, "salt")
    assert PLAN.gamma == 1


def test_after_each_answer_it_is_told_what_was_committed_up_to_the_next_place():
    one = shadow()
    assert one.answered(said(3, 13)) and one.verdict() == Verdict("r", 9, 1, 3, (13,))
    assert one.answered(said(4, 13)) and one.verdict() == Verdict("r", 9, 2, 4, (14, 15, 16))
    assert not one.over
    assert one.answered(said(7, 17)) and one.over
    assert one.judged == [Place(3, True), Place(4, False), Place(7, True)]


def test_both_drafters_are_judged_at_the_places_that_it_has_answered_for():
    one = shadow()
    one.answered(said(3, 13))
    one.answered(said(4, 14))
    assert one.agreements() == (agreement(PLACES[:2]), agreement([Place(3, True), Place(4, True)]))
    assert agreement([]) == 0.5 and agreement(PLACES) == 0.5


def test_for_an_operator_it_is_compared_where_both_had_a_first_choice():
    one = shadow()
    assert one.compared() == (0, 0, 0)
    for length, token in ((3, 12), (4, 14), (7, 17)):  # wrong, right, right
        one.answered(said(length, token))
    assert one.compared() == (2, 1, 1)


def test_of_several_tokens_the_likeliest_behind_the_text_is_its_first_choice():
    one = shadow()
    assert one.answered(Grow("r", 9, 3, (-1, -1, 1), (12, 13, 20), (-1.5, -0.5, -0.1), complete=True))
    assert one.judged == [Place(3, True)]


def test_who_has_nothing_to_say_is_wrong():
    one = shadow()
    assert one.answered(said(3)) and one.judged == [Place(3, False)]


@pytest.mark.parametrize(
    "message",
    [
        said(4, 14),  # of another place
        said(3, 13, complete=False),
        Grow("r", 9, 3, (-1,), (13, 14), (-0.5,), complete=True),
    ],
)
def test_what_is_no_answer_changes_nothing(message):
    one = shadow()
    assert not one.answered(message) and not one.judged


def test_an_answer_that_comes_twice_counts_once_and_none_counts_after_the_last():
    one = shadow()
    assert [one.answered(said(length, 13)) for length in (3, 3, 4, 7, 7)] == [True, False, True, True, False]


def test_what_it_would_have_brought_stands_against_other_texts_until_its_rounds_tell():
    course = DrafterCourse()
    assert course.expected(1.2) == 1.2 and not course.known
    course.foresee(2.0, MAX_PLACES, others=256)
    assert course.known and 1.5 < course.expected(1.2) < 2.0
    for _ in range(60):
        course.drafted(committed=1, without=1.0, prior=1.2, plain_known=True)
    assert course.expected(1.2) < 1.2


def test_what_the_model_promises_for_any_text_tells_nothing_beside_what_it_would_have_brought_to_this_one():
    course = DrafterCourse()
    course.foresee(0.5, MAX_PLACES, others=0)
    assert course.expected(2.0) == 0.5


def test_a_later_look_at_the_text_replaces_an_earlier_one_and_what_rounds_had_shown_before():
    course = DrafterCourse()
    for _ in range(60):
        course.drafted(committed=1, without=1.0, prior=1.2, plain_known=True)
    for speedup in (0.5, 2.0):
        course.foresee(speedup, MAX_PLACES, others=256)
    assert course.expected(1.2) > 1.3


def test_it_is_asked_again_after_twice_as_many_rounds():
    course = DrafterCourse()
    asked = []
    for rounds in range(48, 1000):
        if course.due(rounds):
            course.asked(rounds)
            asked.append(rounds)
    assert asked == [48, 96, 192, 384, 768]
