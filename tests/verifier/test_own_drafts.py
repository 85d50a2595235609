"""Whether the verifier's own guesses pay is learnt from rounds."""

import random
from types import SimpleNamespace

import pytest

from actors.cost import CostModel
from actors.models import Outcome
from actors.verifier.judging import Judge
from actors.verifier.own_drafts import NO_RETRIEVAL, OwnCourse, OwnDrafts, RetrievalAlone, group_of
from actors.verifier.rounds import Load
from actors.verifier.standing import FIRST_REST, LOOK, RequestKind

GREEDY, SAMPLED = RequestKind("auto", False), RequestKind("auto", True)
CURVE = {1: 2000.0, 8: 4000.0, 16: 7000.0, 32: 13000.0}


class Pool:
    """Rounds of streams that take a forward's time, and ``beside`` of it more where they draft."""

    def __init__(self, beside: float, tokens: float) -> None:
        """``tokens``: of a stream's round with drafts."""
        self.cost = CostModel(CURVE)
        self.own = OwnDrafts(self.cost)
        self.beside, self.tokens = beside, tokens
        self.slower = 1.0  # forwards between guesses
        self.machine = 1.0  # all that it does takes so much longer
        self.chance = random.Random(2)

    def play(self, rounds: int, streams: int = 8, kind: RequestKind = GREEDY, course: OwnCourse | None = None) -> float:
        """The share of those that drafted."""
        drafted, group = 0, group_of(streams, kind)
        for _ in range(rounds):
            time_us = self.cost.uncorrected(streams) * self.machine * self.chance.uniform(1.1, 1.3)
            pays = self.own.pay(group, course)
            self.slowdown = self.machine * (self.slower if pays else 1.0)
            self.cost.observe(streams, self.cost.uncorrected(streams) * self.slowdown, streams)
            if pays:
                drafted += 1
                tokens = sum(1 + (self.chance.random() < self.tokens - 1) for _ in range(streams))
                self.own.made(group, streams, tokens, time_us * (1 + self.beside), self.slowdown, 0.0, course)
            else:
                self.own.without(group, streams, time_us, course)
        return drafted / rounds


def test_a_few_rounds_with_drafts_are_soon_followed_by_as_many_without() -> None:
    pool = Pool(beside=0.0, tokens=2.0)
    assert pool.play(round(LOOK)) == 1.0
    assert pool.play(round(LOOK)) == 0.0
    assert pool.play(FIRST_REST) == 1.0


def test_where_drafts_bring_more_than_they_take_nearly_every_round_has_them() -> None:
    assert Pool(beside=0.4, tokens=1.7).play(2000) > 0.95


@pytest.mark.parametrize(("streams", "rest"), [(2, 1), (4, 2), (8, 4), (64, 4)])
def test_the_more_streams_gain_nothing_together_the_longer_they_rest_at_first(streams: int, rest: int) -> None:
    pool, times = Pool(beside=0.8, tokens=1.2), 0
    while not pool.own._of(group_of(streams, GREEDY)).guesses.paused:
        pool.play(1, streams)
        times += 1
    assert times < 100
    assert pool.play(rest * FIRST_REST, streams) == 0.0
    assert pool.play(1, streams) == 1.0


def test_rounds_without_drafts_that_were_slow_when_they_were_looked_at_are_not_believed_for_ever() -> None:
    pool = Pool(beside=0.6, tokens=1.4)
    pool.play(round(LOOK))
    for _ in range(round(LOOK)):
        pool.own.without(group_of(8, GREEDY), 8, 5 * pool.cost(8))
    assert pool.play(60) == 1.0
    pool.play(500)
    assert pool.play(2000) < 0.2


def test_where_they_bring_less_they_are_tried_ever_more_rarely() -> None:
    pool = Pool(beside=0.6, tokens=1.5)
    assert pool.play(500) < 0.5
    assert pool.play(4000) < 0.1


def test_with_many_streams_few_rounds_tell_that_guesses_lose_a_little() -> None:
    shares = []
    for seed in range(6):
        pool = Pool(beside=0.22, tokens=1.2)
        pool.chance = random.Random(seed)
        shares.append(pool.play(400, streams=8))
    assert sum(shares) / len(shares) < 0.2


