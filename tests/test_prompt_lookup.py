from itertools import pairwise

from actors.own_text import PromptLookup
from actors.proposals import Proposal, TrieBuilder, propose


def test_the_longest_suffix_that_occurred_before_decides_what_is_copied():
    text = [1, 2, 3, 50, 9, 3, 60, 1, 2, 3]
    assert propose(PromptLookup(), text, 4).tokens == (50, 9, 3, 60)


def test_a_shorter_suffix_is_tried_when_the_longer_did_not_occur():
    assert propose(PromptLookup(tokens=2), [7, 3, 60, 61, 1, 2, 3], 10).tokens == (60, 61)


def test_the_most_recent_match_wins_unless_the_original_rule_is_asked_for():
    text = [5, 6, 100, 5, 6, 200, 9, 9, 5, 6]
    assert propose(PromptLookup(), text, 1).tokens == (200,)
    assert propose(PromptLookup(earliest=True), text, 1).tokens == (100,)


def test_the_original_rule_ends_the_draft_with_the_text():
    assert propose(PromptLookup(earliest=True), [4, 5, 6, 4], 10).tokens == (5, 6, 4)


def test_a_text_that_repeats_itself_is_extrapolated_by_its_period():
    assert propose(PromptLookup(), [8, 1, 2, 3, 1, 2, 3], 7).tokens == (1, 2, 3, 1, 2, 3, 1)


def test_the_suffix_is_never_its_own_match():
    assert propose(PromptLookup(), [1, 2, 3, 4], 10) == Proposal()


def test_a_draft_is_a_chain_within_the_budget_and_grows_surer_with_depth():
    proposal = propose(PromptLookup(), list(range(20)) * 2, 6)
    assert proposal.parents == (-1, 0, 1, 2, 3, 4)
    assert all(0 < a < b <= 1 for a, b in pairwise(proposal.scores))
    assert propose(PromptLookup(), [1, 1], 0) == Proposal()


def test_no_draft_is_longer_than_the_option_allows():
    assert len(propose(PromptLookup(tokens=10), [1] * 50, 64)) == 10


def test_extending_token_by_token_equals_opening_with_the_whole_text():
    text = [int(c) for c in "31415926535897932384626433832795028841971693993751058209749445923"]
    for options in (PromptLookup(), PromptLookup(earliest=True)):
        session = options.open(text[:1])
        for at in range(1, len(text)):
            session.extend(text[at : at + 1])
            assert session.propose(10) == propose(options, text[: at + 1], 10)


def test_a_trie_holds_a_token_once_below_each_parent_with_its_higher_score():
    trie = TrieBuilder()
    a = trie.add(-1, 5, 0.2)
    b = trie.add(a, 5, 0.3)
    assert trie.add(-1, 5, 0.6) == a
    assert trie.build() == Proposal((5, 5), (-1, a), (0.6, 0.3))
    assert b == 1
