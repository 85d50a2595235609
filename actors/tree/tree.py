"""The token tree below the last committed token; the drafter grows it, the verifier prunes it.

Both sides hold one per request. They exchange *fragments*: tries written as parallel arrays in which every node's
parent comes before it. A fragment is self-contained (it repeats the ancestors of what is new) and merging is by
(parent, token), so that losing, repeating or delaying one changes speed only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

from actors.tree.accept import ROOT as ROOT

OWN = -1  # rank of a node that no drafter has named: a guess of the verifier's own
FORCED = -2  # rank of a node that a grammar forces


_logprob = attrgetter("logprob")


class Node:
    """One draft token. ``total`` is the natural log of the path probability since the tree was planted."""

    # fmt: off
    __slots__ = (
        "children", "expanded", "fits", "logprob", "parent", "position", "rank", "sent", "slot", "token", "total",
    )
    # fmt: on

    def __init__(self, token: int, position: int, parent: Node | None = None, logprob: float = 0.0, rank: int = 0):
        self.token = token
        self.position = position  # in the text; the root's is ``length - 1``
        self.parent = parent
        self.logprob = logprob
        self.total: float = logprob + (parent.total if parent is not None else 0.0)
        self.rank = rank  # among its siblings when it was drafted
        self.children: dict[int, Node] = {}
        self.slot = ROOT  # drafter: scratch slot of its K/V, once expanded
        self.expanded = False
        self.sent = False
        self.fits = False  # verifier: the grammar allows it, and what it forces behind it is there

    def best_child(self, counts: Callable[[Node], bool] | None = None) -> Node | None:
        children = self.children.values() if counts is None else filter(counts, self.children.values())
        return max(children, key=_logprob, default=None)

    def subtree(self) -> Iterator[Node]:
        """This node and everything below it, parents first."""
        stack = [self]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())


@dataclass(frozen=True, slots=True)
class Fragment:
    """``parents[i]`` < i, or ROOT for children of the committed token the fragment hangs on."""

    parents: tuple[int, ...]
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Advance:
    """``nodes[i]`` is the node that held the i-th committed token, None where the tree had none."""

    nodes: list[Node | None]
    dead: list[Node]


class TokenTree:
    def __init__(self, length: int, last_token: int = ROOT) -> None:
        """``length`` committed tokens, so the root sits at position ``length - 1``."""
        self.root = Node(last_token, length - 1)
        self.size = 0  # nodes without the root

    @property
    def length(self) -> int:
        return self.root.position + 1

    def add(self, parent: Node, token: int, logprob: float, rank: int = 0) -> Node:
        """The child of ``parent`` with that token, new or not; a higher confidence replaces a lower one."""
        node = parent.children.get(token)
        if node is None:
            node = parent.children[token] = Node(token, parent.position + 1, parent, logprob, rank)
            self.size += 1
            return node
        if node.rank == OWN or rank == FORCED:
            node.rank = rank  # a guess that the drafter shares is the drafter's
        if logprob > node.logprob:
            gain = logprob - node.logprob
            node.logprob = logprob
            for below in node.subtree():
                below.total += gain
        return node

    def drop(self, node: Node) -> None:
        """Take a node, which is not the root, from the tree with all that is below it."""
        assert node.parent is not None
        del node.parent.children[node.token]
        self.size -= sum(1 for _ in node.subtree())

    def nodes(self) -> Iterator[Node]:
        """Every node but the root, parents first."""
        walk = self.root.subtree()
        next(walk)
        return walk

    def total(self, node: Node) -> float:
        """Log of the probability that the target follows the path from the root to ``node``."""
        return node.total - self.root.total

    def advance(self, tokens: Sequence[int]) -> Advance:
        """Commit ``tokens``: re-root on the last of them, keeping its subtree if it was drafted."""
        held: list[Node | None] = []
        dead: list[Node] = []
        node: Node | None = self.root
        for token in tokens:
            child = node.children.get(token) if node is not None else None
            if node is not None:
                dead.extend(n for c in node.children.values() if c is not child for n in c.subtree())
            held.append(child)
            node = child
        if node is None:
            node = Node(tokens[-1], self.length - 1 + len(tokens))
        node.parent = None
        self.root = node
        self.size -= len(dead) + sum(one is not None for one in held)
        return Advance(held, dead)

    def chain(self, limit: int, counts: Callable[[Node], bool] | None = None) -> list[Node]:
        """The most probable path below the root, at most ``limit`` nodes; of those that ``counts`` likes."""
        path: list[Node] = []
        node = self.root.best_child(counts)
        while node is not None and len(path) < limit:
            path.append(node)
            node = node.best_child(counts)
        return path

    def fragment(self, nodes: Iterable[Node]) -> Fragment:
        """The given nodes with all their ancestors, parents first."""
        index: dict[int, int] = {id(self.root): ROOT}
        parents: list[int] = []
        tokens: list[int] = []
        logprobs: list[float] = []
        for node in nodes:
            path: list[Node] = []
            step: Node | None = node
            while step is not None and id(step) not in index:
                path.append(step)
                step = step.parent
            for new in reversed(path):
                assert new.parent is not None
                index[id(new)] = len(tokens)
                parents.append(index[id(new.parent)])
                tokens.append(new.token)
                logprobs.append(new.logprob)
        return Fragment(tuple(parents), tuple(tokens), tuple(logprobs))

    def merge(self, committed: Sequence[int], base_len: int, fragment: Fragment) -> int:
        """Graft a fragment that hangs on committed token ``base_len - 1``; returns how many of its nodes live.

        Tokens that were committed since must match the committed path; what hangs on others is dead.
        """
        alive = 0
        where: list[int | Node | None] = []  # committed position, tree node, or None for dead
        for parent, token, logprob in zip(fragment.parents, fragment.tokens, fragment.logprobs, strict=True):
            at = base_len - 1 if parent == ROOT else where[parent]
            if isinstance(at, int):
                if at + 1 < len(committed):
                    where.append(at + 1 if committed[at + 1] == token else None)
                    continue
                at = self.root
            if at is None:
                where.append(None)
                continue
            where.append(self.add(at, token, logprob))
            alive += 1
        return alive


def check_fragment(fragment: Fragment, vocab_size: int, limit: int) -> str | None:
    """Why a fragment from a peer must not be used, or None."""
    if not len(fragment.parents) == len(fragment.tokens) == len(fragment.logprobs):
        return "arrays of different lengths"
    if len(fragment.tokens) > limit:
        return f"{len(fragment.tokens)} nodes where {limit} are allowed"
    if any(not ROOT <= parent < i for i, parent in enumerate(fragment.parents)):
        return "a parent that does not come before its child"
    if any(not 0 <= token < vocab_size for token in fragment.tokens):
        return f"a token outside the vocabulary of {vocab_size}"
    if any(not (math.isfinite(lp) and lp <= 1e-6) for lp in fragment.logprobs):
        return "a log-probability that is not a finite number below zero"
    return None