@pytest.mark.parametrize("streams", [2, 8, 32])
def test_where_they_bring_a_little_more_than_they_take_they_are_made_at_any_number_of_streams(streams: int) -> None:
    assert Pool(beside=0.1, tokens=1.2).play(1000, streams=streams) > 0.8


def test_the_first_token_of_a_prompt_beside_the_round_is_not_what_guesses_brought() -> None:
    told = []
    own = SimpleNamespace(made=lambda group, streams, tokens, *_: told.append(tokens))
    state = SimpleNamespace(own_drafts=own, cost=CostModel(CURVE))
    request = SimpleNamespace(kind=GREEDY)
    round_ = SimpleNamespace(guesses=True, piece=request, reading_us=0.0, prompt_us=0.0, load=Load(2, 0.001))
    round_.requests, round_.rows = [request] * 2, 4
    outcomes = [Outcome([0], [1, 2]), Outcome([], [3]), Outcome([], [4])]
    Judge(state).of_own(round_, outcomes, 1000.0, 900.0)
    assert told == [3]


@pytest.mark.parametrize("streams", [1, 8])
def test_forwards_that_guesses_slow_down_are_not_what_rounds_without_would_take(streams: int) -> None:
    pool = Pool(beside=0.45, tokens=1.42)
    pool.slower = 1.2  # of what ``beside`` has in it
    pool.play(2000, streams=streams)
    assert pool.own._of(group_of(streams, GREEDY)).guesses.speedup.mean == pytest.approx(1.42 / 1.45, rel=0.05)


@pytest.mark.parametrize("streams", [1, 8])
def test_a_machine_that_others_slow_down_between_two_looks_says_nothing_against_guesses(streams: int) -> None:
    pool = Pool(beside=0.2, tokens=1.5)
    pool.play(2000, streams=streams)
    for pool.machine in (1.5, 0.7, 2.0, 1.0):
        assert pool.play(500, streams=streams) > 0.9


@pytest.mark.parametrize("retrieved", [RetrievalAlone(2, 50.0), NO_RETRIEVAL])
def test_what_was_retrieved_would_have_come_without_the_draft_model(retrieved: RetrievalAlone) -> None:
    own = OwnDrafts(CostModel(CURVE))
    plain_us = own.cost(1)
    own.made(GREEDY, 1, 1, plain_us, 1.0)
    for _ in range(2 * round(LOOK)):
        own.without(GREEDY, 1, plain_us)
    for _ in range(200):
        own.made(GREEDY, 1, 3, 1.4 * plain_us, 1.0, retrieved=retrieved)
    assert own.brings(GREEDY) > 1.5 if retrieved is NO_RETRIEVAL else own.brings(GREEDY) == 1.0


def test_where_that_has_changed_they_are_back_after_the_pause() -> None:
    pool = Pool(beside=0.6, tokens=1.3)
    pool.play(100)
    pool.beside = 0.1
    assert pool.play(20 * FIRST_REST) > 0.5


def test_what_one_load_says_is_not_believed_of_another() -> None:
    pool = Pool(beside=0.8, tokens=1.3)
    pool.play(200, streams=32)
    assert not pool.own.pay(group_of(32, GREEDY))
    pool.beside = 0.0
    pool.play(2 * round(LOOK), streams=4)
    assert pool.own.pay(group_of(4, GREEDY))


def test_a_stream_alone_is_judged_by_its_kind() -> None:
    pool = Pool(beside=0.6, tokens=1.4)
    pool.play(1000, streams=1, kind=SAMPLED)
    assert not pool.own.pay(SAMPLED)
    pool.tokens = 1.9
    assert pool.play(1000, streams=1) > 0.9


def test_a_text_that_drafts_lose_with_rests_while_others_of_its_kind_go_on() -> None:
    pool = Pool(beside=0.3, tokens=1.7)
    pool.play(300, streams=1, course=OwnCourse())
    pool.tokens = 1.0
    course = OwnCourse()
    assert pool.play(150, streams=1, course=course) < 0.5
    pool.tokens = 1.7
    assert pool.play(100, streams=1, course=OwnCourse()) > 0.9


