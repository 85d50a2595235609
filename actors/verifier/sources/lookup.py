"""Retrieval: tokens that followed the same context elsewhere, in the request's own text, in the memory of ended
requests, or in a datastore.

With method auto what is found joins the other drafts in one tree (:class:`Lookup`), so that text that repeats is
copied instead of guessed. With PLD, SAM, REST and Lookahead the proposal is the whole window (:class:`Whole`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from actors.calibration import SUREST, Calibration, TextBias
from actors.datastore import Datastore, Retrieval
from actors.lookahead import Lookahead, LookaheadSession
from actors.models import DEFAULT_NODES
from actors.own_text import LongestMatch, PromptLookup
from actors.proposals import NOTHING, ROOT, Proposal, Proposer, ProposerSession
from actors.tree.tree import OWN, Node, TokenTree
from actors.tree.window import best_cut
from actors.verifier.results import Committed
from actors.verifier.sources.bits import DATASTORE, MEMORY, TEXT, WHOLE
from actors.verifier.sources.memory import Memory, Remembered
from actors.verifier.sources.recycling import Recycled, Recycling
from actors.verifier.sources.source import SLICE, Allowance, Source
from actors.verifier.streams import Stream
from protocols.errors import RequestError
from protocols.messages import FailureCode, Method


@dataclass(slots=True)
class _Reading:
    """A proposer's session over one stream's committed text, which it reads slice by slice."""

    proposer: Proposer
    session: ProposerSession | None = None
    before: Sequence[int] = ()  # what it reads in front of the text
    seen: int = 0  # tokens that the session knows
    proposals: dict[int, Proposal] = field(default_factory=dict)  # by the length of the text that each stands behind
    rows: list[Node] = field(default_factory=list)  # nodes of a proposal that is the whole window
    bias: TextBias = field(default_factory=TextBias)

    def read(self, committed: Sequence[int], most: int) -> ProposerSession | None:
        """Read the next tokens, at most ``most``. Returns the session once it knows the whole text, else None."""
        ahead = len(self.before) - self.seen
        new = self.before[self.seen :][: 8 * most] if ahead > 0 else committed[-ahead : most - ahead]
        if self.session is None:
            self.session = self.proposer.open(new)
        elif new:
            self.session.extend(new)
        self.seen += len(new)
        return self.session if self.knows(len(committed)) else None

    def knows(self, length: int) -> bool:
        """Whether it has read a text of ``length`` tokens to its end."""
        return self.seen == len(self.before) + length

    def follow(self, base: int, tokens: Sequence[int]) -> bool:
        """Read ``tokens`` behind a text of ``base``, as far as it has not yet. Returns whether it knows the whole."""
        known = self.seen - len(self.before) - base
        if self.session is None or known < 0:
            return False  # it reads them when it is asked next
        if known < len(tokens):
            self.session.extend(tokens[known:])
            self.seen += len(tokens) - known
        return True

    def asked(self, committed: Sequence[int], most_nodes: int) -> Proposal:
        """The proposal behind the text; the proposer is asked once a round."""
        length = len(committed)
        if length not in self.proposals:
            session = self.session if self.knows(length) else self.read(committed, SLICE)
            self.proposals[length] = session.propose(most_nodes) if session is not None else NOTHING
        return self.proposals[length]

    def judged(self, length: int) -> dict[int, Proposal]:
        """The proposals that a text of ``length`` has decided on, by where they stood."""
        judged = self.proposals
        self.proposals = {length: judged.pop(length)} if length in judged else {}
        return judged


class _Proposing(Source):
    """A proposer with a session for each stream."""

    def __init__(self, name: str, bit: int, proposer: Callable[[Stream], Proposer]) -> None:
        self.name, self.bit, self._proposer = name, bit, proposer
        self._readings = dict[Stream, _Reading]()

    def prepare(self, stream: Stream, most: int = SLICE) -> None:
        self._reading(stream).read(stream.text.committed, most)

    def end(self, stream: Stream) -> None:
        self._readings.pop(stream, None)

    def _reading(self, stream: Stream) -> _Reading:
        if stream not in self._readings:
            # the request's own prediction of its output is text of its own, too
            before = stream.prediction if self.bit == TEXT else ()
            self._readings[stream] = _Reading(self._proposer(stream), before=before)
        return self._readings[stream]


class Lookup(_Proposing):
    """Retrieved tokens beside other drafts. A proposer's scores are priors: chances are learned from the target."""

    def __init__(self, name: str, bit: int, proposer: Callable[[Stream], Proposer]) -> None:
        super().__init__(name, bit, proposer)
        self._trust = defaultdict[bool, Calibration](Calibration)  # trust in scores, by whether the text is sampled

    def grow(self, streams: Sequence[Stream], allowance: Allowance) -> None:
        for stream in streams:
            reading = self._reading(stream)
            proposal = reading.asked(stream.text.committed, DEFAULT_NODES)
            if proposal.tokens:
                self._plant(stream, reading.bias, proposal, allowance.bound)

    def _plant(self, stream: Stream, bias: TextBias, proposal: Proposal, bound: float) -> None:
        """Add the nodes with a path of at least ``bound``, a log chance."""
        held = {ROOT: stream.tree.root}  # nodes by rows
        for row, chance, _ in self._likely(stream, bias, proposal, bound):
            above = held[proposal.parents[row]]
            held[row] = stream.tree.add(above, proposal.tokens[row], chance, OWN, self.bit)

    def _likely(
        self, stream: Stream, bias: TextBias, proposal: Proposal, bound: float
    ) -> Iterator[tuple[int, float, float]]:
        """The nodes with a path of at least ``bound``: index, log chance, and that of the path."""
        trust, scores, known = self._trust[stream.text.sampled], proposal.scores, dict[float, float]()
        totals = [-math.inf] * len(scores) + [0.0]  # log chances of paths; the last one is ROOT's
        for row, parent in enumerate(proposal.parents):
            if (above := totals[parent]) < bound:
                continue
            if (score := scores[row]) not in known:
                known[score] = math.log(min(SUREST, bias.chance(trust.probability(0, score))))
            totals[row] = above = above + known[score]
            if above >= bound:
                yield row, known[score], above

    def finds(self, stream: Stream, tokens: Sequence[int], allowance: Allowance) -> bool:
        """Whether its likeliest tokens are worth more than their rows and a round of their own."""
        reading, base = self._reading(stream), len(stream.text)
        if not reading.follow(base, tokens) or reading.session is None:
            return True
        proposal = reading.proposals[base + len(tokens)] = reading.session.propose(DEFAULT_NODES)
        likely = self._likely(stream, reading.bias, proposal, allowance.bound)
        chances = sorted([math.exp(total) for _, _, total in likely], reverse=True)
        return best_cut(chances, allowance.rows, allowance.row_rate)[1] > allowance.interruption

    def learn(self, stream: Stream, committed: Committed) -> None:
        reading, base, tokens = self._reading(stream), committed.base_len, committed.tokens
        if not reading.proposals:
            return  # it rests, and reads the tokens when it is asked next
        reading.follow(base, tokens)
        for length, proposal in reading.judged(base + len(tokens)).items():
            if proposal is not NOTHING and length >= base:
                self._teach(self._trust[stream.text.sampled], reading.bias, proposal, tokens[length - base :])

    @staticmethod
    def _teach(trust: Calibration, bias: TextBias, proposal: Proposal, tokens: Sequence[int]) -> None:
        """Each node of the proposal below a right one is an observation: the target's next token decides on it."""
        known = len(tokens)
        depths = [known] * len(proposal.tokens) + [0]  # depths of nodes on the committed path; the last one is ROOT's
        for row, parent in enumerate(proposal.parents):
            depth = depths[parent]
            if depth < known:
                right, score = proposal.tokens[row] == tokens[depth], proposal.scores[row]
                bias.observe(trust.probability(0, score), right)
                trust.decided(0, score, right)
                if right:
                    depths[row] = depth + 1


