"""The token tree below the last committed token: the drafter grows it, the verifier prunes it.

Both sides hold one per request. The drafter sends *fragments*: tries as parallel arrays, in which every node's parent
comes before the node. A fragment is self-contained: it repeats the ancestors of its new nodes. Merging is by (parent,
token). So a lost, repeated or late fragment changes nothing but speed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

from actors.tree.accept import ROOT as ROOT

# In place of a rank, of nodes that no draft model has named:
OWN = -1  # named by the verifier's own proposers
FORCED = -2  # the only token that a grammar allows

NO_SLOT = -1  # slot for a node that no draft model holds
LEAST, ROUNDED = -1e9, 1e-6  # log-probabilities: as in messages, and above 0 by rounding

_logprob = attrgetter("logprob")


class Node:
    """One draft token. ``total`` is the natural log of the path probability since the tree was made, so that it holds
    when the tree is re-rooted; see :meth:`TokenTree.total` for that below the present root."""

    # fmt: off
    __slots__ = (
        "children", "expansion", "fits", "logprob", "parent", "position", "rank", "sent", "slot", "sources", "token",
        "total",
    )
    # fmt: on

    def __init__(self, token: int, position: int, parent: Node | None = None, logprob: float = 0.0, rank: int = 0):
        self.token = token
        self.position = position  # place in the text; the root's is ``length - 1``
        self.parent = parent
        self.logprob = logprob
        self.total: float = logprob + (parent.total if parent is not None else 0.0)
        self.rank = rank  # among the candidates of its parent, 0 the likeliest; or OWN or FORCED
        self.sources = 0  # verifier: who has named it, a bit for each
        self.children: list[Node] = CHILDLESS  # each of another token
        self.slot = NO_SLOT  # draft model: scratch slot of its K/V, once expanded
        self.expansion: Any = None  # draft model: its candidates, see :class:`actors.models.Expansion`; None: not known
        self.sent = False  # drafter: the verifier has been sent it
        self.fits = False  # verifier: the grammar allows it, and the tokens that must follow it are in the tree

    @property
    def expanded(self) -> bool:
        """Whether a draft model's candidates after it are known."""
        return self.expansion is not None

    def best_child(self, counts: Callable[[Node], bool] | None = None) -> Node | None:
        """The likeliest child with ``counts`` true."""
        children = self.children if counts is None else filter(counts, self.children)
        return max(children, key=_logprob, default=None)

    def child(self, token: int) -> Node | None:
        """The child with that token."""
        for child in self.children:
            if child.token == token:
                return child
        return None

    def subtree(self) -> list[Node]:
        """This node and everything below it, parents first."""
        found = [self]
        for node in found:  # the list grows meanwhile
            found += node.children
        return found


@dataclass(frozen=True, slots=True)
class Fragment:
    """A part of a tree. ``parents[i]`` < i, or ROOT for children of the committed token that the fragment hangs on."""

    parents: tuple[int, ...]
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]  # natural log of the confidence in token i given its parent


CHILDLESS: list[Node] = []  # every leaf's, which is never changed


class Advance(NamedTuple):
    """The effect of a commit on a tree."""

    nodes: list[Node | None]  # [i]: the node that held the i-th committed token; None: the tree had none
    dead: list[Node]  # nodes that were off the committed path


