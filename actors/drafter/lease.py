"""A drafter's side of one request, without sockets or a model: verdicts and expansions in; commits, leaves to expand
and fragments out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from actors.calibration import Calibration, TextCalibration
from actors.drafter.growth import growth_for
from actors.models import Expansion
from actors.tree.tree import NO_SLOT, Node, TokenTree
from protocols.limits import MAX_FORWARDS, MAX_NODES
from protocols.messages import Grow, Method, Open, Resync, Verdict


@dataclass(frozen=True, slots=True)
class Commit:
    """The draft model's work after a verdict: commit ``tokens`` and release the scratch slots ``dead``."""

    tokens: Sequence[int]
    slots: list[int]  # places of each token's K/V; -1: it is not computed
    dead: list[int]  # nodes that the target has not followed


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the draft model and the target."""

    scratch: int  # most expanded nodes of one request
    max_context: int  # the draft model's, in tokens
    vocab_size: int = 0  # the target's: a draft's padded ids from here on are no candidates; 0: not known
    eos: frozenset[int] = frozenset()


class Unsent:
    """Unsent messages of a lease, and their time. All times are microseconds on the caller's clock."""

    def __init__(self) -> None:
        self.nodes = False  # some nodes of the tree
        self.complete = True  # whether the phase is over
        self.awaited = 0  # drafts in a row that the verifier waits for; 0: it does not, or they were sent
        self.forwards: list[tuple[float, float]] = []  # (start, length)
        self.ranks: list[int] = []  # see ``Grow``
        self._looks: list[float] = []  # when the verifier looks at the tree next, soonest first
        self._margin_us = 0.0  # how long before a look a fragment is sent

    def verdict(self, verdict: Verdict, now_us: float, margin_us: float) -> None:
        self._margin_us, self.complete, self.awaited = margin_us, True, verdict.awaited or 0
        self._looks = [now_us + verdict.due_us] if verdict.due_us is not None else []
        if verdict.verify_us is not None:
            self._looks.append(now_us + (verdict.due_us or 0.0) + verdict.verify_us)

    def due(self, now_us: float) -> bool:
        """Whether the verifier is about to look."""
        return bool(self._looks) and now_us >= self._looks[0] - self._margin_us

    def spent(self, began_us: float, length_us: float) -> None:
        """Beyond ``MAX_FORWARDS`` they are reported as one."""
        if len(self.forwards) == MAX_FORWARDS:
            first, _ = self.forwards.pop()
            length_us, began_us = began_us + length_us - first, first
        self.forwards.append((began_us, length_us))

    def sent(self, now_us: float, complete: bool) -> None:
        while self.due(now_us):
            self._looks.pop(0)
        self.forwards.clear()
        self.ranks.clear()
        self.nodes, self.complete = False, not complete


