"""Which tokens the target verifies next: the verifier's proposers add their guesses, then a window is cut out of the
tree."""

from __future__ import annotations

from collections.abc import Sequence

from actors.methods import Strategy
from actors.tree.tree import TokenTree
from actors.tree.window import Cost, Likely, best_nodes, branches, in_tree_order, likeliest_path, priced_window
from actors.verifier.credit import Credit, Source, credited
from actors.verifier.rounds import Chosen, Committed, Others
from actors.verifier.sources.grammar import Grammar
from actors.verifier.sources.retrieval import FallbackProposer, Hits, SoleProposer, Sources
from protocols.messages import Method, Sampling


class Windows:
    """One request's proposers, its grammar and its strategy for windows. The tree itself is the request's."""

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
        """Raises RequestError if the strategy needs a source of guesses that is not among ``sources``.

        ``max_window``: nodes that the target allows. ``gamma``: draft length of a method that is nothing but a
        proposer; None: the proposer's own. ``branch``: what each path beside the first costs, in forwards of one row
        (see :class:`actors.cost.CostModel`); None: the target cannot verify branches, so a window is a single path.
        ``cache_salt``: see :meth:`Sources.fallbacks`. ``grammar``: what the output has to follow.
        """
        self.strategy, self.branch, self.grammar = strategy, branch, grammar
        self.max_window = min(max_window, strategy.nodes)
        self.sole: SoleProposer | None = None  # whose proposal is the whole window
        self.fallbacks: list[FallbackProposer] = []  # whose guesses join the drafter's
        self.hits = Hits()
        self.opinions = sources.opinions[sampling.temperature > 0]  # of their guesses and a draft model's
        self._ask_in = 0  # tokens until the proposers are asked for themselves, where no draft model works
        self._seen = 0  # tokens of a row of forwards that the proposers know, and that are not committed yet
        if strategy.window == "proposal":
            self.sole = SoleProposer(sources.proposer(strategy.proposer, self.max_window, gamma))
        elif strategy.proposer:
            self.fallbacks = sources.fallbacks(sampling.temperature > 0, cache_salt)
            self.hits = Hits(sources.usual_hits[sampling.temperature > 0])

    def next_ask(self) -> int:
        """In how many tokens the proposers are to be asked, where no draft model works."""
        return max(0, self._ask_in)

    def asked(self, tokens: int) -> None:
        """They are asked now, and again in so many tokens."""
        self._ask_in = tokens

    def ask_behind(self, token: int, committed: int, price: Cost, rate: float) -> float | None:
        """A row of forwards without drafts has brought a further token, behind ``committed`` ones and those that were
        asked about. Returns how many tokens more than in the same time without it a window behind it promises, by what
        the likeliest of the proposers says; None: one has not read the text yet. Arguments as of
        :func:`priced_window`."""
        place, self._seen = committed + self._seen, self._seen + 1
        read = True
        for fallback in self.fallbacks:
            fallback.commit((token,))
            read = fallback.ask_behind(token, place) and read
        return self.retrieval_alone(price, rate)[0] if read else None

    def retrieval_alone(self, price: Cost, rate: float) -> tuple[float, int]:
        """The window that the likeliest proposer's answer would be worth without anybody else: how many tokens more it
        promises than would come in the same time without it, and its nodes. Arguments as of :func:`priced_window`."""
        best, nodes, plain_us = 0.0, 0, price(1)
        for fallback in self.fallbacks:
            expected = 0.0
            for count, chance in enumerate(fallback.chances(), 1):
                expected += chance
                gain = expected - rate * (price(1 + count) - plain_us)
                if gain > best:
                    best, nodes = gain, count
        return best, nodes

    def in_vain(self) -> None:
        """The proposers were asked, and nothing of what they said was worth a window."""
        self.hits.add(0.0)

    def prepare(self, committed: Sequence[int], most: int) -> None:
        """Let the proposers read the next tokens of the text, at most ``most``, while its prompt is being computed."""
        for guesser in (*self.fallbacks, *([self.sole] if self.sole is not None else [])):
            guesser.prepare(committed, most)

    def most(self, left: int, cap: int | None) -> int:
        """Nodes that the next window may have. ``left``: tokens that the output may still grow by; ``cap``: None: no
        further limit."""
        most = self.max_window if self.grammar is None else min(self.max_window, self.grammar.most_nodes())
        return max(0, min(most, left, cap if cap is not None else most))

    def proposed(self, tree: TokenTree, committed: Sequence[int], limit: int) -> Chosen:
        """The window of a method that is nothing but a proposer: its proposal, planted into an empty ``tree``."""
        assert self.sole is not None
        planted = self.sole.plant(tree, committed, limit)
        if self.grammar is None or self.sole.needs_all:
            return _laid_out(tree, [Likely(node, 0.0) for node in planted])
        self.grammar.fit(tree)
        return _laid_out(tree, best_nodes(tree, limit))

    def merge(self, tree: TokenTree, committed: Sequence[int], least: float = 0.0) -> None:
        """Add to the tree what the proposers expect next, where the chance of acceptance is at least ``least``, and
        weigh it against what a draft model has named."""
        for fallback in self.fallbacks:
            fallback.merge(tree, committed, least)
        if stale := [node for fallback in self.fallbacks for node in fallback.held.values() if node.stale]:
            for node in stale:
                self.opinions.weigh(node)
            tree.settle(tree.root)

    def guess(self, tree: TokenTree, committed: Sequence[int], least: float = 0.0) -> None:
        """:meth:`merge`, then remove from the tree what the grammar forbids, and add what it forces."""
        self.merge(tree, committed, least)
        if self.grammar is not None and self.strategy.drafter:
            self.grammar.fit(tree)

    def cut(self, tree: TokenTree, limit: int, cost: Cost, rate: float, others: Others, drafted: bool) -> Chosen:
        """The window, cut out of what the tree holds. ``rate``: tokens per microsecond that all requests which decode
        reach together. ``drafted``: whether a draft model works for the request."""
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
        if others.streams and self.grammar is None:  # every row costs the same, so each is judged by itself
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
        """Ids of the nodes that the proposers have named."""
        return {id(node) for fallback in self.fallbacks for node in fallback.held.values()}

    def commit(self, chosen: Chosen, sampled: Sequence[int], tokens: Sequence[int]) -> None:
        """Let the proposers learn from a round: ``sampled`` is the target's token behind the root and behind each node
        of the window, ``tokens`` was committed."""
        if self.sole is not None:
            self.sole.commit(chosen.nodes, sampled, tokens)
        self._ask_in -= len(tokens)
        tokens, self._seen = tokens[self._seen :], 0
        if not tokens:
            return
        asked = [fallback for fallback in self.fallbacks if fallback.proposal is not None]
        for fallback in self.fallbacks:
            fallback.commit(tokens)
        if asked:
            self.hits.add(min(len(chosen.nodes), self.matched))

    @property
    def matched(self) -> int:
        """How many tokens of the latest commit its proposers had proposed, from the first on."""
        return max((fallback.matched for fallback in self.fallbacks), default=0)

    def retrieved(self, committed: Committed) -> int:
        """How many tokens of a round would have been accepted with the proposers and the grammar alone."""
        forced = next((i for i, one in enumerate(committed.forced) if not one), len(committed.forced))
        return min(max(forced, self.matched), len(committed.tokens) - 1)

    def credit(self, committed: Committed) -> Credit:
        """Who had named the draft tokens that a round accepted."""
        matched = {fallback.source: fallback.matched for fallback in self.fallbacks}
        usual = Source.DATASTORE if self.strategy.proposer == Method.REST else Source.TEXT
        return credited(committed, matched, usual)


def _laid_out(tree: TokenTree, likely: list[Likely], own: set[int] | None = None) -> Chosen:
    """A window in the engine's order. ``own``: ids of nodes that proposers have named, so that the others are the draft
    model's; None: no draft model works."""
    if not likely:
        return Chosen([], [], [])
    order, parents = in_tree_order([one.node for one in likely], tree.root)
    drafted = 0 if own is None else sum(node.rank >= 0 and id(node) not in own for node in order)
    return Chosen(order, [n.token for n in order], parents, sum(one.chance for one in likely), drafted)
