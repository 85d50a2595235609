import random
from itertools import pairwise

import pytest

from actors.lookahead import Lookahead


def paths_of(proposal):
    paths = []
    for token, parent in zip(proposal.tokens, proposal.parents, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    return paths


def decode(model, prompt, options, steps, budget=256):
    """Lookahead decoding of a deterministic ``model(text) -> token``; returns text, steps' proposals, the session."""
    session = options.open(prompt)
    text = list(prompt)
    proposals = []
    for _ in range(steps):
        proposal = session.propose(budget)
        proposals.append((tuple(text), proposal))
        paths = paths_of(proposal)
        sampled = [model([*text, *path]) for path in paths]
        rows = {path: at for at, path in enumerate(paths)}
        assert len(rows) == len(paths), "a trie holds every path once"
        committed = [model(text)]
        while tuple(committed) in rows:
            committed.append(sampled[rows[tuple(committed)]])
        session.ingest(sampled, committed)
        text += committed
    return text, proposals, session


def pooled(session):
    return [(first, *rest) for first, known in session.pool.items() for rest in known]


def order(n, symbols=11, seed=0):
    """A model whose next token is a random but fixed function of the last n tokens."""
    return lambda text: random.Random(repr((seed, list(text[-n:])))).randrange(symbols)


@pytest.mark.parametrize("shape", [(5, 7, 7), (3, 2, 4), (2, 4, 2), (4, 1, 3), (6, 3, 3)])
def test_collected_ngrams_are_those_the_model_would_produce(shape):
    n, w, g = shape
    model = order(1)
    _, _, session = decode(model, [1, 2, 3, 4], Lookahead(n, w, g), 25)
    ngrams = pooled(session)
    assert ngrams and all(len(ngram) == n for ngram in ngrams)
    for ngram in ngrams:
        assert all(model([a]) == b for a, b in pairwise(ngram))


def test_ngrams_agree_with_a_model_that_looks_further_back():
    model = order(3, symbols=3)
    _, _, session = decode(model, [0, 1, 2, 2], Lookahead(5, 6, 20), 60)
    ngrams = pooled(session)
    assert ngrams
    for ngram in ngrams:  # the tokens that were computed from three others of the same column
        assert model(list(ngram[1:4])) == ngram[4]


@pytest.mark.parametrize("n", [1, 2, 4])
def test_the_text_is_the_models_own(n):
    model = order(n, symbols=5)
    text, _, _ = decode(model, [1, 2, 3, 4], Lookahead(), 40)
    plain = [1, 2, 3, 4]
    while len(plain) < len(text):
        plain.append(model(plain))
    assert text == plain


def test_a_text_with_cycles_needs_fewer_steps_than_tokens():
    text, _, _ = decode(order(1, symbols=30), [1, 2, 3], Lookahead(), 30)
    assert len(text) - 3 > 2 * 30


def test_the_window_takes_its_full_size_after_the_warm_up():
    rng = random.Random(0)
    options = Lookahead(5, 7, 7)
    session = options.open(list(range(100, 200)))
    sizes = []
    for _ in range(8):
        proposal = session.propose(256)
        sizes.append(len(proposal))
        # Random tokens from a large vocabulary: no guesses and no equal siblings, so every cell is a row.
        session.ingest([rng.randrange(10**9) for _ in proposal.tokens], [rng.randrange(10**9)])
    assert (options.ngram - 1) * options.window - 1 == 27
    assert sizes == [9, 17, 23, 27, 27, 27, 27, 27]
    assert max(sizes) <= options.max_rows == 27 + 28


def test_each_jacobi_row_sees_level_zero_up_to_its_column_and_its_own_column():
    rng = random.Random(1)
    session = Lookahead(4, 3, 2).open(list(range(50)))
    for _ in range(5):
        proposal = session.propose(64)
        session.ingest([rng.randrange(10**9) for _ in proposal.tokens], [rng.randrange(10**9)])
    level0, level1, level2 = session._levels
    paths = set(paths_of(session.propose(64)))
    chain = tuple(level0[1:])
    for column in range(3):
        below = chain[:column]
        assert (*below, level1[column]) in paths
        assert (*below, level1[column], level2[column]) in paths
    assert len(paths) == 8


def test_a_pool_keeps_the_most_recent_ngrams_of_each_first_token():
    session = Lookahead(3, 1, guesses=2).open([1, 2])
    for rest in ([1, 2], [3, 4], [1, 2], [5, 6]):
        session.collect([9, *rest])
    session.collect([8, 0, 0])
    assert {first: [*known] for first, known in session.pool.items()} == {9: [(1, 2), (5, 6)], 8: [(0, 0)]}


def test_the_pools_ngrams_of_the_root_become_branches():
    session = Lookahead(3, 1, 5).open([1, 2])
    session.collect([2, 7, 8])
    session.collect([2, 7, 9])
    session.collect([3, 1, 1])
    paths = set(paths_of(session.propose(64)))
    assert {(7,), (7, 8), (7, 9)} <= paths
    assert (1,) not in paths - set(paths_of(Lookahead(3, 1, 5).open([1, 2]).propose(64)))


def test_a_budget_below_the_window_leaves_guesses_and_changes_no_level():
    session = Lookahead(3, 4, 5).open([1, 2])
    session.collect([2, 7, 8])
    before = [list(level) for level in session._levels]
    proposal = session.propose(1)
    assert proposal.tokens == (7,)
    session.ingest([8], [7, 8])
    assert session._levels == before
    assert session.root == 8


def test_a_second_run_has_the_same_rows():
    runs = [decode(order(2), [1, 2, 3], Lookahead(), 12)[1] for _ in range(2)]
    assert runs[0] == runs[1]
