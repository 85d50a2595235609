"""What the verifier's own draft model is told of a text, and when."""

import math

import pytest

from actors.calibration import Calibration, TextCalibration
from actors.tree.tree import OWN, TokenTree
from actors.verifier.opinions import OpinionPool
from actors.verifier.sources.inline_tree import InlineTree
from protocols.errors import PoolFull
from protocols.messages import Sampling
from tests.world.fakes import ToyDraft

PROMPT = [3, 4, 5]


class Told(ToyDraft):
    """Keeps what it hears."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.commits: list[list[int]] = []

    def commit(self, handle, tokens, slots):
        self.commits.append(list(tokens))
        super().commit(handle, tokens, slots)


def tree_of(model, stop_tokens=frozenset()) -> InlineTree:
    handle = model.open(PROMPT, len(PROMPT), Sampling(max_tokens=50))
    tree = TokenTree(len(PROMPT), PROMPT[-1])
    return InlineTree("r", tree, model, handle, stop_tokens, 100, TextCalibration(Calibration()), OpinionPool())


def commit(tree: InlineTree, tokens: list[int]) -> None:
    root = tree.tree.root
    tree.committed(root, tree.tree.advance(tokens).nodes, tokens)


def drafted(tree: InlineTree) -> None:
    """The root and its likeliest child are expanded."""
    tree.begin(0.0, 0.0)
    for _ in range(2):
        _, chain = max(tree.promises(), key=lambda found: found[0])
        expand(tree, chain)


def expand(tree: InlineTree, chain) -> None:
    tree.expanded(chain, tree.model.expand(tree.leaves(chain, 0)), 64)


def retrieved(tree: InlineTree, tokens, chance=0.6) -> None:
    node = tree.tree.root
    for token in tokens:
        node = tree.tree.add(node, token, math.log(chance), OWN)


def test_a_text_that_rests_is_told_once_when_the_model_is_asked_again():
    tree = tree_of(model := Told())
    for token in (7, 8, 9):
        commit(tree, [token])
    assert model.commits == []
    tree.catch_up()
    assert model.commits == [[7, 8, 9]]
    drafted(tree)  # asserts that the root is the last committed token
    tree.catch_up()
    assert model.commits == [[7, 8, 9]]


def test_what_the_model_has_computed_is_told_at_once():
    tree = tree_of(model := Told())
    drafted(tree)
    child = next(node for node in tree.tree.nodes() if node.expanded)
    commit(tree, [child.token, 9])
    assert model.commits == [[child.token, 9]] and not model.paths
    commit(tree, [10])
    tree.catch_up()
    assert model.contexts[tree.handle][0] == [*PROMPT, child.token, 9, 10]


def test_a_text_that_has_outgrown_the_model_while_it_rested_is_lost_to_it():
    class Full(ToyDraft):
        def commit(self, handle, tokens, slots):
            raise PoolFull("outgrown")

    tree = tree_of(Full())
    commit(tree, [7])
    assert not tree.lost
    tree.catch_up()
    assert tree.lost


def test_what_was_retrieved_is_read_in_the_same_step():
    tree = tree_of(ToyDraft())
    retrieved(tree, [7, 8, 9])
    tree.begin(0.0, 0.0)
    [(promise, chain)] = tree.promises()
    assert [node.token for node in chain] == [PROMPT[-1], 7, 8, 9]
    alone = tree_of(ToyDraft())
    retrieved(alone, [7])
    alone.begin(0.0, 0.0)
    [(less, _)] = alone.promises()
    assert less < promise
    expand(tree, chain)
    assert all(node.expanded and node.children for node in chain)
    slots = [node.slot for node in chain]
    assert slots[0] < 0 <= min(slots[1:]) and len(set(slots)) == 4
    tree.begin(0.0, 0.0)
    assert all(len(deeper) == 1 for _, deeper in tree.promises())  # nothing below it was retrieved


def test_a_node_is_read_as_long_as_that_is_worth_its_row():
    tree = tree_of(ToyDraft())
    retrieved(tree, [7] * 12, chance=0.5)

    def read(node):
        tree.begin(0.0, node)
        [(_, chain)] = tree.promises()
        return len(chain)

    assert read(0.0) == 13
    assert 1 < read(0.05) < 8
    assert read(1.0) == 1


def test_nothing_is_read_behind_a_token_that_ends_the_text():
    tree = tree_of(ToyDraft(), stop_tokens=frozenset((8,)))
    retrieved(tree, [7, 8, 9])
    tree.begin(0.0, 0.0)
    [(_, chain)] = tree.promises()
    assert [node.token for node in chain] == [PROMPT[-1], 7]


def test_a_step_has_no_more_nodes_than_there_are_scratch_slots():
    tree = tree_of(ToyDraft(scratch_slots=3))
    retrieved(tree, range(7, 17), chance=0.9)
    tree.begin(0.0, 0.0)
    [(_, chain)] = tree.promises()
    assert len(chain) == 3
    expand(tree, chain)
    tree.begin(0.0, 0.0)
    assert sum(len(deeper) for _, deeper in tree.promises()) <= 1


@pytest.mark.parametrize("agrees", [True, False])
def test_reading_makes_a_retrieved_token_likelier_or_less_likely(agrees):
    tree = tree_of(model := ToyDraft())
    [top] = model.expand([tree.leaves([tree.tree.root], 0)[0]])
    other = next(token for token in range(2, 20) if token not in top.tokens)
    retrieved(tree, [top.tokens[0] if agrees else other], chance=0.5)
    tree.begin(0.0, 0.0)
    tree.expanded([tree.tree.root], [top], 64)
    [copied] = [node for node in tree.tree.root.children.values() if node.retrieved is not None]
    assert math.exp(copied.logprob) > 0.7 if agrees else math.exp(copied.logprob) < 0.4
