"""What a client that asked for a trace is told of a round: the tree that was there, and what became of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from actors.tree.tree import FORCED, OWN, ROOT, Node, TokenTree
from actors.tree.window import best_nodes
from actors.verifier.decoding.rounds import Chosen
from protocols.messages import Origin, RoundStats, RoundTrace

# nodes of one round: more cannot be told apart on a screen. They take 3 kB and 0.4 ms, 30 nodes 0.8 kB and 0.1 ms.
MAX_TOLD = 128


class Trace:
    """Of one request. It dates nodes as they come, and looks at the tree before a commit prunes it."""

    def __init__(self) -> None:
        self._arrived: dict[Node, int] = {}  # microseconds since the verifier's start, of nodes that a drafter sent

    def grew(self, tree: TokenTree, now_us: float) -> None:
        """A drafter's fragment was merged."""
        for node in tree.nodes():
            if node.rank >= 0:
                self._arrived.setdefault(node, int(now_us))

    def seen(self, tree: TokenTree, chosen: Chosen, path: Sequence[int]) -> Callable[[RoundStats], RoundTrace]:
        """A forward over ``chosen`` is over, and ``path`` of it is accepted. What is told of that, with the statistics
        that follow when it is committed."""
        window = set(chosen.nodes)
        others = [one.node for one in best_nodes(tree, MAX_TOLD) if one.node not in window]
        nodes = [*chosen.nodes, *others[: max(0, MAX_TOLD - len(window))]]
        index = {tree.root: ROOT, **{node: at for at, node in enumerate(nodes)}}
        self._forget(tree.nodes())
        return partial(
            RoundTrace,
            tokens=tuple(node.token for node in nodes),
            parents=tuple(index[_above(node)] for node in nodes),
            logprobs=tuple(min(0.0, node.logprob) for node in nodes),
            origins=tuple(_origin(node) for node in nodes),
            arrived_us=tuple(self._arrived.get(node, 0) for node in nodes),
            path=tuple(path),
        )

    def _forget(self, alive: Iterable[Node]) -> None:
        """All but what is in the tree still."""
        self._arrived = {node: self._arrived[node] for node in alive if node in self._arrived}


def _origin(node: Node) -> Origin:
    if node.rank < 0:
        return {OWN: Origin.RETRIEVED, FORCED: Origin.FORCED}[node.rank]
    return Origin.DRAFT if node is _above(node).best_child() else Origin.SIBLING


def _above(node: Node) -> Node:
    assert node.parent is not None  # no root is told of
    return node.parent
