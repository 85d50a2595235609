import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.proposals import ROOT
from actors.verifier.sources.memory import LONGEST, PIECE, Memory, Remembered


def memory_of(*texts, size=10_000, scope=""):
    memory = Memory(size)
    for text in texts:
        memory.remember(text, scope)
    read_all(memory)
    return memory


def read_all(memory) -> int:
    pieces = 0
    while memory.read():
        pieces += 1
    return pieces


def proposed(memory, context, budget=16, scope=""):
    return Remembered(memory, scope).open(context).propose(budget)


def some_text(length, seed=0):
    chance = random.Random(seed)
    return [chance.randrange(1000) for _ in range(length)]


def test_what_followed_the_same_words_in_another_request_is_proposed():
    text = some_text(100)
    memory = memory_of(some_text(50, 1), text, some_text(50, 2))
    found = proposed(memory, [5, 6, *text[20:40]])
    assert list(found.tokens) == text[40:56] and found.parents == tuple(range(ROOT, 15))
    assert 0.5 < proposed(memory, text[37:40]).scores[0] < found.scores[0] < found.scores[-1] < 1


@pytest.mark.parametrize(("common", "known"), [(2, 0), (3, 3), (7, 7), (8, 8), (12, 12), (40, LONGEST)])
def test_a_match_is_three_tokens_long_or_longer(common, known):
    text = some_text(100)
    memory = memory_of(text)
    length, places = memory.places([1000, *text[50 - common : 50]], memory.owner(""))
    assert (length, len(places)) == (known, int(known > 0))


def test_a_score_says_how_often_a_token_came():
    context, common = some_text(20), some_text(5, 3)
    ways = [[*context, 1, *common], [*context, 1, *common], [*context, 1, *common], [*context, 2, *common]]
    found = proposed(memory_of(*ways), context, budget=8)
    at = {token: index for index, token in enumerate(found.tokens) if found.parents[index] == ROOT}
    assert set(at) == {1, 2}
    assert found.scores[at[1]] == pytest.approx(3 * found.scores[at[2]])
    sure = proposed(memory_of(*ways[:3]), context, budget=8)
    assert found.scores[at[1]] < sure.scores[0] and len(sure.tokens) == 6  # three of four, and three of three


def test_the_longest_match_decides():
    near, far = some_text(20), [*some_text(10, 5), *some_text(20)[10:]]
    found = proposed(memory_of([*near, 1, 1, 1], *[[*far, 2, 2, 2]] * 5), near, budget=1)
    assert found.tokens == (1,)


def test_no_continuation_crosses_the_end_of_a_text():
    one, two = some_text(30), some_text(30, 1)
    memory = memory_of(one, two)
    assert list(proposed(memory, one[:25]).tokens) == one[25:]
    assert len(proposed(memory, one)) == 0
    assert len(proposed(memory, [*one[-4:], *two[:2]])) == 0  # no text goes across


def test_texts_of_another_scope_are_not_found():
    text = some_text(50)
    memory = memory_of(text, scope="a")
    assert len(proposed(memory, text[:30], scope="b")) == len(proposed(memory, text[:30])) == 0
    assert list(proposed(memory, text[:30], scope="a").tokens) == text[30:46]


def test_a_text_that_the_ring_breaks_is_found_on_both_sides():
    size, first, text = 1000, some_text(600), some_text(700, 1)
    memory = memory_of(first, size=size)
    memory.remember(text)
    read_all(memory)
    broken = size - len(first) - 1  # tokens of it at the ring's end
    for at in (20, broken - 50, broken + 40, 650):
        assert list(proposed(memory, text[at - 20 : at]).tokens) == text[at : at + 16], at


def test_a_long_text_is_read_in_pieces_and_found_as_a_whole():
    text = some_text(3 * PIECE + 100)
    memory = Memory(100_000)
    memory.remember(text)
    assert read_all(memory) == 4 and not memory.read()
    for at in (20, PIECE - 3, PIECE, PIECE + 5, 2 * PIECE + 1, 3 * PIECE + 50):
        assert list(proposed(memory, text[at - 20 : at]).tokens) == text[at : at + 16], at


def test_the_oldest_text_is_forgotten_first():
    texts = [some_text(100, seed) for seed in range(30)]
    memory = memory_of(*texts, size=1000)
    known = [len(proposed(memory, text[40:60])) > 0 for text in texts]
    assert known == sorted(known) and 8 <= sum(known) <= 10


def test_more_than_fits_at_once_costs_no_memory_and_the_newest_stay():
    memory = Memory(1000)
    for seed in range(1000):
        memory.remember(some_text(300, seed))
    assert read_all(memory) <= 4
    assert list(proposed(memory, some_text(300, 999)[:100]).tokens) == some_text(300, 999)[100:116]
    memory.remember(some_text(5000, 7))
    read_all(memory)
    assert list(proposed(memory, some_text(5000, 7)[4900:4930]).tokens) == some_text(5000, 7)[4930:4946]


def test_proposals_are_small_and_an_empty_memory_has_none():
    text = some_text(50)
    memory = memory_of(text)
    assert [len(proposed(memory, text[:30], budget)) for budget in (0, 1, 5)] == [0, 1, 5]
    assert len(proposed(Memory(1), text)) == len(proposed(Memory(1000), text)) == len(proposed(memory, [])) == 0


@given(
    st.lists(st.tuples(st.lists(st.integers(0, 2), max_size=60), st.sampled_from(["", "a"])), max_size=25),
    st.lists(st.integers(0, 2), min_size=1, max_size=30),
    st.integers(1, 300),
)
@settings(max_examples=150, deadline=None)
def test_whatever_is_remembered_each_place_goes_on_behind_the_match_in_a_text_of_that_scope(texts, context, size):
    memory = Memory(size)
    for text, scope in texts:
        memory.remember(text, scope)
        memory.read()
    read_all(memory)
    for scope in ("", "a", "b"):
        length, places = memory.places(context, memory.owner(scope))
        mine = [tuple(text) for text, of in texts if of == scope]
        assert (length == 0) == (places == []) and length <= len(context)
        for place in places:
            held = memory.tokens[place - length : place + 1].tolist()
            assert held[:-1] == context[len(context) - length :]
            assert any(tuple(held) == text[i : i + length + 1] for text in mine for i in range(len(text)))
        found = proposed(memory, context, scope=scope)
        assert len(found) <= 16 and all(parent < row for row, parent in enumerate(found.parents))
        assert all(0 < score < 1 for score in found.scores)
    assert np.all(memory.tokens[:LONGEST] == -1) and memory.tokens[-1] == -1