class Whole(_Proposing):
    """A method that is nothing but a proposer: each proposal is the window of its round."""

    def __init__(self, name: str, proposer: Callable[[Stream], Proposer]) -> None:
        super().__init__(name, WHOLE, proposer)

    def grow(self, streams: Sequence[Stream], allowance: Allowance) -> None:
        for stream in streams:
            reading = self._reading(stream)
            proposal = reading.asked(stream.text.committed, max(0, min(stream.wait.max_window, stream.text.left - 1)))
            tree = TokenTree(len(stream.text), stream.text.committed[-1], stream.tree.vocab_size)
            stream.tree, reading.rows = tree, []
            for token, parent, score in zip(proposal.tokens, proposal.parents, proposal.scores, strict=True):
                above = tree.root if parent == ROOT else reading.rows[parent]
                reading.rows.append(tree.add(above, token, math.log(min(score, 1.0)), OWN, self.bit))

    def learn(self, stream: Stream, committed: Committed) -> None:
        reading = self._reading(stream)
        asked, reading.proposals = bool(reading.proposals), {}
        session, rows = reading.session, reading.rows
        if session is None or not reading.knows(committed.base_len):
            return  # it reads the tokens when it is asked next
        reading.seen += len(committed.tokens)
        behind = dict(zip(committed.chosen.nodes, committed.sampled[1:], strict=False))
        if asked and isinstance(session, LookaheadSession) and behind.keys() >= {*rows}:
            session.ingest([behind[node] for node in rows], committed.tokens)
        else:
            session.extend(committed.tokens)


