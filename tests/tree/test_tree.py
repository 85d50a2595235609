import math

import pytest

from actors.cost import Known
from actors.tree.tree import ROOT, Fragment, TokenTree, check_fragment
from actors.tree.window import Candidates, best_nodes, in_tree_order, likeliest_path, priced_windows


def grown() -> TokenTree:
    """Root at position 4; below it 1 -> 2 -> 3, and the side branches 4 (below 1) and 5."""
    tree = TokenTree(5, last_token=9)
    a = tree.add(tree.root, 1, math.log(0.6))
    b = tree.add(a, 2, math.log(0.9))
    tree.add(b, 3, math.log(0.5))
    tree.add(a, 4, math.log(0.1))
    tree.add(tree.root, 5, math.log(0.3))
    return tree


def paths(tree: TokenTree) -> dict[tuple[int, ...], float]:
    found: dict[tuple[int, ...], float] = {}
    where = {id(tree.root): ()}
    for node in tree.nodes():
        where[id(node)] = (*where[id(node.parent)], node.token)
        found[where[id(node)]] = node.logprob
    return found


def test_advancing_along_a_drafted_path_keeps_the_subtree_below_it():
    tree = grown()
    advance = tree.advance([1, 2])
    assert [n.token if n else None for n in advance.nodes] == [1, 2]
    assert sorted(n.token for n in advance.dead) == [4, 5]
    assert tree.length == 7
    assert [n.token for n in tree.nodes()] == [3]
    assert tree.size == 1
    assert tree.total(tree.nodes()[0]) == pytest.approx(math.log(0.5))


def test_advancing_to_a_token_nobody_drafted_plants_a_new_tree():
    tree = grown()
    advance = tree.advance([1, 7])
    assert [n.token if n else None for n in advance.nodes] == [1, None]
    assert sorted(n.token for n in advance.dead) == [2, 3, 4, 5]
    assert (tree.length, tree.size, tree.root.token) == (7, 0, 7)


def test_a_fragment_repeats_the_ancestors_of_what_it_tells():
    tree = grown()
    c = tree.root.child(1).child(2).child(3)
    fragment = tree.fragment([c])
    assert fragment.tokens == (1, 2, 3)
    assert fragment.parents == (ROOT, 0, 1)


@pytest.mark.parametrize("times", [1, 2, 3])
def test_merging_a_fragment_again_changes_nothing(times):
    source = grown()
    fragment = source.fragment(source.nodes())
    tree = TokenTree(5, 9)
    committed = [0, 0, 0, 0, 9]
    for _ in range(times):
        assert tree.merge(committed, 5, fragment) == 5
    assert tree.size == 5
    assert paths(tree) == paths(source)


def test_a_late_fragment_lives_where_it_agrees_with_what_was_committed_since():
    source = grown()
    fragment = source.fragment(source.nodes())
    committed = [0, 0, 0, 0, 9, 1]
    tree = TokenTree(6, 1)
    assert tree.merge(committed, 5, fragment) == 3
    assert sorted(n.token for n in tree.nodes()) == [2, 3, 4]
    other = TokenTree(6, 8)
    assert other.merge([0, 0, 0, 0, 9, 8], 5, fragment) == 0
    assert other.size == 0


@pytest.mark.parametrize(
    ("fragment", "words"),
    [
        (Fragment((ROOT,), (1, 2), (0.0,)), "different lengths"),
        (Fragment((0,), (1,), (0.0,)), "before its child"),
        (Fragment((-2,), (1,), (0.0,)), "before its child"),
        (Fragment((ROOT,), (64,), (0.0,)), "outside the vocabulary"),
        (Fragment((ROOT,), (-1,), (0.0,)), "outside the vocabulary"),
        (Fragment((ROOT,), (1,), (math.nan,)), "finite"),
        (Fragment((ROOT,), (1,), (0.5,)), "finite"),
        (Fragment((ROOT,) * 9, tuple(range(9)), (0.0,) * 9), "allowed"),
    ],
)
def test_a_fragment_that_breaks_a_rule_is_named(fragment, words):
    reason = check_fragment(fragment, vocab_size=64, limit=8)
    assert reason is not None and words in reason


