"""The verifier's own guesses, made by a proposer (:mod:`actors.proposers`) instead of a draft model.

They are used in two ways. With PLD, SAM, REST and Lookahead the proposal is the window (:class:`SoleProposer`). With
method auto it joins the drafter's nodes in one tree (:class:`FallbackProposer`), so that a stream goes on speculating
while its drafter is late or dead, and text that repeats earlier text is copied instead of guessed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from actors.calibration import Calibration, TextBias, log_odds
from actors.estimate import Estimate, Pooled
from actors.models import DEFAULT_NODES
from actors.proposers.datastore import Datastore
from actors.proposers.interface import NOTHING, ROOT, Proposal, Proposer, ProposerSession
from actors.proposers.memory import Memory, Remembered
from actors.proposers.ngram_pool import Lookahead, LookaheadSession
from actors.proposers.prompt_lookup import PromptLookup
from actors.proposers.rest import Retrieval
from actors.proposers.suffix_automaton import SuffixAutomaton
from actors.tree.tree import OWN, Node, TokenTree
from actors.verifier.credit import Source
from actors.verifier.opinions import OpinionPool
from protocols.errors import RequestError
from protocols.messages import FailureCode, Method

FLOOR = 0.03  # a path less likely than this is not worth a row in any window
LOG_FLOOR = math.log(FLOOR)
NEARLY_CERTAIN = math.log(0.75)  # where the tree has a child so likely, costly proposers are not asked
SUREST = math.log(0.99)  # no guess is believed to be certain
LONGEST_REST = 32  # rounds in which a useless costly proposer is not asked
SLICE = 256  # tokens that a proposer reads at once, because others decode: some 0.8 ms, less than a round
FALLBACK_NODES = 16  # of a proposal; the memory's may have more, because long answers recur as a whole


class Hits(Pooled):
    """How many right tokens a question to the proposers of one text gives. It begins with what others' texts gave."""

    USUAL, MEMORY = 200, 16  # questions that are remembered: of all texts, and of one
    BORROWED = 8.0  # questions that others' texts count for
    RAREST, PATIENCE = 4, 4  # times as rare as usual are questions at most: the more, the more of these were in vain

    def __init__(self, usual: Estimate | None = None) -> None:
        super().__init__(usual if usual is not None else Estimate(), self.BORROWED, self.MEMORY)
        self._in_vain = 0  # of the latest questions

    def add(self, sample: float, weight: float = 1.0) -> None:
        super().add(sample, weight)
        self._in_vain = 0 if sample > 0 else self._in_vain + 1

    @property
    def rarer(self) -> int:
        """How many times as rarely as usual proposers are asked that do not pay."""
        return min(self.RAREST, 1 + self._in_vain // self.PATIENCE)

    def pay(self, token_us: float, question_us: float) -> bool:
        """Whether questions save more than they take, where a token takes ``token_us``; as long as nothing is known,
        they do."""
        return not self.known or self.mean * token_us >= question_us


class Sources:
    """What one verifier process can retrieve from, and how far each source is to be trusted."""

    def __init__(self, datastore: Datastore | None = None, memory: Memory | None = None) -> None:
        self.datastore, self.memory = datastore, memory
        self._trust: dict[tuple[Source, bool], Trust] = {}
        # By whether texts are sampled: what to believe where a draft model has spoken, too, and how many right tokens
        # a question to all sources of a text gives.
        self.opinions = {sampled: OpinionPool() for sampled in (False, True)}
        self.usual_hits = {sampled: Estimate(memory=Hits.USUAL) for sampled in (False, True)}

    def proposer(self, name: str, most_nodes: int, gamma: int | None = None) -> Proposer:
        """The proposer of that name, for windows of at most ``most_nodes``. ``gamma``: draft length; None: its own.

        Raises RequestError ("unsupported") if it needs a datastore and there is none.
        """
        match name:
            case Method.PLD | Method.PLD_EARLIEST:
                lookup = PromptLookup(earliest=name == Method.PLD_EARLIEST)
                return replace(lookup, tokens=gamma) if gamma else lookup
            case Method.SAM:
                return SuffixAutomaton(tokens=gamma) if gamma else SuffixAutomaton()
            case Method.LOOKAHEAD:
                return fitting(Lookahead(), most_nodes)
            case Method.REST:
                if self.datastore is None:
                    raise RequestError(
                        FailureCode.UNSUPPORTED,
                        "method rest needs a datastore; build one with `duoactor datastore build` and start the "
                        "verifier with --datastore DIR",
                    )
                return Retrieval(self.datastore)
        raise AssertionError(f"there is no proposer {name}")

    def remember(self, text: Sequence[int], cache_salt: str) -> None:
        """Take the text of a request that has ended into the memory. It is read slice by slice, by :meth:`read`."""
        if self.memory is not None:
            self.memory.remember(text, cache_salt)

    def read(self) -> bool:
        """Read the next slice of remembered texts, which takes half a millisecond. Returns whether there was one."""
        return self.memory is not None and self.memory.read()

    def fallbacks(self, sampled: bool, cache_salt: str = "") -> list[FallbackProposer]:
        """The proposers of one request with method auto. ``sampled``: its temperature is above 0, where matches are
        right less often. ``cache_salt``: only texts with the same salt are found in the memory."""
        kinds: list[tuple[Source, Proposer]] = [(Source.TEXT, SuffixAutomaton(tokens=FALLBACK_NODES))]
        if self.memory is not None:
            kinds.append((Source.MEMORY, Remembered(self.memory, cache_salt)))
        if self.datastore is not None:
            store = Retrieval(self.datastore, tokens=8, nodes=FALLBACK_NODES, matches=64)
            kinds.append((Source.DATASTORE, store))
        return [
            FallbackProposer(proposer, self._trust.setdefault((source, sampled), Trust()), source)
            for source, proposer in kinds
        ]


def fitting(options: Lookahead, most_nodes: int) -> Lookahead:
    """``options``, or the largest W = G below them whose rows fit into one window."""
    while options.max_rows > most_nodes and options.window > 1:
        size = min(options.window, options.guesses, options.window - 1)
        options = replace(options, window=size, guesses=size)
    return options


class _Consulted:
    """A proposer's session over one request's committed text, which it reads slice by slice."""

    def __init__(self, proposer: Proposer) -> None:
        self.proposer = proposer
        self.session: ProposerSession | None = None
        self.seen = 0  # committed tokens that the session knows

    def prepare(self, committed: Sequence[int], most: int = SLICE) -> ProposerSession | None:
        """Read the next tokens, at most ``most``. Returns the session once it knows the whole text, else None."""
        new = committed[self.seen : self.seen + most]
        if self.session is None:
            self.session = self.proposer.open(new)
        elif new:
            self.session.extend(new)
        self.seen += len(new)
        return self.session if self.seen == len(committed) else None


class SoleProposer(_Consulted):
    """A method that is nothing but a proposer: each proposal is the window of its round."""

    def __init__(self, proposer: Proposer) -> None:
        super().__init__(proposer)
        self.rows: list[Node] | None = None  # nodes of the pending proposal, in its order
        self.needs_all = isinstance(proposer, Lookahead)  # it learns from the target's token behind each of its nodes

    def plant(self, tree: TokenTree, committed: Sequence[int], limit: int) -> list[Node]:
        """Add the proposal, at most ``limit`` nodes, to an empty tree. Returns its nodes."""
        self.rows = None
        session = self.prepare(committed)
        if session is None:
            return []
        proposal = session.propose(max(0, limit))
        rows = self.rows = []
        for token, parent, score in zip(proposal.tokens, proposal.parents, proposal.scores, strict=True):
            above = tree.root if parent == ROOT else rows[parent]
            rows.append(tree.add(above, token, math.log(min(score, 1.0)), OWN))
        return rows

    def commit(self, window: Sequence[Node], sampled: Sequence[int], tokens: Sequence[int]) -> None:
        """Let the session learn from a round. ``sampled``: the target's token behind the root and behind each node of
        ``window``; ``tokens``: what was committed."""
        rows, self.rows = self.rows, None
        if self.session is None or rows is None:
            return  # it reads the tokens when it is asked next
        self.seen += len(tokens)
        if isinstance(self.session, LookaheadSession) and len(sampled) == len(window) + 1:
            behind = {id(node): token for node, token in zip(window, sampled[1:], strict=True)}
            self.session.ingest([behind[id(node)] for node in rows], tokens)
        else:
            self.session.extend(tokens)


class Trust:
    """How likely a token of a given score is the target's, for one source; learned by all requests together."""

    REFRESH = 32  # observations for which chances are cached: computing them took more time than the rest of a round

    def __init__(self) -> None:
        self.calibration = Calibration()
        self._known: dict[float, float] = {}
        self._age = 0

    def log_odds(self, score: float) -> float:
        """Of the target's picking a token of that score."""
        known = self._known.get(score)
        if known is None:
            known = self._known[score] = log_odds(self.calibration.probability(0, score))
        return known

    def observe(self, score: float, right: bool) -> None:
        """The target has decided on a token of that score."""
        self.calibration.observe((score,), 0 if right else -1)
        self._age += 1
        if self._age >= self.REFRESH:
            self._age = 0
            self._known.clear()


class FallbackProposer(_Consulted):
    """A proposer whose guesses join the drafter's. Its scores are only priors: chances are learned from the target.

    A ``costly`` one is asked only where nothing in the tree is nearly certain. After n rounds in a row in which it was
    of no use it is not asked for n - 1 rounds.
    """

    def __init__(self, proposer: Proposer, trust: Trust, source: Source = Source.TEXT) -> None:
        super().__init__(proposer)
        self.trust, self.source = trust, source
        self.costly = source is not Source.TEXT
        self.useless = 0  # rounds in a row in which none of its tokens was right
        self.rest = 0  # rounds until it is asked again
        self.proposal: Proposal | None = None  # of this round; None: it has not been asked yet
        # nodes of the proposal that are likely enough: (index, its parent's, log chance, log chance of the whole path)
        self.likely: list[tuple[int, int, float, float]] = []
        self.bound = 0.0  # least log chance of a whole path among those
        self.held: dict[int, Node] = {}  # nodes of the proposal that are in the tree, by index
        self.bias = TextBias()
        self.matched = 0  # how many tokens of the latest commit it had proposed, from the first on

    def merge(self, tree: TokenTree, committed: Sequence[int], least: float = FLOOR) -> None:
        """Add the nodes whose path is accepted with a chance of at least ``least``, and of ``FLOOR``, to the tree. The
        proposer is asked once a round."""
        if self.proposal is None:
            session = self.prepare(committed)
            self.proposal = self._asked(session, tree.root.best_child())
        if not self.proposal.tokens:
            return
        held = self.held
        held.setdefault(ROOT, tree.root)
        bound = math.log(least) if least > FLOOR else LOG_FLOOR
        if bound < self.bound:
            self._weigh(self.proposal, bound)
        elif len(held) > len(self.likely):
            return
        for row, parent, logprob, total in self.likely:
            if total >= bound and row not in held:
                held[row] = tree.add(held[parent], self.proposal.tokens[row], logprob, OWN)

    def ask_behind(self, token: int, place: int) -> bool:
        """Read the token that stands behind ``place`` others, before it is committed, and ask what follows. Returns
        whether it could: it may not have read the text so far."""
        if self.session is None or self.seen != place:
            return False
        self.session.extend((token,))
        self.seen += 1
        self.proposal = self._asked(self.session, None)
        if self.proposal.tokens:
            self._weigh(self.proposal, LOG_FLOOR)
        return True

    def chances(self) -> list[float]:
        """Of the paths to what is likely enough of its answer, highest first."""
        return sorted([math.exp(total) for _, _, _, total in self.likely], reverse=True)

    def _asked(self, session: ProposerSession | None, best: Node | None) -> Proposal:
        """The proposal of ``session``; None: that has not read the whole text. ``best``: the likeliest token that the
        tree has already."""
        self.likely, self.held, self.bound = [], {}, 0.0
        if self.costly and (self.rest > 0 or (best is not None and best.logprob > NEARLY_CERTAIN)):
            self.rest -= self.rest > 0
            return NOTHING
        return session.propose(DEFAULT_NODES) if session is not None else NOTHING

    def _weigh(self, proposal: Proposal, bound: float) -> None:
        """Find the nodes whose path has a log chance of at least ``bound``."""
        self.likely, self.bound = [], bound
        totals = {ROOT: 0.0}
        shift = self.bias.shift
        for row, (parent, score) in enumerate(zip(proposal.parents, proposal.scores, strict=True)):
            above = totals.get(parent)
            if above is None:
                continue
            logprob = min(SUREST, -math.log1p(math.exp(-(self.trust.log_odds(score) + shift))))
            total = above + logprob
            if total >= bound:
                totals[row] = total
                self.likely.append((row, parent, logprob, total))

    def commit(self, tokens: Sequence[int]) -> None:
        """Learn from each node of the proposal whose parent was right: the target's next token then decides on it."""
        proposal, self.proposal = self.proposal, None
        self.matched = 0
        if proposal is not None and proposal is not NOTHING:
            self._learn(proposal, tokens)

    def _learn(self, proposal: Proposal, tokens: Sequence[int]) -> None:
        depths = {ROOT: 0}  # of nodes on the committed path
        for row, parent in enumerate(proposal.parents):
            depth = depths.get(parent, len(tokens))
            if depth < len(tokens):
                right = proposal.tokens[row] == tokens[depth]
                score = proposal.scores[row]
                self.bias.observe(self.trust.log_odds(score), right)
                self.trust.observe(score, right)
                if right:
                    depths[row] = depth + 1
        self.matched = max(depths.values())
        self.useless = 0 if len(depths) > 1 else min(self.useless + 1, LONGEST_REST)
        self.rest = max(0, self.useless - 1)
