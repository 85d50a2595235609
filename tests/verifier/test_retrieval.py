import math
import operator

import pytest

from actors.calibration import MIN_CHANCE
from actors.cost import Known
from actors.lookahead import Lookahead
from actors.proposals import Proposal
from actors.tree.tree import OWN
from actors.verifier.results import NO_WINDOW, Committed
from actors.verifier.sources.bits import TEXT
from actors.verifier.sources.lookup import Library, Lookup, Whole, fitting
from actors.verifier.sources.source import Allowance
from protocols.errors import RequestError
from protocols.messages import Method
from tests.verifier.function_proposer import FromFunction
from tests.world.streams import toy_stream

ALONE = Allowance(1, 0.0, Known(float))


def lookup(tokens, scores=None) -> Lookup:
    """A source that always says the same."""
    proposal = Proposal(tuple(tokens), tuple(range(-1, len(tokens) - 1)), tuple(scores or [0.8] * len(tokens)))
    return Lookup("text", TEXT, lambda stream: FromFunction(lambda text, budget: proposal))


def commit(source, stream, tokens) -> None:
    base, root = len(stream.text), stream.tree.root
    stream.text.committed.extend(tokens)
    held = stream.tree.advance(tokens).nodes
    source.learn(stream, Committed(base, tokens, [], [], None, NO_WINDOW, root, held, []))


def test_a_source_learns_only_where_it_is_known_what_the_target_chose():
    source, stream = lookup([1, 2, 3], [0.9, 0.5, 0.2]), toy_stream([7])
    source.grow([stream], ALONE)
    commit(source, stream, [1, 9])
    trust = source._trust[False]
    assert sum(trust.weights) == pytest.approx(2.0)  # the third token hung on a wrong one
    assert sum(map(operator.mul, trust.weights, trust.means)) == pytest.approx(1.0)


def test_a_source_that_is_always_wrong_adds_nothing_soon_and_one_that_is_right_goes_deep():
    wrong, right = lookup([1, 2, 3]), lookup([4, 5, 6])
    stream = toy_stream([7])
    for _ in range(300):
        for source in (wrong, right):
            source.grow([stream], ALONE)
        base, root = len(stream.text), stream.tree.root
        stream.text.committed.extend([4, 5, 6, 4])
        stream.tree.advance([4, 5, 6, 4])
        for source in (wrong, right):
            source.learn(stream, Committed(base, [4, 5, 6, 4], [], [], None, NO_WINDOW, root, [], []))
    wrong.grow([stream], ALONE)
    assert stream.tree.size == 0
    right.grow([stream], ALONE)
    assert [node.token for node in stream.tree.chain(9)] == [4, 5, 6]
    assert stream.tree.total(stream.tree.chain(9)[-1]) > math.log(0.85)


def test_paths_below_the_floor_and_what_hangs_on_them_stay_out():
    source, stream = lookup(range(12), [0.5] * 12), toy_stream([7])
    source.grow([stream], Allowance(2, 0.3, Known(float)))
    assert stream.tree.size == 1
    source.grow([stream], ALONE)
    assert stream.tree.size == int(math.log(MIN_CHANCE) / math.log(0.5))


def test_a_retrieved_token_that_the_drafter_shares_counts_as_the_drafters():
    source, stream = lookup([1, 2]), toy_stream([7])
    source.grow([stream], ALONE)
    node = stream.tree.root.child(1)
    assert (node.rank, node.sources) == (OWN, TEXT)
    stream.tree.add(stream.tree.root, 1, -0.1, 0, 16)
    assert (node.rank, node.sources) == (0, TEXT | 16)


def test_a_session_is_told_every_token_once():
    told = []

    def guess(text, budget):
        told.append(list(text))
        return Proposal((1,), (-1,), (0.5,))

    whole, stream = Whole("pld", lambda stream: FromFunction(guess)), toy_stream([7, 8], "pld")
    commit(whole, stream, [9])  # before it was ever asked: nothing to keep up to date
    whole.grow([stream], ALONE)
    commit(whole, stream, [1, 2])
    whole.grow([stream], ALONE)
    assert told == [[7, 8, 9], [7, 8, 9, 1, 2]]


def test_lookahead_is_made_to_fit_the_window_that_the_engine_allows():
    assert fitting(Lookahead(), 55) == Lookahead()
    for room in range(7, 60):
        options = fitting(Lookahead(), room)
        assert options.max_rows <= room
        assert options.ngram == 5
    assert fitting(Lookahead(), 31).window == 4


def test_rest_needs_its_datastore():
    Library().check(Method.PLD)
    with pytest.raises(RequestError, match="duoactor datastore build"):
        Library().check(Method.REST)
