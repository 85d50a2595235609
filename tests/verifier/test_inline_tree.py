"""What the verifier's own draft model is told of a text, and when."""

import math
from types import SimpleNamespace

import pytest

from actors.calibration import Calibration, TextCalibration
from actors.models import Leaf
from actors.tree.tree import OWN, Node, TokenTree
from actors.verifier.sources.inline_tree import InlineTree
from protocols.errors import PoolFull
from protocols.messages import Sampling
from tests.world.models import ToyDraft

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
    stream = SimpleNamespace(rid="r", tree=tree)
    return InlineTree(stream, model, handle, stop_tokens, 100, TextCalibration(Calibration()))


def commit(tree: InlineTree, tokens: list[int]) -> None:
    root = tree.tree.root
    tree.committed(root, tree.tree.advance(tokens).nodes, tokens)


def drafted(tree: InlineTree) -> None:
    """The root and its likeliest child are expanded."""
    tree.begin(0.0)
    for _ in range(2):
        _, _, node = max(tree.promises(), key=lambda found: found[0])
        expand(tree, node)


def expand(tree: InlineTree, node: Node) -> None:
    [expansion] = tree.model.expand([Leaf.of(tree.handle, tree.tree, node)])
    tree.expanded(node, expansion)


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


def test_what_the_model_has_computed_of_a_text_is_not_computed_again():
    tree = tree_of(model := Told())
    drafted(tree)
    child = next(node for node in tree.tree.nodes() if node.expanded)
    commit(tree, [child.token, 9])
    commit(tree, [10])
    assert tree.catch_up() and model.commits == [[child.token, 9, 10]]
    assert not any(model.paths.values()), "no slot is left taken"
    assert model.contexts[tree.handle][0] == [*PROMPT, child.token, 9, 10]


def test_a_text_that_has_outgrown_the_model_while_it_rested_is_lost_to_it():
    class Full(ToyDraft):
        def commit(self, handle, tokens, slots):
            raise PoolFull("outgrown")

    tree = tree_of(Full())
    commit(tree, [7])
    assert not tree.catch_up()


def test_the_draft_model_is_asked_where_nothing_was_retrieved_first():
    tree = tree_of(ToyDraft())
    retrieved(tree, [7], chance=0.75)
    tree.begin(0.0)
    [(less, _, node)] = tree.promises()
    assert node is tree.tree.root
    alone = tree_of(ToyDraft())
    alone.begin(0.0)
    [(promise, _, _)] = alone.promises()
    assert less == pytest.approx(promise / 4)
    expand(tree, node)
    tree.begin(0.0)
    assert 7 in [node.token for _, _, node in tree.promises()]


def test_nothing_is_read_behind_a_token_that_ends_the_text():
    tree = tree_of(ToyDraft(), stop_tokens=frozenset((8,)))
    retrieved(tree, [8, 9])
    tree.begin(0.0)
    expand(tree, tree.tree.root)
    tree.begin(0.0)
    assert 8 not in [node.token for _, _, node in tree.promises()]


def test_a_step_has_no_more_nodes_than_there_are_scratch_slots():
    tree = tree_of(ToyDraft(scratch_slots=2))
    drafted(tree)
    tree.begin(0.0)
    assert len(tree.promises()) <= 1