def test_a_sound_fragment_passes_the_check():
    tree = grown()
    assert check_fragment(tree.fragment(tree.nodes()), 64, 8) is None


def test_best_nodes_are_connected_and_by_falling_probability():
    tree = grown()
    nodes = [node for node, _ in best_nodes(tree, 4)]
    assert [n.token for n in nodes] == [1, 2, 5, 3]
    for node in nodes:
        assert node.parent is tree.root or node.parent in nodes


def test_siblings_that_add_up_to_more_than_certainty_are_worth_their_share():
    tree = TokenTree(1, 0)
    sure = tree.add(tree.root, 1, math.log(0.9))
    tree.add(tree.root, 2, math.log(0.6), rank=-1)  # another source, which does not know of the first
    tree.add(sure, 3, math.log(0.5))
    chances = {node.token: chance for node, chance in best_nodes(tree, 9)}
    assert chances == pytest.approx({1: 0.6, 2: 0.4, 3: 0.3})


def priced(tree, cost, rate, branches=True):
    (window,) = priced_windows([Candidates(tree, 9)], 9, Known(cost), rate, branches)
    return [node.token for node, _ in window]


def test_a_priced_window_stops_where_a_row_buys_less_than_the_current_rate():
    tree = grown()
    assert priced(tree, lambda rows: 100.0 * rows, rate=0.4 / 100) == [1, 2]
    assert priced(tree, lambda rows: 100.0 * rows, rate=1.0) == []
    assert len(priced(tree, lambda rows: 100.0 * rows, rate=0.0)) == 5


def test_a_dear_step_in_the_cost_does_not_hide_cheap_rows_behind_it():
    tree = TokenTree(1, 0)
    node = tree.root
    for token in range(1, 9):
        node = tree.add(node, token, math.log(0.95))
    assert len(priced(tree, lambda rows: 100.0, rate=1 / 100)) == 8


def test_streams_share_the_rows_that_are_cheap():
    """The likeliest nodes of all trees have them, and none is computed behind a bend in the cost."""
    sure, other = TokenTree(1, 0), grown()
    sure.add(sure.add(sure.root, 7, math.log(0.95)), 8, math.log(0.5))
    bend = lambda rows: 25.0 * rows + 100.0 * max(0, rows - 3)  # noqa: E731
    windows = priced_windows([Candidates(sure, 9), Candidates(other, 9)], 9, Known(bend), rate=1 / 100)
    assert [[node.token for node, _ in window] for window in windows] == [[7], [1, 2]]
    (alone,) = priced_windows([Candidates(other, 9)], 9, Known(bend), rate=1 / 100)
    assert [node.token for node, _ in alone] == [1, 2, 5]


def test_windows_are_listed_parents_first_with_the_likeliest_path_in_front():
    tree = grown()
    order, parents = in_tree_order([node for node, _ in best_nodes(tree, 5)], tree.root)
    assert [n.token for n in order] == [1, 2, 3, 4, 5]
    assert parents == [-1, 0, 1, 0, -1]


def test_the_chain_follows_the_likeliest_child():
    assert [node.token for node, _ in likeliest_path(grown(), 2)] == [1, 2]


def test_a_higher_confidence_for_a_known_node_raises_its_subtree():
    tree = grown()
    c = tree.root.child(1).child(2).child(3)
    before = c.total
    tree.add(tree.root, 1, math.log(0.8))
    assert c.total == pytest.approx(before + math.log(0.8) - math.log(0.6))
    for node in tree.nodes():
        assert node.total == pytest.approx(node.logprob + (node.parent.total if node.parent else 0.0))


def test_without_branches_only_the_likeliest_path_is_priced():
    assert priced(grown(), float, rate=1e-6, branches=False) == [1, 2, 3]
    assert len(priced(grown(), float, rate=1e-6)) == 5
