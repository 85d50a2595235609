"""Token recycling (Luo, Wang, Zhu and others, arXiv 2408.08696): what the target thought likely after the same tokens.

Every row of a forward gives a logit for each token of the vocabulary, and decoding uses one of them. A row's likeliest
few are kept here, by the last two tokens of the row's text and by the last one, and are drafts where these tokens come
again. That needs no draft model. Unlike in the paper, the logits are kept too, so that at a temperature above 0
candidates are ranked anew, by the noise of the place where they would stand; and a tree is as large as its chances are
worth, where the paper's has one shape.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from actors.calibration import BRANCHES, MIN_CHANCE, SUREST, Calibration, TextCalibration, candidates
from actors.models import DEFAULT_NODES, RANKED
from actors.noise import gumbel_at, keys
from actors.tree.tree import OWN, ROOT, Node, TokenTree
from actors.tree.window import best_cut
from actors.verifier.results import Committed
from actors.verifier.sources.bits import RECYCLING
from actors.verifier.sources.memory import FACTOR, MASK
from actors.verifier.sources.source import Allowance, Source
from actors.verifier.streams import Stream
from protocols.messages import Sampling

ROWS = 1 << 16  # rows of a table, which then takes 20 MB
ASKING_US, LITTLE = 100.0, 0.1  # time of a question and of what it teaches, and tokens that it may cost
# Share of a row's chances that its tokens have where the last token (False), or the last two (True), come again.
# SmolLM2-135M, 20 chats of 120 tokens: 0.25 and 0.75 greedy, 0.25 and 0.4 at temperature 1. Texts soon correct it.
TRUST = {False: 0.25, True: 0.6}
NO_TOKEN = -1  # before the first token of a text


class Recycled:
    """The likeliest tokens of rows of earlier forwards. The oldest rows are overwritten first."""

    def __init__(self, rows: int = ROWS) -> None:
        self._tokens = np.zeros((rows, RANKED), np.int32)
        self._logits = np.full((rows, RANKED), -math.inf, np.float32)
        self._places = dict[int, int]()  # rows by what they follow
        self._keys: list[tuple[int, int] | None] = [None] * rows
        self._next = 0

    def __len__(self) -> int:
        """Rows that are in use."""
        return sum(keyed is not None for keyed in self._keys)

    def put(self, holder: int, before: int, last: int, tokens: NDArray[np.int64], logits: NDArray[np.float32]) -> None:
        """Keep the likeliest ``tokens`` after ``before, last``, best first. ``holder``: whose text that is."""
        count = len(tokens)
        if not (math.isfinite(logits[0]) and math.isfinite(logits[count - 1])):
            return
        pair, single = _key(holder, before, last), _key(holder, NO_TOKEN, last)
        at = self._places.get(pair)
        if at is None or self._keys[at] != (pair, single):  # only the newest row after a single token is found by it
            at, self._next = self._next, (self._next + 1) % len(self._keys)
            for key in self._keys[at] or ():
                if self._places.get(key) == at:
                    del self._places[key]
            self._keys[at] = pair, single
            self._places[pair] = at
        self._places[single] = at
        self._tokens[at, :count], self._logits[at, :count] = tokens, logits

    def knows(self, holder: int, before: int, last: int) -> bool:
        """Whether a row after ``before, last`` is here."""
        return _key(holder, before, last) in self._places

    def find(self, holder: int, before: int, last: int) -> tuple[bool, list[int], list[float]] | None:
        """The likeliest tokens after ``before, last``, else after ``last`` alone: whether both are followed, these,
        best first, and their logits. None: neither is known."""
        at = self._places.get(_key(holder, before, last))
        if not (both := at is not None):
            at = self._places.get(_key(holder, NO_TOKEN, last))
        return None if at is None else (both, self._tokens[at].tolist(), self._logits[at].tolist())


def _key(holder: int, before: int, last: int) -> int:
    return (((holder ^ (before + 1)) * FACTOR ^ (last + 1)) * FACTOR) & MASK


@dataclass(slots=True)
class _Text:
    """What is known of one stream."""

    holder: int
    trust: dict[bool, TextCalibration]  # by whether two tokens are followed
    # drafts after the text, by its length; the expansion of a node is what was looked up after it
    guesses: dict[int, TokenTree] = field(default_factory=dict)


class Recycling(Source):
    """Drafts that the target itself thought likely. ``holder``: a number of 64 bits for each scope of texts."""

    name, bit, ranks = "recycling", RECYCLING, True

    def __init__(self, table: Recycled, holder: Callable[[str], int]) -> None:
        self._table, self._holder = table, holder
        # trust in a row's chances, by whether texts are sampled and by whether two tokens are followed
        self._trust = {(sampled, both): Calibration() for sampled in (False, True) for both in (False, True)}
        self._texts = dict[Stream, _Text]()

    def able(self, stream: Stream, allowance: Allowance) -> bool:
        """Whether asking costs little of what the streams that wait for it decode meanwhile."""
        return ASKING_US * allowance.rate < LITTLE

    def grow(self, streams: Sequence[Stream], allowance: Allowance) -> None:
        for stream in streams:
            guesses = self._guessed(stream, (), allowance)
            held: dict[Node | None, Node] = {guesses.root: stream.tree.root}
            for node in guesses.nodes():
                held[node] = stream.tree.add(held[node.parent], node.token, node.logprob, OWN, self.bit)

    def finds(self, stream: Stream, tokens: Sequence[int], allowance: Allowance) -> bool:
        """Whether its likeliest tokens are worth more than their rows and a round of their own. What followed the last
        token alone never is."""
        before, last = [NO_TOKEN, *stream.text.committed[-1:], *tokens][-2:]
        if not self._table.knows(self._text(stream).holder, before, last):
            return False
        nodes = self._guessed(stream, tokens, allowance).nodes()
        chances = sorted([math.exp(node.total) for node in nodes], reverse=True)
        return best_cut(chances, allowance.rows, allowance.row_rate)[1] > allowance.interruption

    def learn(self, stream: Stream, committed: Committed) -> None:
        text, base = self._text(stream), committed.base_len
        for length, guesses in text.guesses.items():
            _learn(guesses, committed.tokens[length - base :])
        text.guesses.clear()
        if committed.ranked is not None:
            for at, (before, last) in enumerate(_contexts(stream.text.committed, committed)):
                self._table.put(text.holder, before, last, committed.ranked.tokens[at], committed.ranked.logits[at])

    def end(self, stream: Stream) -> None:
        self._texts.pop(stream, None)

    def _text(self, stream: Stream) -> _Text:
        if (text := self._texts.get(stream)) is None:
            trust = {both: TextCalibration(self._trust[stream.text.sampled, both]) for both in (False, True)}
            text = self._texts[stream] = _Text(self._holder(stream.scope), trust)
        return text

    def _guessed(self, stream: Stream, tokens: Sequence[int], allowance: Allowance) -> TokenTree:
        """The drafts after the stream's text and ``tokens`` that are worth a row."""
        text, length = self._text(stream), len(stream.text) + len(tokens)
        if length not in text.guesses:
            before, last = [NO_TOKEN, *stream.text.committed[-2:], *tokens][-2:]
            text.guesses[length] = self._guess(text, stream.text.sampling, before, last, length, allowance)
        return text.guesses[length]

    def _guess(
        self, text: _Text, sampling: Sampling, before: int, last: int, length: int, allowance: Allowance
    ) -> TokenTree:
        """Best first, until the next node is not worth its row. ``length``: tokens of the text up to ``last``."""
        found, heap, ticket = TokenTree(length, last), list[tuple[float, int, Node, int, float]](), 0
        node, chance, least = found.root, 1.0, _worth(allowance, 0)
        while True:
            known = self._table.find(text.holder, before, node.token) if chance * SUREST > least else None
            if known is not None:
                both, tokens, logits = known
                trust = text.trust[both]
                likely, claims = _ranked(tokens, logits, TRUST[both], sampling, node.position + 1)
                node.expansion = trust, likely, claims
                for _, token, share in candidates(trust, likely, claims, least / chance):
                    ticket += 1
                    heapq.heappush(heap, (-chance * math.exp(share), ticket, node, token, share))
            if not heap or found.size == DEFAULT_NODES or -heap[0][0] < least:
                return found
            negative, _, above, token, share = heapq.heappop(heap)
            node, chance, before = found.add(above, token, share), -negative, above.token
            least = _worth(allowance, found.size)