def test_a_text_in_which_nothing_is_worth_drafting_rests() -> None:
    pool, course, asked = Pool(beside=0.2, tokens=1.8), OwnCourse(), 0
    pool.play(300, streams=1, course=OwnCourse())
    for _ in range(200):
        time_us = pool.cost.uncorrected(1) * pool.chance.uniform(1.1, 1.3)
        if pool.own.pay(GREEDY, course):
            asked += 1
            pool.own.made(GREEDY, 1, 1, 1.2 * time_us, 1.0, course=course)
        else:
            pool.own.without(GREEDY, 1, time_us, course)
    assert asked < 120


def test_a_first_text_in_which_nothing_is_worth_drafting_does_not_speak_for_its_kind() -> None:
    pool = Pool(beside=0.2, tokens=1.0)
    pool.play(40, streams=1, course=OwnCourse())
    pool.tokens = 1.8
    assert pool.play(60, streams=1, course=OwnCourse()) > 0.8


def test_several_rounds_at_once_count_as_so_many() -> None:
    pool, course = Pool(beside=0.2, tokens=1.0), OwnCourse()
    pool.play(400, streams=1, course=course)
    assert course.resting
    left = course._left
    pool.own.without(GREEDY, 1, 5 * pool.cost.uncorrected(1), course, rounds=5)
    assert course._left == left - 5


def test_where_texts_of_a_kind_differ_those_that_gain_have_drafts_though_the_kind_does_not() -> None:
    pool, shares = Pool(beside=0.6, tokens=1.6), {1.4: 0.0, 1.8: 0.0}
    for _ in range(30):
        for tokens in shares:
            pool.tokens = tokens
            shares[tokens] += pool.play(100, streams=1, course=OwnCourse()) / 30
    assert shares[1.8] > 0.7 > 0.5 > shares[1.4]


def test_what_was_seen_with_guesses_stays_known_when_rounds_without_are_seen_anew() -> None:
    pool = Pool(beside=0.3, tokens=1.6)
    pool.play(2 * round(LOOK) + FIRST_REST)
    judged = pool.own._of(group_of(8, GREEDY))
    known = judged.guesses.speedup.mean
    pool.play(round(LOOK))  # as slow as before
    assert judged.guesses.speedup.weight > 2 * LOOK
    assert judged.guesses.speedup.mean == pytest.approx(known, rel=0.1)
    pool.play(1)
    judged.look_again()
    for _ in range(round(LOOK)):
        pool.own.without(group_of(8, GREEDY), 8, 0.6 * pool.cost(8))  # where 1.2 was seen before, and counts as much
    assert judged.guesses.speedup.mean == pytest.approx(known * 0.75, rel=0.1)
    assert judged.gap == FIRST_REST


def test_what_a_text_may_save_is_what_its_kind_gains_and_what_the_best_of_its_texts_do() -> None:
    gains, loses = Pool(beside=0.2, tokens=1.8), Pool(beside=0.6, tokens=1.3)
    assert gains.own.saves(GREEDY, promised=1.5) == pytest.approx(1 - 1 / 1.5, rel=0.05)
    gains.play(1000, streams=1)
    loses.play(1000, streams=1)
    assert gains.own.saves(GREEDY, promised=9.0) == pytest.approx(1 - 1.2 / 1.8, rel=0.1)
    assert 0.0 < loses.own.saves(GREEDY, promised=1.5) < 0.02


def test_a_drafter_is_set_against_what_the_verifiers_own_drafts_bring_and_against_nothing_where_they_rest() -> None:
    pool = Pool(beside=0.2, tokens=1.8)
    pool.play(1000, streams=1)
    assert pool.own.brings(GREEDY) == pytest.approx(1.8 / 1.2, rel=0.1)
    pool.beside = 2.0
    pool.play(1000, streams=1)
    assert pool.own.brings(GREEDY) == 1.0
