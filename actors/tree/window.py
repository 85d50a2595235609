"""Which part of the tree the target verifies next: a connected subtree below the root."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

from actors.tree.tree import Node, TokenTree

Cost = Callable[[int], float]  # microseconds of a target forward, or of a whole round, with that many rows


class Likely(NamedTuple):
    """A node and the chance that the target follows the path from the root to it."""

    node: Node
    chance: float


def best_nodes(tree: TokenTree, limit: int, least: float = 0.0) -> list[Likely]:
    """The ``limit`` likeliest nodes with a chance above ``least``, best first. No node is likelier than its parent, so
    they are a connected subtree.

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
        if chance <= least:
            break
        chosen.append(Likely(node, chance))
    return chosen


def likeliest_path(tree: TokenTree, limit: int) -> list[Likely]:
    """The path of likeliest children: the window of SpS, PEARL and DuoDecoding."""
    return [Likely(node, math.exp(min(0.0, tree.total(node)))) for node in tree.chain(limit)]


def priced_window(tree: TokenTree, limit: int, cost: Cost, rate: float, branch_us: float | None = 0.0) -> list[Likely]:
    """The prefix of :func:`best_nodes` that maximises ``expected tokens - rate * time`` (docs/how-it-works.md, "One
    price").

    ``cost``: microseconds by rows. ``rate``: tokens per microsecond now, so that no time is spent that brings fewer
    tokens than it does on average. Every path beside the first takes ``branch_us`` more. Where none of them is worth
    that, the window is a prefix of the likeliest path; None: it always is.
    """
    orders = []
    if branch_us is not None:
        orders.append(best_nodes(tree, limit))
    if not orders or (branch_us and branches(orders[0])):
        orders.append(likeliest_path(tree, limit))
    base = cost(1)
    best_value = 0.0
    best: list[Likely] = []
    for likely in orders:
        best_count, expected, beside_us = 0, 0.0, 0.0
        continued: set[int] = set()  # nodes that have a child among those chosen
        for count, one in enumerate(likely, 1):
            expected += one.chance
            if branch_us and id(one.node.parent) in continued:
                beside_us += branch_us
            continued.add(id(one.node.parent))
            value = expected - rate * (cost(1 + count) - base + beside_us)
            if value > best_value:
                best_count, best_value = count, value
        best = likely[:best_count] or best
    return best


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
