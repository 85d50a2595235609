"""A drafter's mirror of one request: verdicts and expansions in, leaves to expand and fragments out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from actors.drafter.growth import growth_for
from actors.models import Expansion, Leaf
from actors.tree.calibration import Calibration, TextCalibration
from actors.tree.tree import Node, TokenTree
from protocols.messages import Grow, Method, Open, Resync, Verdict

INFINITY = float("inf")
MAX_FORWARDS = 64  # told in one message


@dataclass(frozen=True, slots=True)
class Commit:
    """What the draft model must do after a verdict: take ``tokens`` home from ``slots``, forget ``dead`` slots."""

    tokens: Sequence[int]
    slots: list[int]
    dead: list[int]


class Lease:
    """One request that the verifier lent to this drafter, under one epoch.

    ``margin_us`` is how long before the verifier looks at the tree a fragment must leave: the time a message takes
    plus one draft step that may be under way. All times are microseconds on the caller's clock.
    """

    def __init__(
        self,
        opened: Open,
        handle: int,
        eos: frozenset[int],
        calibration: Calibration,
        scratch: int,
        margin_us: float = 300.0,
    ) -> None:
        self.rid, self.epoch, self.handle = opened.rid, opened.epoch, handle
        self.committed: list[int] = list(opened.prefix)
        self.sampling = opened.sampling
        self.stop_tokens = (frozenset() if self.sampling.ignore_eos else eos) | set(self.sampling.stop_token_ids)
        self.limit = opened.prompt_len + self.sampling.max_tokens
        self.plan = opened.plan
        self.calibration = TextCalibration(calibration)
        self.scratch = scratch
        self.used = 0
        self.margin_us = margin_us
        self.tree = TokenTree(len(self.committed), self.committed[-1])
        self.growth = growth_for(self.plan.method, self.stop_tokens, self.calibration)
        self.growth.begin(self.tree, self.plan)
        self.expansions: dict[int, Expansion] = {}  # id(node) -> its candidates, to learn from the verdict
        self.steps = 0
        self.draft_us = 0.0
        self.forwards: list[tuple[float, float]] = []  # start and length of those not told of yet
        self.looks: list[float] = []  # when the verifier looks at the tree, soonest first
        self.awaited = 0  # drafts in a row that the verifier waits for
        self.told_complete = False
        self.unsent = False
        self.forks: dict[int, int] = {}  # id(node) -> number of sequences that a phase began below it
        self.phase = (0, 0)  # such a number, and the rank of the token that came; (0, 0): told

    # --- growing -----------------------------------------------------------------------------------------------------

    def wanted(self, width: int) -> list[Node]:
        """Leaves for the next forward. The root alone comes first: it computes what the mirror has not seen yet."""
        room = self.scratch - self.used
        nodes = [n for n in self.growth.wanted(width) if n.position + 1 < self.limit]
        for node in nodes:
            if node is self.tree.root:
                return [node]
        if nodes and not self.tree.root.expanded:
            return [self.tree.root]  # the growth goes on below a survivor, but the committed tokens come first
        nodes = [n for n in nodes if n.parent is not None and n.parent.expanded]
        return nodes[:room]

    def leaf(self, node: Node) -> Leaf:
        if node is self.tree.root:
            return Leaf(self.handle, node.token, (), is_root=True)
        path: list[int] = []
        step = node.parent
        while step is not None and step is not self.tree.root:
            path.append(step.slot)
            step = step.parent
        return Leaf(self.handle, node.token, tuple(reversed(path)))

    def expanded(self, node: Node, expansion: Expansion) -> None:
        node.slot = expansion.slot
        if expansion.slot >= 0:
            self.used += 1
        node.expanded = True
        self.expansions[id(node)] = expansion
        before = self.tree.size
        self.growth.expanded(node, expansion)
        if (fork := self.growth.forked) is not None:
            self.forks[id(fork)] = self.growth.sequences
        self.unsent |= self.tree.size > before

    def spent(self, draft_us: float, began_us: float, length_us: float) -> None:
        """A forward was made. ``draft_us``: this request's share of it, which others may have been in."""
        self.steps += 1
        self.draft_us += draft_us
        if len(self.forwards) == MAX_FORWARDS:
            first, _ = self.forwards.pop()
            length_us, began_us = began_us + length_us - first, first
        self.forwards.append((began_us, length_us))

    # --- the verifier's word -----------------------------------------------------------------------------------------

    def verdict(self, verdict: Verdict, now_us: float) -> Commit | Resync | None:
        """Mirror newly committed tokens. Resync when some are missing; None when all were known already."""
        have = len(self.committed)
        if verdict.plan is not None:
            changed = verdict.plan.method != self.plan.method
            self.plan = verdict.plan
            if changed:
                self.growth = growth_for(self.plan.method, self.stop_tokens, self.calibration)
                self.growth.begin(self.tree, self.plan)
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
            self.expansions.pop(id(node), None)
            self.forks.pop(id(node), None)
        self.growth.begin(self.tree, self.plan)
        self.told_complete = False
        self.unsent = any(not n.sent for n in self.tree.nodes())
        first = verdict.due_us
        self.looks = [now_us + first] if first > 0 else []
        self.awaited = verdict.awaited
        if verdict.verify_us > 0:
            self.looks.append(now_us + first + verdict.verify_us)
        return Commit(tokens, slots, dead)

    def _learn(self, tokens: Sequence[int]) -> None:
        """The target's choice after every expanded node on the committed path is now known."""
        node: Node | None = self.tree.root
        for token in tokens:
            if node is None:
                return
            expansion = self.expansions.get(id(node))
            if expansion is not None:
                hit = expansion.tokens.index(token) if token in expansion.tokens else -1
                self.calibration.observe(expansion.probs, hit)
                if (sequences := self.forks.get(id(node), 0)) > 0:
                    self.phase = (sequences, hit + 1)
            node = node.children.get(token)

    # --- telling -----------------------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        return not self.wanted(1)

    def must_flush(self, now_us: float, after_verdict: bool = False) -> bool:
        """A fragment leaves when the phase is over, right after a verdict, as soon as it holds the drafts that the
        verifier waits for, and shortly before the verifier looks."""
        if self.idle:
            return self.unsent or not self.told_complete
        if not self.unsent:
            return False
        if after_verdict and self.plan.method != Method.SPS:
            return True
        if self._has_awaited():
            return True
        return bool(self.looks) and now_us >= self.looks[0] - self.margin_us

    def _has_awaited(self) -> bool:
        return 0 < self.awaited <= len(self.tree.chain(self.awaited))

    def flush(self, now_us: float) -> Grow:
        """What the verifier has not seen, as a self-contained fragment."""
        while self.looks and now_us >= self.looks[0] - self.margin_us:
            self.looks.pop(0)
        fresh = [n for n in self.tree.nodes() if not n.sent]
        fragment = self.tree.fragment(fresh)
        for node in fresh:
            node.sent = True
        self.told_complete = complete = self.idle
        if self._has_awaited():
            self.awaited = 0
        grow = Grow(
            self.rid,
            self.epoch,
            len(self.committed),
            fragment.parents,
            fragment.tokens,
            fragment.logprobs,
            draft_us=self.draft_us,
            sequences=self.growth.sequences,
            steps=self.steps,
            complete=complete,
            phase_sequences=self.phase[0],
            phase_rank=self.phase[1],
            sent_us=now_us,
            forwards=tuple((round(now_us - began), round(length)) for began, length in self.forwards),
        )
        self.forwards.clear()
        self.draft_us, self.steps, self.unsent, self.phase = 0.0, 0, False, (0, 0)
        return grow
