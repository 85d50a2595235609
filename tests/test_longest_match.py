import random

import pytest

from actors.own_text import LongestMatch
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
    session = LongestMatch().open([])
    text: list[int] = []
    for _ in range(60):  # shorter than a search's bound
        token = rng.randrange(symbols)
        text.append(token)
        session.extend([token])
        length, behind = session.match()
        assert length == longest_earlier_suffix(text)
        if length:  # its most recent occurrence
            places = [at for at in range(length, len(text)) if text[at - length : at] == text[-length:]]
            assert behind == places[-1]


@pytest.mark.parametrize("symbols", [2, 4])
def test_the_draft_is_what_followed_an_earlier_occurrence_of_the_match(symbols):
    rng = random.Random(symbols)
    session = LongestMatch(tokens=3).open([])
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
    assert propose(LongestMatch(), text, 1).tokens == (300,)


def test_a_text_without_a_match_gives_no_draft():
    assert propose(LongestMatch(), [1, 5, 7], 8) == propose(LongestMatch(), [], 8) == Proposal()


def test_confidence_grows_with_the_match():
    short = propose(LongestMatch(), [1, 2, 9, 1, 2], 1)
    long = propose(LongestMatch(), [1, 2, 3, 4, 5, 9, 1, 2, 3, 4, 5], 1)
    assert short.tokens == long.tokens == (9,)
    assert short.scores[0] < long.scores[0]


def test_no_proposal_is_larger_than_the_budget():
    rng = random.Random(1)
    session = LongestMatch().open([rng.randrange(3) for _ in range(100)])
    for budget in range(12):
        assert len(session.propose(budget)) <= budget


def test_a_repeating_text_is_drafted_beyond_its_end():
    assert propose(LongestMatch(tokens=9), [4, 5, 6] * 3, 9).tokens == (4, 5, 6) * 3


@pytest.mark.parametrize("vocab_size", [60_000, 1_000_000])
def test_tokens_of_any_vocabulary_come_back_as_they_went_in(vocab_size):
    text = [*random.Random(4).sample(range(vocab_size), 50), 0xD800, vocab_size - 1, 0xDFFF]
    assert propose(LongestMatch(), text + text[:20], 16).tokens == tuple(text[20:36])


def test_a_match_of_more_tokens_than_are_compared_is_still_copied():
    text = list(range(300))
    assert propose(LongestMatch(), text + text[:200], 16).tokens == tuple(range(200, 216))
