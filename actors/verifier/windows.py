"""The tokens that the target verifies next: windows are cut out of what the sources have added to the trees."""

from __future__ import annotations

from collections.abc import Mapping

from actors.cost import Known
from actors.tree.window import Candidates, Likely, best_nodes, in_tree_order, likeliest_path, priced_windows
from actors.verifier.results import NO_WINDOW, Chosen
from actors.verifier.sources.source import Allowance
from actors.verifier.streams import Stream


def choose(
    caps: Mapping[Stream, int | None], allowance: Allowance, branches: bool, most: int, least: float = 0.0
) -> list[Chosen]:
    """The windows of the streams' next round. ``caps``: nodes of each at most; ``most``: of all of them together.

    ``branches``: whether a window may hold more than one path. ``least``: tokens that priced windows must gain."""
    taken = dict[Stream, list[Likely]]()
    priced = dict[Stream, Candidates]()
    for stream, cap in caps.items():
        if not stream.tree.root.children:
            continue
        limit = _most(stream, most if cap is None or cap > most else cap)
        if stream.strategy.window == "priced":
            row_us = stream.grammar.row_us() if stream.grammar is not None else 0.0
            priced[stream] = Candidates(stream.tree, limit, row_us * allowance.rate)
        else:
            taken[stream] = _whole(stream, limit)
            most -= len(taken[stream])
    rows = allowance.rows
    if taken:
        rigid = sum(map(len, taken.values()))
        rows = Known(lambda drafts: allowance.rows[rigid + drafts] - allowance.rows[rigid])
    if priced:
        windows = priced_windows([*priced.values()], most, rows, allowance.row_rate, branches, least)
        taken.update(zip(priced, windows, strict=True))
    return [_laid_out(stream, taken[stream]) if stream in taken else NO_WINDOW for stream in caps]


def _most(stream: Stream, most: int) -> int:
    """Nodes that the next window may have, at most ``most``."""
    most = min(most, stream.wait.max_window, stream.text.left - 1)
    if stream.grammar is not None:
        most = min(most, stream.grammar.most_nodes())
    return most if most > 0 else 0


def _whole(stream: Stream, limit: int) -> list[Likely]:
    """A window that its method decides on, whatever its rows cost."""
    tree = stream.tree
    match stream.strategy.window:
        case "root":
            return []
        case "chain":
            return likeliest_path(tree, limit)
        case _ if stream.grammar is not None:
            return best_nodes(tree, limit)
    return [(node, 0.0) for node in tree.nodes()][:limit]


def _laid_out(stream: Stream, likely: list[Likely]) -> Chosen:
    """A window in the engine's order."""
    if not likely:
        return NO_WINDOW
    order, parents = in_tree_order([node for node, _ in likely], stream.tree.root)
    return Chosen(order, [n.token for n in order], parents, sum([chance for _, chance in likely]))
