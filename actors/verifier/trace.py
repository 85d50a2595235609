"""Makes the ``RoundTrace`` of each round for a client that asked for one: the tree as it was, and what was accepted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from actors.tree.tree import FORCED, OWN, ROOT, Node, TokenTree
from actors.tree.window import best_nodes
from actors.verifier.results import Chosen
from actors.verifier.sources.bits import MEMORY, TEXT
from protocols.messages import Origin, RoundStats, RoundTrace

# Nodes of one trace: more cannot be told apart on a screen. They take 3 kB and 0.4 ms; 30 nodes 0.8 kB and 0.1 ms.
MAX_TRACED_NODES = 128


class Trace:
    """One request's. It notes when nodes arrive, and copies the tree before a commit prunes it."""

    def __init__(self) -> None:
        self._arrived: dict[Node, int] = {}  # arrival of drafters' nodes: microseconds since the verifier's start

    def grew(self, tree: TokenTree, now_us: float) -> None:
        """A drafter's fragment was merged into the tree."""
        for node in tree.nodes():
            if node.rank >= 0:
                self._arrived.setdefault(node, int(now_us))

    def seen(self, tree: TokenTree, chosen: Chosen, path: Sequence[int]) -> Callable[[RoundStats], RoundTrace]:
        """Call it after a forward over ``chosen``, of which ``path`` is accepted, and before the commit. Returns what
        makes the trace of it once the round's statistics are there."""
        window = set(chosen.nodes)
        others = [node for node, _ in best_nodes(tree, MAX_TRACED_NODES) if node not in window]
        nodes = [*chosen.nodes, *others[: max(0, MAX_TRACED_NODES - len(window))]]
        index = {tree.root: ROOT, **{node: at for at, node in enumerate(nodes)}}
        self._arrived = {node: self._arrived[node] for node in tree.nodes() if node in self._arrived}
        return partial(
            RoundTrace,
            tokens=tuple(node.token for node in nodes),
            parents=tuple(index[node.parent or tree.root] for node in nodes),
            logprobs=tuple(min(0.0, node.logprob) for node in nodes),
            origins=tuple(_origin(node) for node in nodes),
            arrived_us=tuple(self._arrived.get(node, 0) for node in nodes),
            path=tuple(path),
            remembered=tuple(at for at, node in enumerate(nodes) if node.sources & (MEMORY | TEXT) == MEMORY),
        )


def _origin(node: Node) -> Origin:
    if node.rank < 0:
        return {OWN: Origin.RETRIEVED, FORCED: Origin.FORCED}[node.rank]
    assert node.parent is not None  # no root is traced
    return Origin.DRAFT if node is node.parent.best_child() else Origin.SIBLING
