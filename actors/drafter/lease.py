"""A drafter's mirror of one request: verdicts and expansions in, leaves to expand and fragments out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from actors.drafter.growth import growth_for
from actors.models import Expansion, Leaf
from actors.tree.calibration import Calibration, TextCalibration
from actors.tree.tree import Node, TokenTree
from protocols.messages import Grow, Method, Open, Resync, Verdict

MAX_FORWARDS = 64  # told in one message
MAX_RANKS = 64  # likewise: a drafter that rested has more to tell than anybody needs


@dataclass(frozen=True, slots=True)
class Commit:
    """What the draft model must do after a verdict: take ``tokens`` home from ``slots``, forget ``dead`` slots."""

    tokens: Sequence[int]
    slots: list[int]
    dead: list[int]


@dataclass(frozen=True, slots=True)
class Limits:
    """What the draft model and the target allow."""

    scratch: int  # expanded nodes that the model holds for one request
    max_context: int  # tokens of the draft model
    vocab_size: int = 0  # ids from here on are unknown to the target; 0: none is
    eos: frozenset[int] = frozenset()


class Lease:
    """One request that the verifier lent to this drafter, under one epoch.

    Its state changes by its methods only. All times are microseconds on the caller's clock.
    """

    def __init__(
        self, opened: Open, handle: int, limits: Limits, calibration: Calibration, generation: int = 0
    ) -> None:
        """``handle``: of a mirror of ``opened.prefix`` at the draft model of that ``generation``."""
        self.rid, self.epoch, self.handle, self.generation = opened.rid, opened.epoch, handle, generation
        self.committed: list[int] = list(opened.prefix)
        self.sampling, self.cache_salt = opened.sampling, opened.cache_salt
        self.limits = limits
        self.stop_tokens = (frozenset() if self.sampling.ignore_eos else limits.eos) | set(self.sampling.stop_token_ids)
        self.end = min(opened.prompt_len + self.sampling.max_tokens, limits.max_context)
        self.plan = opened.plan
        self.calibration = TextCalibration(calibration)
        self.tree = TokenTree(len(self.committed), self.committed[-1])
        self.growth = growth_for(self.plan.method, self.stop_tokens, self.calibration)
        self.growth.begin(self.tree, self.plan)
        self.missing = 0  # committed tokens before the last that the model has not computed
        self.prefilling = False  # they are computed, chunk by chunk, before anything grows
        self.silence = 0  # ticks without a word of the verifier about this lease
        self.used = 0  # scratch slots
        self._round = 0  # of the newest verdict
        self._margin_us = 0.0
        self._expansions: dict[int, Expansion] = {}  # id(node) -> its candidates, to learn from the verdict
        self._forwards: list[tuple[float, float]] = []  # start and length of those not told of yet
        self._looks: list[float] = []  # when the verifier looks at the tree, soonest first
        self._awaited = 0  # drafts in a row that the verifier waits for
        self._told_complete = False
        self._unsent = False
        self._forks: dict[int, int] = {}  # id(node) -> number of sequences that a phase began below it
        self._phase = (0, 0)  # such a number, and the rank of the token that came; (0, 0): told
        self._ranks: list[int] = []  # of decided tokens among their candidates, from 1; told with the next fragment

    # --- growing -----------------------------------------------------------------------------------------------------

    def wanted(self, width: int) -> list[Node]:
        """Leaves for the next forward. The root alone comes first: it computes what the mirror has not seen yet."""
        if self.prefilling:
            return []
        nodes = [n for n in self.growth.wanted(width) if n.position + 1 < self.end]
        for node in nodes:
            if node is self.tree.root:
                return [node]
        if nodes and not self.tree.root.expanded:
            return [self.tree.root]  # the growth goes on below a survivor, but the committed tokens come first
        nodes = [n for n in nodes if n.parent is not None and n.parent.expanded]
        return nodes[: self.limits.scratch - self.used]

    def leaf(self, node: Node) -> Leaf:
        if node is self.tree.root:
            return Leaf(self.handle, node.token, (), is_root=True)
        path: list[int] = []
        step = node.parent
        while step is not None and step is not self.tree.root:
            path.append(step.slot)
            step = step.parent
        return Leaf(self.handle, node.token, tuple(reversed(path)))

    def mirrored(self, missing: int, chunk: int) -> None:
        """The model has yet to compute ``missing`` committed tokens before the last; more than ``chunk`` of them are
        not computed together with a draft step."""
        self.missing = missing
        self.prefilling = missing > chunk

    def expanded(self, node: Node, expansion: Expansion) -> None:
        node.slot = expansion.slot
        if expansion.slot >= 0:
            self.used += 1
        if node is self.tree.root:
            self.missing = 0
        node.expanded = True
        expansion = self._known(expansion)
        self._expansions[id(node)] = expansion
        before = self.tree.size
        self.growth.expanded(node, expansion)
        if (fork := self.growth.forked) is not None:
            self._forks[id(fork)] = self.growth.sequences
        self._unsent |= self.tree.size > before

    def _known(self, expansion: Expansion) -> Expansion:
        """Without candidates that the target's vocabulary does not have: a draft's may be padded further."""
        vocab_size = self.limits.vocab_size
        if not vocab_size or max(expansion.tokens, default=0) < vocab_size:
            return expansion
        known = [i for i, token in enumerate(expansion.tokens) if token < vocab_size]
        tokens = tuple(expansion.tokens[i] for i in known)
        return Expansion(expansion.slot, tokens, tuple(expansion.probs[i] for i in known))

    def spent(self, began_us: float, length_us: float) -> None:
        """A forward was made, which other requests may have been in."""
        if len(self._forwards) == MAX_FORWARDS:
            first, _ = self._forwards.pop()
            length_us, began_us = began_us + length_us - first, first
        self._forwards.append((began_us, length_us))

    # --- the verifier's word -----------------------------------------------------------------------------------------

    def heard(self) -> None:
        """The verifier has this lease in its book."""
        self.silence = 0

    def tick(self) -> int:
        """Some time has passed; for how many ticks nothing was heard."""
        self.silence += 1
        return self.silence

    def verdict(self, verdict: Verdict, now_us: float, margin_us: float = 0.0) -> Commit | Resync | None:
        """Mirror newly committed tokens. Resync when some are missing; None when all were known already.

        ``margin_us`` is how long before the verifier looks at the tree a fragment must leave: the time that the verdict
        took, the time that the fragment takes, and one draft step that may be under way.
        """
        have = len(self.committed)
        self._margin_us = margin_us
        if verdict.plan is not None and verdict.round >= self._round:
            changed = verdict.plan.method != self.plan.method
            self.plan = verdict.plan
            if changed:
                self.growth = growth_for(self.plan.method, self.stop_tokens, self.calibration)
                self.growth.begin(self.tree, self.plan)
        self._round = max(self._round, verdict.round)
        if verdict.base_len > have:
            return Resync(self.rid, self.epoch, have)
        tokens = verdict.tokens[have - verdict.base_len :]
        if not tokens:
            return None
        self._learn(tokens)
        root = self.tree.root
        advance = self.tree.advance(tokens)
        self.committed.extend(tokens)
        slots = [node.slot if node is not None and node.expanded else -1 for node in advance.nodes]
        dead = [n.slot for n in advance.dead if n.slot >= 0]
        self.used -= len(dead) + sum(slot >= 0 for slot in slots)
        for node in (root, *advance.dead, *(n for n in advance.nodes if n is not None and n is not self.tree.root)):
            self._expansions.pop(id(node), None)
            self._forks.pop(id(node), None)
        self.growth.begin(self.tree, self.plan)
        self._told_complete = False
        self._unsent = any(not n.sent for n in self.tree.nodes())
        self._looks = [now_us + verdict.due_us] if verdict.due_us is not None else []
        self._awaited = verdict.awaited or 0
        if verdict.verify_us is not None:
            self._looks.append(now_us + (verdict.due_us or 0.0) + verdict.verify_us)
        return Commit(tokens, slots, dead)

    def _learn(self, tokens: Sequence[int]) -> None:
        """The target's choice after every expanded node on the committed path is now known."""
        node: Node | None = self.tree.root
        for token in tokens:
            if node is None:
                return
            expansion = self._expansions.get(id(node))
            if expansion is not None:
                hit = expansion.tokens.index(token) if token in expansion.tokens else -1
                self.calibration.observe(expansion.probs, hit)
                self._ranks.append(hit + 1)
                if (sequences := self._forks.get(id(node), 0)) > 0:
                    self._phase = (sequences, hit + 1)
            node = node.children.get(token)

    # --- telling -----------------------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        return not self.prefilling and not self.wanted(1)

    def must_flush(self, now_us: float, after_verdict: bool = False) -> bool:
        """A fragment leaves when the phase is over, right after a verdict, as soon as it holds the drafts that the
        verifier waits for, and shortly before the verifier looks."""
        if self.idle:
            return self._unsent or not self._told_complete
        if not self._unsent:
            return False
        if after_verdict and self.plan.method != Method.SPS:
            return True
        if self._has_awaited():
            return True
        return bool(self._looks) and now_us >= self._looks[0] - self._margin_us

    def _has_awaited(self) -> bool:
        return 0 < self._awaited <= len(self.tree.chain(self._awaited))

    def flush(self, now_us: float) -> Grow:
        """What the verifier has not seen, as a self-contained fragment."""
        while self._looks and now_us >= self._looks[0] - self._margin_us:
            self._looks.pop(0)
        fresh = [n for n in self.tree.nodes() if not n.sent]
        fragment = self.tree.fragment(fresh)
        for node in fresh:
            node.sent = True
        self._told_complete = complete = self.idle
        if self._has_awaited():
            self._awaited = 0
        grow = Grow(
            self.rid,
            self.epoch,
            len(self.committed),
            fragment.parents,
            fragment.tokens,
            fragment.logprobs,
            sequences=self.growth.sequences,
            complete=complete,
            phase_sequences=self._phase[0],
            phase_rank=self._phase[1],
            sent_us=now_us,
            forwards=tuple((round(now_us - began), round(length)) for began, length in self._forwards),
            ranks=tuple(self._ranks[-MAX_RANKS:]),
        )
        self._forwards.clear()
        self._ranks.clear()
        self._unsent, self._phase = False, (0, 0)
        return grow