def _learn(guesses: TokenTree, tokens: Sequence[int]) -> None:
    """The target decided for ``tokens`` after the text."""
    node: Node | None = guesses.root
    for token in tokens:
        if node is None or node.expansion is None:
            return
        trust, likely, chances = node.expansion
        trust.observe(chances, likely.index(token) if token in likely else -1)
        node = node.child(token)


def _worth(allowance: Allowance, nodes: int) -> float:
    """The chance that makes a node beside ``nodes`` others worth a row, or one of the next few rows its share."""
    rows, known = allowance.rows, allowance.rows[nodes] if nodes else 0.0
    return max(MIN_CHANCE, allowance.row_rate * min([(rows[nodes + more] - known) / more for more in (1, 2, 4)]))


def _ranked(
    tokens: list[int], logits: list[float], trust: float, sampling: Sampling, position: int
) -> tuple[Sequence[int], tuple[float, ...]]:
    """The likeliest tokens at ``position``, with the noise that is drawn there, and their chances times ``trust``."""
    if sampling.temperature:
        colder, keyed = 1.0 / sampling.temperature, keys(sampling.seed, position)
        scores = [logit * colder + gumbel_at(keyed, token) for logit, token in zip(logits, tokens, strict=True)]
        logits, tokens = map(list, zip(*sorted(zip(scores, tokens, strict=True), reverse=True), strict=True))
    parts = [math.exp(logit - logits[0]) for logit in logits]
    whole = sum(parts) / trust
    return tokens[:BRANCHES], tuple([part / whole for part in parts[:BRANCHES]])


def _contexts(text: Sequence[int], committed: Committed) -> Iterator[tuple[int, int]]:
    """The last two tokens of the text of each row that the target computed: the root, then the window's nodes, or where
    forwards followed one another what each of them brought."""
    base, chosen = committed.base_len, committed.chosen
    before, root = [NO_TOKEN, *text[max(0, base - 2) : base]][-2:]
    if not chosen.tokens:
        return pairwise([before, root, *committed.tokens[:-1]])
    above = [root if parent == ROOT else chosen.tokens[parent] for parent in chosen.parents]
    return iter([(before, root), *zip(above, chosen.tokens, strict=True)])
