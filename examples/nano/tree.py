"""The token tree below the last committed token: the drafter grows it, the verifier prunes it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from wire import Grow

ROOT = -1  # as an index of a parent: the last committed token


@dataclass(eq=False, slots=True)
class Node:
    """A draft token. ``total`` is the log of the chance of the path to it, counted from where the tree was made."""

    token: int
    position: int  # in the text
    parent: Node | None = None
    total: float = 0.0
    children: dict[int, Node] = field(default_factory=dict)  # by token
    expanded: bool = False  # drafter: the draft model has named its children
    sent: bool = False  # drafter: the verifier has it


class Tree:
    def __init__(self, text: Sequence[int]) -> None:
        self.root = Node(text[-1], len(text) - 1)

    def nodes(self) -> Iterator[Node]:
        """Every node but the root, parents first."""
        queue = list(self.root.children.values())
        for node in queue:
            queue.extend(node.children.values())
            yield node

    def add(self, parent: Node, token: int, logprob: float) -> Node:
        """The child of ``parent`` with that token, new or not."""
        new = Node(token, parent.position + 1, parent, parent.total + min(0.0, logprob))
        return parent.children.setdefault(token, new)

    def window(self, limit: int) -> list[Node]:
        """The likeliest nodes. No node is likelier than its parent, so they are connected to the root."""
        return sorted(self.nodes(), key=lambda node: -node.total)[:limit]

    def depth(self) -> int:
        return max((node.position for node in self.nodes()), default=self.root.position) - self.root.position

    def flat(self, nodes: Iterable[Node]) -> tuple[list[Node], tuple[int, ...]]:
        """These nodes with all their ancestors, parents first, and the index of each one's parent."""
        order, index = [], {id(self.root): ROOT}

        def place(node: Node) -> None:
            if id(node) not in index:
                place(node.parent)
                index[id(node)] = len(order)
                order.append(node)

        for node in nodes:
            place(node)
        return order, tuple(index[id(node.parent)] for node in order)

    def advance(self, tokens: Sequence[int]) -> None:
        """Commit tokens: each becomes the root in turn, and keeps the subtree that was drafted below it."""
        for token in tokens:
            known = self.root.children.get(token)
            self.root = known if known is not None else Node(token, self.root.position + 1)
            self.root.parent = None

    def merge(self, text: Sequence[int], grow: Grow) -> None:
        """Add the nodes of a message. If text was committed since, only those on paths that agree with it are alive.

        Merging is by (parent, token): a message that is lost, late or repeated costs speed only."""
        where: list[int | Node | None] = []  # each node's place: in ``text``, a node of the tree, or None: dead
        for parent, token, logprob in zip(grow.parents, grow.tokens, grow.logprobs, strict=True):
            at = grow.base_len - 1 if parent == ROOT else where[parent]
            if isinstance(at, int) and at + 1 < len(text):
                where.append(at + 1 if text[at + 1] == token else None)
            elif at is None:
                where.append(None)
            else:
                where.append(self.add(self.root if isinstance(at, int) else at, token, logprob))


def walk(tokens: Sequence[int], parents: Sequence[int], chosen: Sequence[int]) -> tuple[list[int], int]:
    """The verify rule. ``chosen[0]`` is the target's token behind the root, ``chosen[i + 1]`` the one behind node i.
    Returns the indices of the accepted nodes and the target's own token that follows them."""
    below = {(parent, token): node for node, (parent, token) in enumerate(zip(parents, tokens, strict=True))}
    path, at = [], ROOT
    while (node := below.get((at, chosen[at + 1]), ROOT)) != ROOT:
        path.append(node)
        at = node
    return path, chosen[at + 1]
