import math
from itertools import pairwise

import pytest

from actors.cost import CostModel
from actors.estimate import Estimate
from actors.methods import strategy_for
from actors.models import Outcome
from actors.proposers.interface import Proposal
from actors.proposers.ngram_pool import Lookahead
from actors.tree.tree import OWN, TokenTree
from actors.verifier.credit import Source
from actors.verifier.output import Output
from actors.verifier.rounds import NO_OTHERS, Chosen
from actors.verifier.sources.retrieval import FLOOR, FallbackProposer, Hits, SoleProposer, Sources, Trust, fitting
from actors.verifier.speculation import Speculation
from actors.verifier.waits import DrafterPace
from actors.verifier.windows import Windows
from protocols.errors import RequestError
from protocols.messages import Method, Plan, Sampling
from tests.verifier.function_proposer import FromFunction


def saying(tokens, scores=None, parents=None):
    """A proposer that always says the same."""
    proposal = Proposal(
        tuple(tokens), tuple(parents or range(-1, len(tokens) - 1)), tuple(scores or [0.8] * len(tokens))
    )
    return FromFunction(lambda text, budget: proposal)


def test_an_aide_learns_only_where_it_is_known_what_the_target_chose():
    trust = Trust()
    fallback = FallbackProposer(saying([1, 2, 3], [0.9, 0.5, 0.2]), trust)
    fallback.merge(TokenTree(1, 7), [7])
    fallback.commit([1, 9])
    bins = [one for row in trust.calibration.bins for one in row]
    assert sum(one.weight for one in bins) == pytest.approx(2.0)  # the third token hung on a wrong one
    assert sum(one.weight * one.mean for one in bins) == pytest.approx(1.0)


def test_a_source_that_is_always_wrong_is_soon_left_out_and_one_that_is_right_goes_deep():
    wrong, right = FallbackProposer(saying([1, 2, 3]), Trust()), FallbackProposer(saying([4, 5, 6]), Trust())
    for _ in range(300):
        tree = TokenTree(1, 7)
        for fallback in (wrong, right):
            fallback.merge(tree, [7])
        for fallback in (wrong, right):
            fallback.commit([4, 5, 6, 4])
    tree = TokenTree(1, 7)
    wrong.merge(tree, [7])
    assert tree.size == 0
    right.merge(tree, [7])
    assert [node.token for node in tree.chain(9)] == [4, 5, 6]
    assert tree.total(tree.chain(9)[-1]) > math.log(0.85)


def test_paths_below_the_floor_and_what_hangs_on_them_stay_out():
    scores = [0.5] * 12
    fallback = FallbackProposer(saying(range(12), scores), Trust())
    tree = TokenTree(1, 7)
    fallback.merge(tree, [7], 0.3)
    assert tree.size == 1
    fallback.merge(tree, [7])
    assert tree.size == int(math.log(FLOOR) / math.log(0.5))


def test_a_round_that_could_go_with_unsure_guesses_of_its_own_does_not_wait_for_drafts_no_surer():
    pace = DrafterPace(CostModel({1: 1000.0}), Estimate(2000.0))
    cost = CostModel({1: 10_000.0, 8: 10_100.0, 16: 20_000.0})
    waits = []
    for scores in ([0.01], [0.5, 0.5, 0.5]):
        plan = Plan("auto")
        sampling = Sampling(max_tokens=50)
        output = Output([7], sampling, frozenset(), str, ())
        spec = Speculation(
            "r", [7], sampling, plan, 100, output, Windows(strategy_for("auto"), sampling, Sources(), 31)
        )
        spec.windows.fallbacks = [FallbackProposer(saying(range(len(scores)), scores), Trust())]
        spec.first(Outcome([], [8]))
        assert not spec.tree.root.children  # a drafter is believed to be right in 60%
        spec.decide_wait(0.0, pace, cost, True)
        waits.append(spec.waiting.until is not None)
    assert waits == [True, False]


def test_a_guess_that_the_drafter_shares_counts_as_the_drafters():
    tree = TokenTree(1, 7)
    fallback = FallbackProposer(saying([1, 2]), Trust())
    fallback.merge(tree, [7])
    node = tree.root.children[1]
    assert node.rank == OWN
    tree.add(tree.root, 1, -0.1, 0)
    assert node.rank == 0
    fallback.merge(tree, [7])
    assert node.rank == 0


