"""How far the verifier's own draft model steps ahead in one call."""

import math

from actors.models import Expansion
from actors.tree.calibration import Calibration
from actors.tree.tree import OWN, TokenTree
from actors.verifier.decoding.inline_tree import USUAL, InlineTree
from fakes import ToyDraft, ToyLanguage

STOP = 9
CHAIN = [Expansion(-1, (5, 6), (0.7, 0.2)), Expansion(0, (STOP, 8), (0.9, 0.05)), Expansion(1, (4,), (0.8,))]


class Releasing(ToyDraft):
    def __init__(self):
        super().__init__(ToyLanguage())
        self.released = []

    def commit(self, handle, tokens, slots):
        pass

    def release(self, handle, slots):
        self.released += slots


def tree_of(model=None, end=100):
    tree = InlineTree("r", TokenTree(3, 7), model or Releasing(), 1, frozenset({STOP}), end, Calibration())
    tree.begin()
    return tree


def test_a_chain_joins_the_tree_step_by_step():
    tree, vocabulary = tree_of(), 64
    tree.expanded_ahead(tree.tree.root, CHAIN[:2], vocabulary)
    assert [node.token for node in tree.tree.chain(8)] == [5, STOP]
    assert {node.token for _, node in tree.promises(-1.0)} == {6, 8}


def test_what_was_drafted_behind_a_stop_token_is_forgotten_with_the_next_verdict():
    tree = tree_of(model := Releasing())
    tree.expanded_ahead(tree.tree.root, CHAIN, 64)
    assert [node.token for node in tree.tree.chain(8)] == [5, STOP]
    tree.advance([5])
    assert model.released == [1]


def test_steps_go_on_only_where_nothing_was_retrieved_and_the_text_has_room():
    tree = tree_of(end=6)
    root = tree.tree.root
    ahead = tree.ahead(root, 8, 0.3)
    assert ahead is not None
    assert (ahead.most, ahead.chance, ahead.least) == (2, 1.0, 0.3 / USUAL)  # positions 3 and 4 may be expanded
    retrieved = tree.tree.add(root, 5, math.log(0.5), OWN)
    assert tree.ahead(root, 8, 0.3) is None
    assert tree.ahead(retrieved, 8, 0.3).chance == 0.5
    last = tree.tree.add(tree.tree.add(retrieved, 6, -0.1, OWN), 8, -0.1, OWN)
    assert tree.ahead(last, 8, 0.3) is None
