"""Which part of the tree the target verifies next: a connected subtree below the root."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from actors.tree.tree import Node, TokenTree

Cost = Callable[[int], float]  # microseconds by a number of rows


class Likely(NamedTuple):
    """A node and the chance that the target follows the path from the root to it."""

    node: Node
    chance: float


def best_nodes(tree: TokenTree, limit: int) -> list[Likely]:
    """The ``limit`` likeliest nodes, best first. No node is likelier than its parent, so they are a connected subtree.

    Siblings may come from sources that do not know of each other (the drafter and the verifier's own proposers). Where
    their probabilities add up to more than 1, they are scaled to 1.
    """
    heap: list[tuple[float, int, Node]] = []
    chosen: list[Likely] = []
    tickets = itertools.count()
    node, chance = tree.root, 1.0
    while len(chosen) < limit:
        below = node.children.values()
        if len(below) == 1 and not heap:  # a chain, such as a retrieved text: no heap is needed
            (node,) = below
            chance *= math.exp(min(0.0, node.logprob))
        else:
            if below:
                each = [(child, math.exp(min(0.0, child.logprob))) for child in below]
                share = chance / max(1.0, sum([p for _, p in each]))
                for child, p in each:
                    heapq.heappush(heap, (-share * p, next(tickets), child))
            if not heap:
                break
            negative, _, node = heapq.heappop(heap)
            chance = -negative
        chosen.append(Likely(node, chance))
    return chosen


def likeliest_path(tree: TokenTree, limit: int) -> list[Likely]:
    """The path of likeliest children: the window of SpS, PEARL and DuoDecoding."""
    return [Likely(node, math.exp(min(0.0, tree.total(node)))) for node in tree.chain(limit)]


class Candidates(NamedTuple):
    """The nodes of one tree that a window may take: ``limit`` at most, each of which takes ``row_us`` of its own."""

    tree: TokenTree
    limit: int
    row_us: float = 0.0


def best_cut(chances: Sequence[float], cost: Cost, rate: float) -> tuple[int, float]:
    """The number of nodes, best first, that maximises ``expected tokens - rate * time``, and that value.

    ``cost``: microseconds that a number of rows adds to a forward. ``rate``: tokens per microsecond now."""
    best, most, expected = 0, 0.0, 0.0
    for count, chance in enumerate(chances, 1):
        expected += chance
        value = expected - rate * cost(count)
        if value > most:
            best, most = count, value
    return best, most


def priced_windows(
    trees: Sequence[Candidates], limit: int, cost: Cost, rate: float, branch_us: float | None = 0.0
) -> list[list[Likely]]:
    """The windows of the streams of one forward, which share its rows: the nodes of all trees in one order, best first,
    and the prefix that maximises ``expected tokens - rate * time`` (docs/how-it-works.md, "One price").

    ``limit``: of all of them together. ``cost`` and ``rate``: see :func:`best_cut`. Every path of a tree beside the
    first takes ``branch_us`` more. Where none of them is worth that, windows are paths; None: they always are.
    """
    orders = [[best_nodes(one.tree, one.limit) for one in trees]] if branch_us is not None else []
    if not orders or (branch_us and any(map(branches, orders[0]))):
        orders.append([likeliest_path(one.tree, one.limit) for one in trees])
    best_value = 0.0
    best: list[tuple[int, Likely]] = []
    for each in orders:
        likely = [(at, one) for at, nodes in enumerate(each) for one in nodes]
        likely.sort(key=lambda one: one[1].chance, reverse=True)  # stable: no node comes before its parent
        best_count, expected, beside_us = 0, 0.0, 0.0
        continued: set[int] = set()  # nodes that have a child among those chosen
        for count, (at, one) in enumerate(likely[:limit], 1):
            expected += one.chance
            beside_us += trees[at].row_us
            if branch_us and id(one.node.parent) in continued:
                beside_us += branch_us
            continued.add(id(one.node.parent))
            value = expected - rate * (cost(count) + beside_us)
            if value > best_value:
                best_count, best_value = count, value
        best = likely[:best_count] or best
    windows: list[list[Likely]] = [[] for _ in trees]
    for at, one in best:
        windows[at].append(one)
    return windows


def branches(likely: list[Likely]) -> bool:
    """Whether these nodes, best first, are more than one path."""
    return any(after.node.parent is not before.node for before, after in itertools.pairwise(likely))


def in_tree_order(nodes: list[Node], root: Node) -> tuple[list[Node], list[int]]:
    """The nodes depth-first, likely children first, and the index of each one's parent (-1: the root).

    A node's slot is given by its place. If the path of first-listed children is accepted its K/V already lies in
    canonical slots, so the likeliest path comes first.
    """
    if all(after.parent is before for before, after in itertools.pairwise(nodes)):  # a path, such as a retrieved text
        return nodes, list(range(-1, len(nodes) - 1))
    chosen = {id(node) for node in nodes}
    order: list[Node] = []
    parents: list[int] = []
    stack: list[tuple[Node, int]] = [(root, -1)]
    while stack:
        node, index = stack.pop()
        if node is not root:
            order.append(node)
            parents.append(index)
            index = len(order) - 1
        below = sorted((c for c in node.children.values() if id(c) in chosen), key=lambda c: c.logprob)
        stack.extend((child, index) for child in below)
    return order, parents