def test_a_costly_source_rests_when_it_is_of_no_use_and_where_something_is_nearly_certain():
    asked = []

    def guess(text, budget):
        asked.append(len(text))
        return Proposal((1,), (-1,), (0.5,))

    fallback = FallbackProposer(FromFunction(guess), Trust(), Source.MEMORY)
    text = [7]
    for right in [False] * 60 + [True] * 40:
        fallback.merge(TokenTree(len(text), text[-1]), text)
        text.append(1 if right else 2)
        fallback.commit(text[-1:])
    rounds = [later - earlier for earlier, later in pairwise(asked)]
    assert rounds[:4] == [1, 2, 3, 4]
    assert rounds[-4:] == [1] * 4
    certain = TokenTree(len(text), text[-1])
    certain.add(certain.root, 9, math.log(0.9))
    before = len(asked)
    fallback.merge(certain, text)
    assert len(asked) == before


def test_a_session_is_told_every_token_once():
    told = []

    def guess(text, budget):
        told.append(list(text))
        return Proposal((1,), (-1,), (0.5,))

    sole = SoleProposer(FromFunction(guess))
    sole.commit([], [], [9])  # before it was ever asked: nothing to keep up to date
    sole.plant(TokenTree(3), [7, 8, 9], 4)
    sole.commit([], [], [1, 2])
    sole.plant(TokenTree(5), [7, 8, 9, 1, 2], 4)
    assert told == [[7, 8, 9], [7, 8, 9, 1, 2]]


def test_lookahead_is_made_to_fit_the_window_that_the_engine_allows():
    assert fitting(Lookahead(), 55) == Lookahead()
    for room in range(7, 60):
        options = fitting(Lookahead(), room)
        assert options.max_rows <= room
        assert options.ngram == 5
    assert fitting(Lookahead(), 31).window == 4


def test_every_method_that_retrieves_has_a_proposer_and_rest_needs_its_datastore():
    sources = Sources()
    for method in (Method.PLD, Method.PLD_EARLIEST, Method.SAM, Method.LOOKAHEAD):
        assert sources.proposer(method, 31).open([1, 2, 3]) is not None
    with pytest.raises(RequestError, match="duoactor datastore build"):
        sources.proposer(Method.REST, 63)


def test_questions_pay_until_they_are_seen_to_give_nothing():
    hits = Hits()
    assert hits.pay(token_us=2000.0, question_us=500.0)
    for _ in range(5):
        hits.add(0)
    assert not hits.pay(token_us=2000.0, question_us=500.0)
    assert hits.pay(token_us=2000.0, question_us=0.0)


def test_a_text_that_begins_to_copy_is_asked_about_often_again_after_one_hit():
    hits = Hits()
    for _ in range(40):
        hits.add(0)
    assert not hits.pay(token_us=2000.0, question_us=500.0)
    assert hits.rarer == Hits.RAREST
    hits.add(8)
    assert hits.pay(token_us=2000.0, question_us=500.0) and hits.rarer == 1


def test_a_text_begins_with_what_questions_about_others_gave():
    usual = Estimate(memory=Hits.USUAL)
    for _ in range(40):
        Hits(usual).add(0)
    assert not Hits(usual).pay(token_us=2000.0, question_us=500.0)


def test_proposers_are_asked_again_after_as_many_tokens_as_was_said():
    windows = Windows(strategy_for(Method.AUTO), Sampling(), Sources(), max_window=15)
    windows.asked(3)
    windows.commit(Chosen([], [], []), [], [7])
    assert windows.next_ask() == 2
    windows.commit(Chosen([], [], []), [], [8, 9])
    assert windows.next_ask() == 0


def test_a_window_that_ends_a_row_of_forwards_is_priced_with_what_those_share():
    price = NO_OTHERS._replace(start_us=300.0, row_us=10.0).price(lambda rows: 100.0 * rows)
    assert price(1) == 110.0
    assert price(3) == 630.0
