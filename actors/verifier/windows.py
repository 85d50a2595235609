"""Which tokens the target verifies next: a window is cut out of what the sources have added to the tree."""

from __future__ import annotations

from actors.tree.tree import TokenTree
from actors.tree.window import Likely, best_nodes, branches, in_tree_order, likeliest_path, priced_window
from actors.verifier.price import Price
from actors.verifier.rounds import NO_WINDOW, Chosen
from actors.verifier.sources.source import Allowance
from actors.verifier.streams import Stream


def choose(stream: Stream, price: Price, allowance: Allowance, may_branch: bool, cap: int | None = None) -> Chosen:
    """The window of the stream's next round, of ``cap`` nodes at most. ``may_branch``: whether it may hold more than
    one path."""
    tree, limit = stream.tree, _most(stream, cap)
    if limit == 0 or not tree.root.children:
        return NO_WINDOW
    match stream.strategy.window:
        case "root":
            return NO_WINDOW
        case "chain":
            return _laid_out(tree, likeliest_path(tree, limit))
        case "priced":
            return _laid_out(tree, _priced(stream, price, allowance, may_branch, limit))
        case "proposal" if stream.grammar is not None:
            return _laid_out(tree, best_nodes(tree, limit))
    return _laid_out(tree, [Likely(node, 0.0) for node in tree.nodes()][:limit])


def _most(stream: Stream, cap: int | None) -> int:
    """Nodes that the next window may have."""
    most = min(stream.wait.max_window, stream.text.left - 1)
    if stream.grammar is not None:
        most = min(most, stream.grammar.most_nodes())
    return max(0, most if cap is None else min(most, cap))


def _priced(stream: Stream, price: Price, allowance: Allowance, may_branch: bool, limit: int) -> list[Likely]:
    tree, grammar = stream.tree, stream.grammar
    if allowance.streams > 1 and grammar is None:  # every row costs the same, so each is judged by itself
        likely = best_nodes(tree, limit, allowance.least)
        if not branches(likely):
            return likely
    cost = price.rows(allowance.streams, grammar.row_us() if grammar is not None else 0.0)
    return priced_window(tree, limit, cost, allowance.rate, price.branch() if may_branch else None)


def _laid_out(tree: TokenTree, likely: list[Likely]) -> Chosen:
    """A window in the engine's order."""
    if not likely:
        return NO_WINDOW
    order, parents = in_tree_order([one.node for one in likely], tree.root)
    return Chosen(order, [n.token for n in order], parents, sum(one.chance for one in likely))
