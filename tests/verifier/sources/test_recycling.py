import math

import numpy as np
import pytest

from actors.cost import Known
from actors.models import RANKED, Ranked
from actors.noise import gumbel_at, keys
from actors.verifier.results import NO_WINDOW, Chosen, Committed
from actors.verifier.sources.recycling import NO_TOKEN, TRUST, Recycled, Recycling
from actors.verifier.sources.source import Allowance
from protocols.messages import Sampling
from tests.world.streams import toy_stream

HOLDER = 1 << 60
FREE = Allowance(1, 1.0, Known(lambda rows: 0.02 * rows))  # a row costs as much as 0.02 tokens


def row(*tokens: int, sure: float = 3.0) -> tuple[np.ndarray, np.ndarray]:
    """The likeliest tokens, each ``sure`` less likely than the one before."""
    ids = [*tokens, *range(1000, 1000 + RANKED - len(tokens))]
    return np.array(ids), -np.arange(RANKED, dtype=np.float32) * np.float32(sure)


def found(table, before, last, holder=HOLDER):
    known = table.find(holder, before, last)
    return None if known is None else (known[0], known[1][0])


def test_two_tokens_are_looked_up_before_one_and_the_newest_row_counts():
    table = Recycled(8)
    table.put(HOLDER, 1, 2, *row(10))
    table.put(HOLDER, 3, 2, *row(11))
    assert found(table, 1, 2) == (True, 10) and found(table, 3, 2) == (True, 11)
    assert found(table, 9, 2) == (False, 11) and found(table, 2, 9) is None
    table.put(HOLDER, 1, 2, *row(12))
    assert found(table, 1, 2) == (True, 12) and found(table, 9, 2) == (False, 12) and len(table) == 2


def test_texts_of_another_holder_are_not_found():
    table = Recycled(8)
    table.put(HOLDER, 1, 2, *row(10))
    assert table.find(HOLDER + 1, 1, 2) is None and not table.knows(HOLDER + 1, 1, 2) and table.knows(HOLDER, 1, 2)


def test_the_oldest_rows_make_room_and_leave_nothing_behind():
    table = Recycled(4)
    for token in range(50):
        table.put(HOLDER, token, token + 1, *row(token + 2))
    assert len(table) == 4 and len(table._places) == 8
    assert [table.find(HOLDER, token, token + 1) is not None for token in (45, 46, 49)] == [False, True, True]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_rows_that_are_not_finite_are_not_kept(bad):
    table, (tokens, logits) = Recycled(4), row(10)
    table.put(HOLDER, 1, 2, tokens, np.where(np.arange(RANKED) == 0, np.float32(bad), logits))
    assert len(table) == 0


def test_a_vocabulary_smaller_than_a_row_is_kept():
    table = Recycled(4)
    table.put(HOLDER, 1, 2, np.array([1, 0]), np.array([2.0, 1.0], np.float32))
    known = table.find(HOLDER, 1, 2)
    assert known is not None and known[1][:2] == [1, 0] and known[2][2:] == [-math.inf] * (RANKED - 2)


def source_and_stream(sampling=None):
    source = Recycling(Recycled(64), lambda scope: HOLDER)
    return source, toy_stream([1, 2], **({"sampling": sampling} if sampling else {}))


def commit(source, stream, tokens, rows, chosen=NO_WINDOW):
    base, root = len(stream.text), stream.tree.root
    stream.text.committed.extend(tokens)
    held = stream.tree.advance(tokens).nodes
    ranked = Ranked([one[0] for one in rows], [one[1] for one in rows])
    source.learn(stream, Committed(base, tokens, [], [], None, chosen, root, held, [], ranked))


def test_what_was_likely_before_is_a_tree_of_drafts_where_the_tokens_come_again():
    source, stream = source_and_stream()
    commit(source, stream, [3, 4, 1, 2], [row(3, 8), row(4), row(1), row(2)])
    source.grow([stream], FREE)
    assert [node.token for node in stream.tree.chain(4)] == [3, 4, 1, 2]
    assert [node.token for node in stream.tree.root.children][:2] == [3, 8]
    first = stream.tree.root.children[0]
    assert math.exp(first.logprob) == pytest.approx(TRUST[True] * 0.95, abs=0.02)


def test_a_token_that_only_the_last_one_preceded_is_trusted_less():
    source, stream = source_and_stream()
    commit(source, stream, [3, 9, 2], [row(3), row(9), row(2)])
    source.grow([stream], FREE)
    [first] = [node for node in stream.tree.root.children if node.token == 3]
    assert math.exp(first.logprob) == pytest.approx(TRUST[False] * 0.95, abs=0.02)


def test_trust_follows_what_the_target_decides():
    source, stream = source_and_stream()
    commit(source, stream, [3, 1, 2], [row(3), row(1), row(2)])
    for _ in range(60):  # 3 never comes again
        source.grow([stream], FREE)
        commit(source, stream, [5, 1, 2], [row(3), row(1), row(2)])
    source.grow([stream], FREE)
    assert not [node for node in stream.tree.root.children if math.exp(node.logprob) > 0.2]


def test_the_noise_of_a_place_ranks_what_was_likely():
    sampling = Sampling(max_tokens=1000, temperature=1.0, seed=5)
    source, stream = source_and_stream(sampling)
    tokens, logits = row(3, 8, 6, 7, sure=0.1)
    commit(source, stream, [3, 4, 1, 2], [(tokens, logits), row(4), row(1), row(2)])
    source.grow([stream], FREE)
    keyed = keys(5, len(stream.text))
    scores = {int(t): logit + gumbel_at(keyed, int(t)) for t, logit in zip(tokens, logits, strict=True)}
    best = stream.tree.root.best_child()
    assert best is not None and best.token == max(scores, key=scores.__getitem__)


def test_nodes_that_were_not_accepted_are_recycled_too():
    source, stream = source_and_stream()
    chosen = Chosen([], [3, 8], [-1, -1])
    commit(source, stream, [3, 4], [row(3), row(4), row(5)], chosen)
    assert found(source._table, 1, 2) == (True, 3) and found(source._table, 2, 3) == (True, 4)
    assert found(source._table, 2, 8) == (True, 5)


def test_the_first_token_of_a_text_has_none_before_it():
    source = Recycling(Recycled(8), lambda scope: HOLDER)
    stream = toy_stream([2])
    commit(source, stream, [3], [row(3)])
    assert found(source._table, NO_TOKEN, 2)[1] == 3
    source.grow([stream], FREE)
    source.end(stream)
    assert not source._texts


def test_a_row_of_forwards_ends_only_for_two_known_tokens_that_pay():
    source, stream = source_and_stream()
    commit(source, stream, [3, 4, 1, 2], [row(3), row(4), row(1), row(2)])
    assert source.finds(stream, [3], FREE)
    assert not source.finds(stream, [9, 3], FREE)
    dear = Allowance(1, 1.0, Known(lambda rows: 0.02 * rows), interruption=9.0)
    assert not source.finds(stream, [3], dear)


@pytest.mark.parametrize(("streams", "able"), [(1, True), (2, True), (16, False)])
def test_it_is_asked_while_few_streams_wait_for_the_answer(streams, able):
    source, stream = source_and_stream()
    assert source.able(stream, Allowance(streams, streams / 3500, Known(float))) == able


def test_rows_that_cost_as_much_as_a_token_bring_no_drafts():
    source, stream = source_and_stream()
    commit(source, stream, [3, 4, 1, 2], [row(3), row(4), row(1), row(2)])
    source.grow([stream], Allowance(1, 1.0, Known(float)))
    assert stream.tree.size == 0