class TokenTree:
    def __init__(self, length: int, last_token: int = -1, vocab_size: int = 1 << 31) -> None:
        """A tree after ``length`` committed tokens: its root, the last of them, is at position ``length - 1``. Its
        tokens are below ``vocab_size``."""
        self.root, self.vocab_size = Node(last_token, length - 1), vocab_size
        self.size = 0  # nodes without the root

    @property
    def length(self) -> int:
        """Committed tokens."""
        return self.root.position + 1

    def add(self, parent: Node, token: int, logprob: float, rank: int = 0, source: int = 0) -> Node:
        """The child of ``parent`` with that token, new or not. The higher of two confidences stays. ``source``: the
        bit of who names it. Raises ValueError for what is no token, or no log of a chance."""
        if not (0 <= token < self.vocab_size and LEAST <= logprob <= ROUNDED):  # NaN is neither
            raise ValueError(f"token {token} with log-probability {logprob}, of a vocabulary of {self.vocab_size}")
        for node in parent.children:
            if node.token == token:
                break
        else:
            node = Node(token, parent.position + 1, parent, logprob, rank)
            parent.children = [*parent.children, node]
            node.sources = source
            self.size += 1
            return node
        if logprob > node.logprob:
            node.logprob, node.total = logprob, parent.total + logprob
            if node.children:
                self.settle(node)
        if node.rank < 0:
            node.rank = rank  # shared with a draft model, it counts as the model's
        node.sources |= source
        return node

    def settle(self, node: Node) -> None:
        """Confidences in nodes below ``node`` have changed: so have those of whole paths."""
        stack = [node]
        while stack:
            above = stack.pop()
            total = above.total
            for child in above.children:
                child.total = total + child.logprob
                if child.children:
                    stack.append(child)

    def drop(self, node: Node) -> None:
        """Remove a node, which is not the root, and its subtree."""
        assert node.parent is not None
        node.parent.children.remove(node)
        self.size -= len(node.subtree())

    def keep_only(self, node: Node, tokens: Set[int]) -> None:
        """Drop all other children of ``node``."""
        for child in [*node.children]:
            if child.token not in tokens:
                self.drop(child)

    def nodes(self) -> list[Node]:
        """Every node but the root, parents first."""
        return self.root.subtree()[1:]

    def total(self, node: Node) -> float:
        """Log of the probability that the target follows the path from the root to ``node``."""
        return node.total - self.root.total

    def advance(self, tokens: Sequence[int]) -> Advance:
        """Commit ``tokens``: re-root at the last of them, with its subtree if it was drafted."""
        held, dead = list[Node | None](), list[Node]()
        node: Node | None = self.root
        for token in tokens:
            below = node.children if node is not None else CHILDLESS
            node = node.child(token) if node is not None else None
            self.size -= node is not None
            if node is None or len(below) > 1:
                dead += [other for other in below if other is not node]
            held += (node,)
        for other in dead:  # the list grows: each node adds those below it
            dead += other.children
        for gone in (*held, *dead):  # no cycle is left, so that their memory serves the next nodes at once
            if gone is not None:
                gone.parent = None
        if node is None:
            node = Node(tokens[-1], self.length - 1 + len(tokens))
        self.root = node
        self.size -= len(dead)
        return Advance(held, dead)

    def chain(self, limit: float = math.inf, counts: Callable[[Node], bool] | None = None) -> list[Node]:
        """The path of likeliest children below the root: at most ``limit`` nodes, with ``counts``
        true."""
        path: list[Node] = []
        node = self.root.best_child(counts)
        while node is not None and len(path) < limit:
            path.append(node)
            node = node.best_child(counts)
        return path

    def slots_above(self, node: Node) -> tuple[int, ...]:
        """The slots of the nodes between the root and ``node``, top first."""
        slots: list[int] = []
        above = node.parent
        while above is not None and above is not self.root:
            slots.append(above.slot)
            above = above.parent
        return tuple(reversed(slots))

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

    def merge(self, committed: Sequence[int], base_len: int, fragment: Fragment, source: int = 0) -> int:
        """Merge a fragment that hangs on the committed token at position ``base_len - 1``. Returns how many of its
        nodes are in the tree now.

        Where more tokens were committed since it was sent, only nodes below the committed path are alive.
        """
        alive = 0
        where: list[int | Node | None] = []  # each node's committed position, its tree node, or None if dead
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
            where.append(self.add(at, token, logprob, 0, source))
            alive += 1
        return alive


def check_fragment(fragment: Fragment, vocab_size: int, limit: int) -> str | None:
    """Why a fragment from a peer must not be merged; None: it may be. ``limit``: most nodes."""
    if not len(fragment.parents) == len(fragment.tokens) == len(fragment.logprobs):
        return "arrays of different lengths"
    if len(fragment.tokens) > limit:
        return f"{len(fragment.tokens)} nodes where {limit} are allowed"
    if any(not ROOT <= parent < i for i, parent in enumerate(fragment.parents)):
        return "a parent that does not come before its child"
    if any(not 0 <= token < vocab_size for token in fragment.tokens):
        return f"a token outside the vocabulary of {vocab_size}"
    if any(not LEAST <= lp <= ROUNDED for lp in fragment.logprobs):
        return "a log-probability that is not a finite number below zero"
    return None
