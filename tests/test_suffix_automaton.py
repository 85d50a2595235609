import random

import pytest

from actors.own_text import SuffixAutomaton
from actors.proposals import Proposal, propose


def longest_earlier_suffix(text: list[int]) -> int:
    for length in range(len(text) - 1, 0, -1):
        suffix = text[-length:]
        if any(text[at : at + length] == suffix for at in range(len(text) - length)):
            return length
    return 0


@pytest.mark.parametrize("symbols", [1, 2, 3, 20])
def test_the_match_is_the_longest_suffix_that_occurs_earlier(symbols):
    rng = random.Random(symbols)
    session = SuffixAutomaton().open([])
    text: list[int] = []
    for _ in range(120):
        token = rng.randrange(symbols)
        text.append(token)
        session.extend([token])
        assert (session._length[session._link[session._last]] if text else 0) == longest_earlier_suffix(text)


@pytest.mark.parametrize("symbols", [2, 4])
def test_the_draft_is_what_followed_an_earlier_occurrence_of_the_match(symbols):
    rng = random.Random(symbols)
    session = SuffixAutomaton(tokens=3, shortest=1).open([])
    text: list[int] = []
    for _ in range(200):
        token = rng.randrange(symbols)
        text.append(token)
        session.extend([token])
        drafted = list(session.propose(8).tokens)
        length = longest_earlier_suffix(text)
        if not length:
            assert drafted == []
            continue
        followers = [
            text[at + length : at + length + 3]
            for at in range(len(text) - length)
            if text[at : at + length] == text[-length:]
        ]
        assert any(drafted[: len(f)] == f for f in followers)


def test_the_most_recent_occurrence_of_a_repeated_match_is_copied():
    text = [1, 2, 100, 7, 1, 2, 200, 8, 1, 2, 300, 9, 1, 2]
    assert propose(SuffixAutomaton(), text, 1).tokens == (300,)


def test_a_match_below_the_shortest_gives_no_draft():
    assert propose(SuffixAutomaton(shortest=2), [1, 5, 1], 8) == Proposal()
    assert propose(SuffixAutomaton(shortest=2), [], 8) == Proposal()


def test_confidence_grows_with_the_match():
    short = propose(SuffixAutomaton(), [1, 2, 9, 1, 2], 1)
    long = propose(SuffixAutomaton(), [1, 2, 3, 4, 5, 9, 1, 2, 3, 4, 5], 1)
    assert short.tokens == long.tokens == (9,)
    assert short.scores[0] < long.scores[0]


def test_no_proposal_is_larger_than_the_budget():
    rng = random.Random(1)
    session = SuffixAutomaton(shortest=1).open([rng.randrange(3) for _ in range(100)])
    for budget in range(12):
        assert len(session.propose(budget)) <= budget


def test_a_repeating_text_is_drafted_beyond_its_end():
    assert propose(SuffixAutomaton(tokens=9), [4, 5, 6] * 3, 9).tokens == (4, 5, 6) * 3


def test_states_stay_below_twice_the_text():
    session = SuffixAutomaton().open([random.Random(3).randrange(2) for _ in range(2000)])
    assert len(session._length) <= 2 * 2000
