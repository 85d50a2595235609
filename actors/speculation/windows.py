"""Which part of the tree the target verifies next: a connected subtree below the root."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable

from actors.speculation.tree import Node, TokenTree

Cost = Callable[[int], float]  # microseconds of a target forward with that many rows


def chain_window(tree: TokenTree, limit: int) -> list[Node]:
    """The most probable path: the window of SpS, PEARL and DuoDecoding."""
    return tree.chain(limit)


def best_nodes(tree: TokenTree, limit: int) -> list[Node]:
    """The ``limit`` most probable nodes, best first. Path probability falls downwards, so they are connected."""
    root = tree.root
    heap = [(-c.total, i, c) for i, c in enumerate(root.children.values())]
    heapq.heapify(heap)
    ticket = len(heap)
    chosen: list[Node] = []
    while heap and len(chosen) < limit:
        _, _, node = heapq.heappop(heap)
        chosen.append(node)
        for child in node.children.values():
            heapq.heappush(heap, (-child.total, ticket, child))
            ticket += 1
    return chosen


def priced_window(
    tree: TokenTree, limit: int, cost: Cost, rate: float, rows_before: int = 0, branches: bool = True
) -> list[Node]:
    """The prefix of :func:`best_nodes` that maximises ``expected tokens - rate * time`` (DESIGN section 5, point 3).

    ``rate`` is tokens per microsecond now: time that buys fewer tokens than the current rate is not spent.
    ``rows_before`` rows of other requests share the forward. Without ``branches`` the likeliest path alone is priced.
    """
    nodes = best_nodes(tree, limit) if branches else tree.chain(limit)
    base = cost(rows_before + 1)
    best_count, best_value, expected = 0, 0.0, 0.0
    for count, node in enumerate(nodes, 1):
        expected += math.exp(min(0.0, tree.total(node)))
        value = expected - rate * (cost(rows_before + 1 + count) - base)
        if value > best_value:
            best_count, best_value = count, value
    return nodes[:best_count]


def in_tree_order(nodes: list[Node], root: Node) -> tuple[list[Node], list[int]]:
    """Depth-first with likely children first, and each node's parent as an index (-1: the root).

    The engine gives canonical slots to the path of first-listed children, so the likeliest path comes first.
    """
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
