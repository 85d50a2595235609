"""Which tokens the target verifies next: the verifier's proposers are heard, and a window is cut out of the tree."""

from __future__ import annotations

from collections.abc import Sequence

from actors.tree.methods import Strategy
from actors.tree.tree import TokenTree
from actors.tree.window import Cost, Likely, best_nodes, branches, in_tree_order, likeliest_path, priced_window
from actors.verifier.decoding.grammar import Grammar
from actors.verifier.decoding.retrieval import FallbackProposer, SoleProposer, Sources
from actors.verifier.decoding.rounds import Chosen, Committed, Others
from protocols.messages import Sampling


class Windows:
    """Of one request. What its proposers and its grammar know is kept here; the tree is the request's."""

    def __init__(
        self,
        strategy: Strategy,
        sampling: Sampling,
        sources: Sources,
        max_window: int,
        *,
        gamma: int | None = None,
        branch: float | None = 0.0,
        cache_salt: str = "",
        grammar: Grammar | None = None,
    ) -> None:
        """RequestError when the strategy needs a source of guesses that is not among ``sources``.

        ``gamma``: draft length of a method that is nothing but a proposer; None: its own.
        ``branch``: the price of a path beside the first (see :class:`actors.cost.CostModel`); None: there are none.
        ``cache_salt``: see :meth:`Sources.fallbacks`.
        ``grammar``: what the output follows.
        """
        self.strategy, self.branch, self.grammar = strategy, branch, grammar
        self.max_window = min(max_window, strategy.nodes)
        self.sole: SoleProposer | None = None
        self.fallbacks: list[FallbackProposer] = []
        if strategy.window == "proposal":
            self.sole = SoleProposer(sources.proposer(strategy.proposer, self.max_window, gamma))
        elif strategy.proposer:
            self.fallbacks = sources.fallbacks(sampling.temperature > 0, cache_salt)

    def prepare(self, committed: Sequence[int], most: int) -> None:
        """Let the proposers read the next tokens of the prompt, ``most`` of them, while its pieces are computed."""
        for guesser in (*self.fallbacks, *([self.sole] if self.sole is not None else [])):
            guesser.prepare(committed, most)

    def most(self, left: int, cap: int | None) -> int:
        """Nodes of the next window, where the text has room for ``left``."""
        most = self.max_window if self.grammar is None else min(self.max_window, self.grammar.most_nodes())
        return max(0, min(most, left, cap if cap is not None else most))

    def proposed(self, tree: TokenTree, committed: Sequence[int], limit: int) -> Chosen:
        """The window of a method that is nothing but a proposer: what that plants into an empty tree."""
        assert self.sole is not None
        planted = self.sole.plant(tree, committed, limit)
        if self.grammar is None or self.sole.needs_all:
            return _laid_out(tree, [Likely(node, 0.0) for node in planted])
        self.grammar.fit(tree)
        return _laid_out(tree, best_nodes(tree, limit))

    def merge(self, tree: TokenTree, committed: Sequence[int], least: float = 0.0) -> None:
        """What proposers know of the next tokens joins the tree. Guesses that the target follows with less than that
        chance are not worth their rows."""
        for fallback in self.fallbacks:
            fallback.merge(tree, committed, least)

    def guess(self, tree: TokenTree, committed: Sequence[int], least: float = 0.0) -> None:
        """As :meth:`merge`; and what the grammar forbids leaves the tree, what it forces joins it."""
        self.merge(tree, committed, least)
        if self.grammar is not None and self.strategy.drafter:
            self.grammar.fit(tree)

    def cut(self, tree: TokenTree, limit: int, cost: Cost, rate: float, others: Others, drafted: bool) -> Chosen:
        """The window, of what the tree holds. ``rate``: tokens per microsecond that all who decode reach together.
        ``drafted``: whether a draft model works for the request."""
        if not tree.root.children:
            return Chosen([], [], [])
        match self.strategy.window:
            case "chain":
                likely = likeliest_path(tree, limit)
            case "priced":
                likely = self._priced(tree, limit, cost, rate, others)
            case _:
                return Chosen([], [], [])
        return _laid_out(tree, likely, self._own() if drafted else None)

    def _priced(self, tree: TokenTree, limit: int, cost: Cost, rate: float, others: Others) -> list[Likely]:
        if others.streams and self.grammar is None:
            likely = best_nodes(tree, limit, rate * others.row_us)
            if not branches(likely):
                return likely
        price = others.price(cost)
        if self.grammar is not None and self.strategy.drafter:
            row_us, plain = self.grammar.row_us(), price
            price = lambda rows: plain(rows) + rows * row_us  # noqa: E731
        branch_us = None if self.branch is None else self.branch * cost(1)
        return priced_window(tree, limit, price, rate, branch_us)

    def _own(self) -> set[int]:
        """Nodes that the proposers have named."""
        return {id(node) for fallback in self.fallbacks for node in fallback.held.values()}

    def commit(self, chosen: Chosen, sampled: Sequence[int], tokens: Sequence[int]) -> None:
        """The target's word: ``sampled`` behind the root and each node of the window, ``tokens`` committed."""
        if self.sole is not None:
            self.sole.commit(chosen.nodes, sampled, tokens)
        for fallback in self.fallbacks:
            fallback.commit(tokens)

    def retrieved(self, committed: Committed) -> int:
        """Draft tokens of a round that the proposers, or the grammar, had as well."""
        forced = next((i for i, one in enumerate(committed.forced) if not one), len(committed.forced))
        return min(max((forced, *(fallback.matched for fallback in self.fallbacks))), len(committed.tokens) - 1)


def _laid_out(tree: TokenTree, likely: list[Likely], own: set[int] | None = None) -> Chosen:
    """As the engine wants it. ``own``: nodes that no draft model needs to have named; None: none works."""
    if not likely:
        return Chosen([], [], [])
    order, parents = in_tree_order([one.node for one in likely], tree.root)
    drafted = 0 if own is None else sum(node.rank >= 0 and id(node) not in own for node in order)
    return Chosen(order, [n.token for n in order], parents, sum(one.chance for one in likely), drafted)
