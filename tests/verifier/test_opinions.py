"""What a draft model and retrieval say of one token, pooled."""

import math
import random

import pytest

from actors.tree.tree import FORCED, OWN, TokenTree
from actors.verifier.opinions import OpinionPool


def tree_with(retrieved, drafted):
    """Children of the root by token, with the chances that each source gives them."""
    tree = TokenTree(3, 1)
    for token, chance in retrieved.items():
        tree.add(tree.root, token, math.log(chance), OWN)
    for rank, (token, chance) in enumerate(drafted.items()):
        tree.add(tree.root, token, math.log(chance), rank)
    return tree


def chances(tree):
    return {token: math.exp(child.logprob) for token, child in tree.root.children.items()}


def test_two_who_agree_are_surer_than_either_and_one_who_names_others_is_a_warning():
    pool = OpinionPool()
    assert pool.chance(0.5, 0.6) > 0.7
    assert pool.chance(0.5, None) < 0.4
    assert pool.chance(0.5, 0.05) < pool.chance(0.5, 0.3) < pool.chance(0.9, 0.3) <= 0.99


def test_what_the_draft_model_names_beside_a_copy_shares_what_is_left():
    tree = tree_with({7: 0.95}, {8: 0.5, 9: 0.2})
    OpinionPool().weigh(tree.root)
    found = chances(tree)
    assert found[7] > 0.6 and found[8] / found[9] == pytest.approx(2.5)
    assert found[8] == pytest.approx(0.5 * (1 - found[7]))
    tree = tree_with({7: 0.1}, {8: 0.5, 7: 0.3})
    OpinionPool().weigh(tree.root)
    found = chances(tree)
    assert sum(found.values()) <= 1.0 and found[8] == pytest.approx(0.5 * (1 - found[7]) / (1 - 0.3))


def test_nothing_changes_where_only_one_source_has_spoken():
    for tree in (tree_with({7: 0.5}, {}), tree_with({}, {7: 0.5, 8: 0.2})):
        before = chances(tree)
        assert not tree.root.stale
        OpinionPool().weigh(tree.root)
        assert chances(tree) == pytest.approx(before)


def test_what_a_grammar_forces_stays_certain():
    tree = tree_with({7: 0.5}, {8: 0.4})
    tree.add(tree.root, 7, 0.0, FORCED)
    OpinionPool().weigh(tree.root)
    assert chances(tree)[7] == 1.0


def test_chances_of_whole_paths_follow():
    tree = tree_with({7: 0.5}, {7: 0.6})
    below = tree.add(tree.root.children[7], 9, math.log(0.5), OWN)
    OpinionPool().weigh(tree.root)
    tree.settle(tree.root)
    assert tree.total(below) == pytest.approx(tree.root.children[7].logprob + math.log(0.5))


def test_weighing_twice_and_naming_again_change_nothing():
    tree, pool = tree_with({7: 0.8}, {8: 0.6}), OpinionPool()
    pool.weigh(tree.root)
    before = chances(tree)
    pool.weigh(tree.root)
    tree.add(tree.root, 8, math.log(0.6))
    tree.add(tree.root, 7, math.log(0.7), OWN)
    assert chances(tree) == before and not tree.root.stale
    tree.add(tree.root, 7, math.log(0.9), OWN)  # a longer match
    assert tree.root.stale


def test_the_weights_are_learned():
    pool, chance = OpinionPool(), random.Random(1)
    for _ in range(4000):  # a draft model that knows nothing of copies
        retrieved, drafted = chance.uniform(0.1, 0.9), chance.choice([None, chance.uniform(0.05, 0.95)])
        pool.observe(retrieved, drafted, chance.random() < retrieved)
    for retrieved in (0.3, 0.5, 0.8):
        for drafted in (None, 0.1, 0.9):
            assert pool.chance(retrieved, drafted) == pytest.approx(retrieved, abs=0.12)


def test_a_commit_teaches_along_its_path():
    tree, pool, other = tree_with({7: 0.5}, {8: 0.6}), OpinionPool(), OpinionPool()
    pool.learn(tree.root, [7, 9])
    assert pool.chance(0.5, None) > other.chance(0.5, None)
    pool = OpinionPool()
    pool.learn(tree.root, [8])
    assert pool.chance(0.5, None) < other.chance(0.5, None)
    pool = OpinionPool()
    pool.learn(tree_with({7: 0.5}, {}).root, [8])  # no draft model was asked
    assert pool.chance(0.5, None) == other.chance(0.5, None)