class Library:
    """The sources of one verifier process, but for drafters and grammars."""

    def __init__(
        self, datastore: Datastore | None = None, memory: Memory | None = None, recycles: bool = False
    ) -> None:
        """``recycles``: whether what the target thought likely is remembered with the texts."""
        self.datastore, self.memory = datastore, memory
        self.sources: list[Source] = [
            Whole("pld", lambda stream: _of_length(PromptLookup(), stream)),
            Whole("pld-earliest", lambda stream: _of_length(PromptLookup(earliest=True), stream)),
            Whole("sam", lambda stream: _of_length(LongestMatch(), stream)),
            Whole("lookahead", lambda stream: fitting(Lookahead(), stream.wait.max_window)),
            Lookup("text", TEXT, lambda stream: LongestMatch()),
        ]
        if datastore is not None:
            whole, beside = Retrieval(datastore), Retrieval(datastore, tokens=8, nodes=16, matches=64)
            self.sources.append(Whole("rest", lambda stream: whole))
            self.sources.append(Lookup("datastore", DATASTORE, lambda stream: beside))
        if memory is not None:
            self.sources.append(Lookup("memory", MEMORY, lambda stream: Remembered(memory, stream.scope)))
            if recycles:
                self.sources.append(Recycling(Recycled(), memory.owner))

    def add(self, source: Source) -> None:
        """A further source. Retrieval comes before draft models."""
        self.sources.append(source)

    def check(self, method: str) -> None:
        """Raise RequestError ("unsupported") if a method needs a datastore and there is none."""
        if method == Method.REST and self.datastore is None:
            raise RequestError(
                FailureCode.UNSUPPORTED,
                "method rest needs a datastore; build one with `duoactor datastore build` and start the verifier with "
                "--datastore DIR",
            )

    def remember(self, text: Sequence[int], scope: str) -> None:
        """Take the text of a request that has ended into the memory. It is read slice by slice, by :meth:`read`."""
        if self.memory is not None:
            self.memory.remember(text, scope)

    def read(self) -> bool:
        """Read the next slice of remembered texts, which takes half a millisecond. Returns whether there was one."""
        return self.memory is not None and self.memory.read()


def _of_length(proposer: PromptLookup, stream: Stream) -> Proposer:
    gamma = stream.loan.plan.gamma
    return replace(proposer, tokens=gamma) if gamma else proposer


def fitting(options: Lookahead, most_nodes: int) -> Lookahead:
    """``options``, or the largest W = G below them with rows that fit into one window."""
    while options.max_rows > most_nodes and options.window > 1:
        size = min(options.window, options.guesses, options.window - 1)
        options = replace(options, window=size, guesses=size)
    return options
