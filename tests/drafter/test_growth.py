import math

import pytest

from actors.calibration import BRANCHES, Calibration
from actors.drafter.growth import ChainGrowth, ThetaGrowth, TreeGrowth
from actors.models import Expansion
from actors.tree.tree import Node, TokenTree
from protocols.limits import MAX_NODES
from protocols.messages import Plan

NEVER_STOP = frozenset({99})


def run(growth, tree: TokenTree, candidates, width: int = 8) -> list[list[int]]:
    """Grow until the phase is over; the tokens of the leaves expanded in each forward."""
    slot = 0
    log = []
    while leaves := growth.wanted(width):
        log.append([leaf.token for leaf in leaves])
        for leaf in leaves:
            leaf.slot, leaf.expansion = slot, candidates(leaf)
            slot += 1
            growth.expanded(leaf, leaf.expansion)
    return log


def fixed(*probs: float):
    """Every node's children are tokens 10 * depth + rank."""

    def candidates(node: Node) -> Expansion:
        base = 10 * (node.position + 1)
        return Expansion(0, tuple(base + r for r in range(len(probs))), probs)

    return candidates


def chains(tree: TokenTree, node: Node | None = None) -> list[list[int]]:
    node = node or tree.root
    if not node.children:
        return [[]]
    return [[c.token, *rest] for c in node.children for rest in chains(tree, c)]


@pytest.mark.parametrize("gamma", [1, 2, 5, 16])
def test_a_chain_phase_drafts_gamma_tokens_one_below_the_other(gamma):
    tree, growth = TokenTree(1, 0), ChainGrowth(NEVER_STOP)
    growth.begin(tree, Plan("pearl", gamma))
    run(growth, tree, fixed(0.7, 0.2))
    assert chains(tree) == [[10 * d for d in range(1, gamma + 1)]]


def test_pearl_goes_on_behind_what_survived_and_sps_only_fills_up():
    for method, length in (("pearl", 6), ("sps", 4)):
        tree, growth = TokenTree(1, 0), ChainGrowth(NEVER_STOP)
        growth.begin(tree, Plan(method, 4))
        run(growth, tree, fixed(0.7))
        tree.advance([10, 20])
        growth.begin(tree, Plan(method, 4))
        run(growth, tree, fixed(0.7))
        assert len(chains(tree)[0]) == length


def test_drafting_stops_behind_a_stop_token():
    tree, growth = TokenTree(1, 0), ChainGrowth(frozenset({30}))
    growth.begin(tree, Plan("pearl", 9))
    run(growth, tree, fixed(0.7))
    assert chains(tree) == [[10, 20, 30]]


def theta_case(first: tuple[float, ...], second: float) -> int:
    """The rule in one line, as in the paper."""
    return sum(1 for p in first if p > first[0] * second)


@pytest.mark.parametrize("second", [0.05, 0.3, 0.6, 0.99])
@pytest.mark.parametrize("first", [(0.9, 0.05, 0.01), (0.4, 0.3, 0.2), (0.5, 0.26, 0.24), (1.0, 0.0, 0.0)])
def test_the_theta_rule_starts_a_sequence_for_every_first_token_above_theta(first, second):
    gamma = 9

    def candidates(node: Node) -> Expansion:
        base = 10 * (node.position + 1)
        probs = first if node.position == 0 else (second, 0.01, 0.005)
        return Expansion(0, (base, base + 1, base + 2), probs)

    tree, growth = TokenTree(1, 0), ThetaGrowth(NEVER_STOP)
    growth.begin(tree, Plan("duodecoding", gamma))
    run(growth, tree, candidates)
    k = max(1, theta_case(first, second))
    assert growth.sequences == k
    grown = chains(tree)
    assert len(grown) == k
    assert sum(len(c) for c in grown) == gamma
    assert sorted(len(c) for c in grown) == sorted([gamma // k + (j < gamma % k) for j in range(k)])


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("gamma", [3, 5, 8, 12])
def test_static_sequences_share_gamma_exactly(k, gamma):
    tree, growth = TokenTree(1, 0), ThetaGrowth(NEVER_STOP)
    growth.begin(tree, Plan("duodecoding", gamma, k))
    run(growth, tree, fixed(0.5, 0.3, 0.2))
    lengths = sorted(len(c) for c in chains(tree))
    assert lengths == sorted([gamma // k + (j < gamma % k) for j in range(k)])


def test_the_sequences_of_one_phase_are_drafted_in_one_batch():
    tree, growth = TokenTree(1, 0), ThetaGrowth(NEVER_STOP)
    growth.begin(tree, Plan("duodecoding", 9, 3))
    log = run(growth, tree, fixed(0.5, 0.3, 0.2))
    assert log == [[0], [10, 11, 12], [20, 20, 20]]


def test_after_a_verdict_the_next_sequences_start_behind_the_chosen_one():
    tree, growth = TokenTree(1, 0), ThetaGrowth(NEVER_STOP)
    growth.begin(tree, Plan("duodecoding", 6, 2))
    run(growth, tree, fixed(0.5, 0.3))
    tree.advance([11])  # the second sequence is chosen
    growth.begin(tree, Plan("duodecoding", 6, 2))
    run(growth, tree, fixed(0.5, 0.3))
    assert chains(tree) == [[20, 30, 40, 50, 60], [20, 30, 41, 50, 60]]


def test_the_controllers_cap_holds_against_the_theta_rule():
    tree, growth = TokenTree(1, 0), ThetaGrowth(NEVER_STOP)
    growth.begin(tree, Plan("duodecoding", 8, None, 2))
    run(growth, tree, fixed(0.34, 0.33, 0.33))
    assert growth.sequences == 2


def test_the_controllers_cap_does_not_hold_against_a_number_that_was_asked_for():
    tree, growth = TokenTree(1, 0), ThetaGrowth(NEVER_STOP)
    growth.begin(tree, Plan("duodecoding", 8, 3, 1))
    run(growth, tree, fixed(0.5, 0.3, 0.2))
    assert growth.sequences == 3


def test_the_tree_grows_its_likeliest_leaves_first_and_stops_at_unlikely_paths():
    tree, growth = TokenTree(1, 0), TreeGrowth(NEVER_STOP, Calibration())
    growth.begin(tree, Plan("tree", max_sequences=4))
    log = run(growth, tree, fixed(0.6, 0.3, 0.05))
    assert log[0] == [0]
    assert log[1][0] == 10
    expanded = [n for n in tree.nodes() if n.expanded]
    assert expanded
    assert all(n.total > math.log(0.02) for n in expanded)
    assert tree.size <= MAX_NODES // 2 + 4 * BRANCHES


@pytest.mark.parametrize("gamma", [1, 2, 4])
def test_a_tree_is_as_deep_as_gamma(gamma):
    tree, growth = TokenTree(1, 0), TreeGrowth(NEVER_STOP, Calibration())
    growth.begin(tree, Plan("tree", gamma))
    run(growth, tree, fixed(0.9, 0.05))
    assert max(node.position - tree.root.position for node in tree.nodes()) == gamma


@pytest.mark.parametrize("leaves", [1, 2, 4])
def test_a_tree_grows_as_many_leaves_in_one_step_as_it_is_told(leaves):
    tree, growth = TokenTree(1, 0), TreeGrowth(NEVER_STOP, Calibration())
    growth.begin(tree, Plan("tree", 6, max_sequences=leaves))
    assert max(map(len, run(growth, tree, fixed(0.5, 0.4)))) == leaves
