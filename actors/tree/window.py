"""The part of the tree that the target verifies next: a connected subtree below the root."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from typing import NamedTuple

from actors.tree.tree import Node, TokenTree

Cost = Mapping[int, float]  # time by a number of rows

# A node and the chance that the target follows the path to it, as a plain tuple: a round makes dozens.
Likely = tuple[Node, float]


def best_nodes(tree: TokenTree, limit: int) -> list[Likely]:
    """The ``limit`` likeliest nodes, best first. No node is likelier than its parent, so they are a connected subtree.

    Siblings may come from sources that do not know of each other (the drafter and the verifier's own proposers). Where
    their probabilities add up to more than 1, they are scaled to 1.
    """
    heap: list[tuple[float, int, Node]] = []
    chosen: list[Likely] = []
    ticket, node, chance, exp = 0, tree.root, 1.0, math.exp
    for _ in range(limit):
        if (below := node.children) and not heap and len(below) == 1:  # a chain needs no heap
            (node,) = below
            if node.logprob < 0.0:
                chance *= exp(node.logprob)
        else:
            if below:
                each = [exp(child.logprob) if child.logprob < 0.0 else 1.0 for child in below]
                share = chance / max(1.0, sum(each))
                for child, p in zip(below, each, strict=True):
                    heapq.heappush(heap, (-share * p, ticket, child))
                    ticket += 1
            if not heap:
                break
            negative, _, node = heapq.heappop(heap)
            chance = -negative
        chosen += ((node, chance),)
    return chosen


def likeliest_path(tree: TokenTree, limit: int) -> list[Likely]:
    """The path of likeliest children: the window of SpS, PEARL and DuoDecoding."""
    return [(node, math.exp(min(0.0, tree.total(node)))) for node in tree.chain(limit)]


class Candidates(NamedTuple):
    """The nodes of one tree that a window may take: ``limit`` at most, each worth ``row`` tokens besides its row."""

    tree: TokenTree
    limit: int
    row: float = 0.0


def best_cut(
    chances: Sequence[float], cost: Cost, rate: float, least: float = 0.0, beside: Iterable[float] = repeat(0.0)
) -> tuple[int, float]:
    """The number of nodes, best first, that maximises ``expected tokens - rate * time``, and that value.

    ``cost``: time that a number of rows adds to a forward. ``rate``: tokens that the same time brings otherwise.
    ``least``: value of no node at all. ``beside``: tokens that each node must bring besides its row."""
    best, most, expected, dues, after = 0, least, 0.0, 0.0, len(chances)
    for count, (chance, due) in enumerate(zip(chances, beside, strict=False), 1):
        expected += chance
        dues += due
        value = expected - rate * cost[count] - dues
        after -= 1
        if value > most:
            best, most = count, value
        elif value + chance * after <= most:
            break  # even if the others cost nothing and were as likely as this one
    return best, most


def priced_windows(
    trees: Sequence[Candidates], limit: int, cost: Cost, rate: float, branches: bool = True, least: float = 0.0
) -> list[list[Likely]]:
    """The windows of the streams of one forward, which share its rows: the nodes of all trees in one order, best first,
    and the prefix that maximises ``expected tokens - rate * time`` (docs/how-it-works.md, "One price").

    ``limit``: of all of them together. ``cost`` and ``rate``: see :func:`best_cut`. ``branches``: whether a window may
    have more than one path. ``least``: value below which there is no window.
    """
    listed = best_nodes if branches else likeliest_path
    likely = [(at, one) for at, (tree, most, _) in enumerate(trees) for one in listed(tree, most)]
    if len(trees) > 1:
        likely.sort(key=lambda one: one[1][1], reverse=True)  # stable: no node comes before its parent
    del likely[limit:]
    chances, beside = [chance for _, (_, chance) in likely], [trees[at].row for at, _ in likely]
    best, _ = best_cut(chances, cost, rate, least, beside)
    windows: list[list[Likely]] = [[] for _ in trees]
    for at, one in likely[:best]:
        windows[at].append(one)
    return windows


def in_tree_order(nodes: list[Node], root: Node) -> tuple[list[Node], list[int]]:
    """The nodes depth-first, likely children first, and the index of each one's parent (-1: the root).

    A node's slot is given by its place. If the path of first-listed children is accepted its K/V already lies in
    canonical slots, so the likeliest path comes first.
    """
    above: Node | None = root
    for node in nodes:
        if node.parent is not above:
            break
        above = node
    else:  # a path, such as a retrieved text
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
        below = sorted((c for c in node.children if id(c) in chosen), key=lambda c: c.logprob)
        stack.extend((child, index) for child in below)
    return order, parents