class Lease:
    """One request that the verifier has lent to this drafter, under one epoch. Its state changes by its methods."""

    def __init__(
        self, opened: Open, handle: int, limits: Limits, calibration: Calibration, generation: int = 0
    ) -> None:
        """``handle``: the mirror of ``opened.prefix`` at the draft model. ``generation``: of the model's weights, see
        :class:`actors.generations.Generations`. ``calibration``: of all texts."""
        self.opened, self.handle, self.generation, self.limits = opened, handle, generation, limits
        self.committed: list[int] = list(opened.prefix)
        self.plan = opened.plan
        self.calibration = TextCalibration(calibration)
        self.tree = TokenTree(len(self.committed), self.committed[-1])
        self._grow()
        self.missing = 0  # committed tokens before the last that the model has not computed
        self.prefilling = False  # these are computed chunk by chunk, before the tree grows
        self.silence = 0  # ticks since the verifier's last message about this lease
        self.unsent = Unsent()
        self._round = 0  # number of the newest verdict

    @property
    def rid(self) -> str:
        return self.opened.rid

    @property
    def epoch(self) -> int:
        return self.opened.epoch

    def _grow(self) -> None:
        stop_tokens = self.opened.sampling.ends(self.limits.eos)
        self.growth = growth_for(self.plan.method, stop_tokens, self.calibration)
        self.growth.begin(self.tree, self.plan)

    # --- receive -----------------------------------------------------------------------------------------------------

    def heard(self) -> None:
        """The verifier has shown that it still knows this lease."""
        self.silence = 0

    def tick(self) -> int:
        """Called at regular intervals. Returns for how many of them nothing was heard of this lease."""
        self.silence += 1
        return self.silence

    def verdict(self, verdict: Verdict, now_us: float, margin_us: float = 0.0) -> Commit | Resync | None:
        """Mirror newly committed tokens. Returns what the model must do; a Resync to send if tokens before these are
        missing; None if nothing was new.

        ``margin_us``: how long before the verifier looks at the tree a fragment must be sent. That is the time that the
        verdict took, the time that the fragment takes, and a draft step that may be under way.
        """
        have = len(self.committed)
        if verdict.plan is not None and verdict.round >= self._round:
            changed = verdict.plan.method != self.plan.method
            self.plan = verdict.plan
            if changed:
                self._grow()
        self._round = max(self._round, verdict.round)
        if verdict.base_len > have:
            return Resync(self.rid, self.epoch, have)
        tokens = verdict.tokens[have - verdict.base_len :]
        if not tokens:
            return None
        self.unsent.ranks += self.calibration.learn(self.tree.root, tokens)
        advance = self.tree.advance(tokens)
        self.committed.extend(tokens)
        slots = [node.slot if node is not None and node.expanded else NO_SLOT for node in advance.nodes]
        self.growth.begin(self.tree, self.plan)
        self.unsent.verdict(verdict, now_us, margin_us)
        self.unsent.nodes = any(not n.sent for n in self.tree.nodes())
        return Commit(tokens, slots, [n.slot for n in advance.dead if n.slot >= 0])

    def mirrored(self, missing: int, chunk: int) -> None:
        """The model has yet to compute ``missing`` committed tokens before the last one. More than ``chunk`` of them
        are computed in prefill chunks, fewer in one forward with the root."""
        self.missing = missing
        self.prefilling = missing > chunk

    # --- decide, compute, commit -------------------------------------------------------------------------------------

    def wanted(self, width: int) -> list[Node]:
        """Leaves for the next forward, at most ``width``. The root comes first and alone: expanding it also computes
        the committed tokens that are missing."""
        if self.prefilling:
            return []
        end = min(self.opened.prompt_len + self.opened.sampling.max_tokens, self.limits.max_context)
        nodes = [n for n in self.growth.wanted(width) if n.position + 1 < end]
        root = self.tree.root
        if nodes and (not root.expanded or root in nodes):  # even if the growth goes on below a surviving node
            return [root]
        nodes = [n for n in nodes if n.parent is not None and n.parent.expanded]
        return nodes[: self.limits.scratch - sum(n.expanded for n in self.tree.nodes())]

    def expanded(self, node: Node, expansion: Expansion) -> None:
        """The draft model has expanded ``node``: the growth decides which of its candidates join the tree."""
        node.slot = expansion.slot
        if node is self.tree.root:
            self.missing = 0
        node.expansion = expansion
        before = self.tree.size
        self.growth.expanded(node, expansion)
        self.unsent.nodes |= self.tree.size > before

    # --- tell --------------------------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether nothing is left to compute until the next verdict: the drafting phase is over."""
        return not self.prefilling and not self.wanted(1)

    def must_flush(self, now_us: float, after_verdict: bool = False) -> bool:
        """Whether a fragment is to be sent now: when the phase is over; right after a verdict (not in SpS: its
        verifier waits for the whole chain); as soon as there are the drafts that the verifier waits for; and shortly
        before it looks at the tree."""
        if self.idle:
            return self.unsent.nodes or self.unsent.complete
        if not self.unsent.nodes:
            return False
        if after_verdict and self.plan.method != Method.SPS:
            return True
        return self._has_awaited() or self.unsent.due(now_us)

    def _has_awaited(self) -> bool:
        return 0 < self.unsent.awaited <= len(self.tree.chain(self.unsent.awaited))

    def flush(self, now_us: float) -> Grow:
        """The nodes that the verifier has not been sent, as a self-contained fragment."""
        fresh = [n for n in self.tree.nodes() if not n.sent]
        fragment = self.tree.fragment(fresh)
        for node in fresh:
            node.sent = True
        if self._has_awaited():
            self.unsent.awaited = 0
        grow = Grow(
            self.rid,
            self.epoch,
            len(self.committed),
            fragment.parents,
            fragment.tokens,
            fragment.logprobs,
            sequences=self.growth.sequences,
            complete=self.idle,
            sent_us=now_us,
            forwards=tuple((round(now_us - began), round(length)) for began, length in self.unsent.forwards),
            ranks=tuple(self.unsent.ranks[-MAX_NODES:]),
        )
        self.unsent.sent(now_us, grow.complete)
        return grow
