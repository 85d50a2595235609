"""Wait for drafts, or verify what there is? The rule must pay for itself (DESIGN section 5, point 3).

All times are microseconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from actors.cost import CostModel
from actors.estimate import Estimate
from actors.tree.methods import Strategy
from actors.tree.tree import OWN, Node, TokenTree
from actors.tree.window import Cost

MAX_WAITED_FOR = 8
MAX_LATE = 3  # waits in a row in which no draft came: the drafter is taken for dead until one does
WORTH = 1.1  # a wait must promise this much more: a processor that waits is slower when it goes on
DEFAULT_US = 600.0  # of a message there and back, before anything is known (measured: 0.3 to 1 ms on an idle core)


@dataclass(slots=True)
class DrafterPace:
    """What the verifier believes about one drafter: a draft step, and what a wait takes besides (messages there and
    back, waking up, taking the verdict in: on a processor that was idle a millisecond is soon gone)."""

    steps: CostModel
    message: Estimate = field(default_factory=lambda: Estimate(DEFAULT_US, weight=10, memory=10))

    @property
    def step_us(self) -> float:
        """Of one leaf."""
        return self.steps(1)

    def measured(self, steps: Sequence[tuple[int, float]]) -> None:
        """The drafter has measured its steps anew: (leaves, microseconds)."""
        self.steps = CostModel(dict(steps))

    def time_to(self, drafts: int) -> float:
        """From sending a verdict to holding ``drafts`` new tokens in a row."""
        return self.message.mean + drafts * self.step_us

    def waited(self, time_us: float, drafts: int) -> None:
        """It took so long until ``drafts`` tokens were there (or the wait was given up, and it takes longer)."""
        self.message.add(max(0.0, time_us - drafts * self.step_us))

    def went(self) -> None:
        """Nobody waited, so nothing was learnt: doubt slowly, or a bad moment would be believed for ever."""
        self.message.add(DEFAULT_US, weight=0.03)


@dataclass(frozen=True, slots=True)
class RoundLimits:
    """What the controller allows one round: draft tokens, and microseconds of waiting. None: what the prices say."""

    window: int | None = None
    wait_us: float | None = None


NO_LIMITS = RoundLimits()


def patience(pace: DrafterPace, cost: Cost, agreement: float, value_now: float, longest_us: float | None = None) -> int:
    """How many draft tokens in a row are worth waiting for, ``longest_us`` at most; 0: go now.

    Going now yields ``value_now`` tokens per microsecond. Waiting for m tokens yields
    ``(1 + a + ... + a^m) / (time_to(m) + cost(1 + m))`` with a the chance that a draft token is right.
    """
    best, best_value, expected = 0, value_now, 1.0
    for drafts in range(1, MAX_WAITED_FOR + 1):
        if longest_us is not None and pace.time_to(drafts) > longest_us:
            break
        expected += agreement**drafts
        value = expected / (pace.time_to(drafts) + cost(1 + drafts))
        if value > best_value * WORTH:
            best, best_value = drafts, value
    return best


class Waiting:
    """Whether the next round of one request waits for its drafter, how long it did, and what drafts are worth there."""

    def __init__(self, strategy: Strategy, max_window: int) -> None:
        self.waits, self.max_window = strategy.waits, max_window
        self.until: float | None = None
        self.since = 0.0
        self.drafts: int | None = None  # depth of drafts that ends the wait; None: the end of the drafting phase
        self.phase_complete = False
        self.late = 0
        self.agreement = Estimate(0.6, weight=4)  # how often the drafter's best guess is right ...
        self.unaided = Estimate(0.6, weight=4)  # ... where the verifier has none of its own
        self._guessed = False  # whether it had one, when it decided whether to wait
        self._depth = 0
        self._pace: DrafterPace | None = None  # of the drafter that the wait tells of

    # --- decide ------------------------------------------------------------------------------------------------------

    def cancel(self) -> None:
        """Nobody is waited for."""
        self.until = self.drafts = None

    def worthwhile(self, pace: DrafterPace | None) -> bool:
        """Whether there is anybody to wait for."""
        return pace is not None and self.late < MAX_LATE

    def look(self, tree: TokenTree) -> None:
        """See what the tree holds, before proposers fill it up for the next window."""
        self._guessed = any(child.rank < 0 for child in tree.root.children.values())
        self._depth = self._held(tree)

    def decide(
        self,
        now_us: float,
        pace: DrafterPace,
        cost: Cost,
        value: float,
        bare: bool,
        gamma: int | None,
        limits: RoundLimits,
        alone: bool,
    ) -> None:
        """``value``: tokens per microsecond of going now. ``bare``: the whole window was accepted, and nothing is there
        below it. ``alone``: no other request decodes, so that a wait ends when drafts come and not when a forward does.
        """
        bound: float | None = None
        # As long as a phase may take: a drafter that is late by so much is taken for dead.
        phase_us = 2 * pace.time_to(gamma or self.max_window) + 5000.0
        match self.waits:
            case "phase":
                bound = phase_us
            case "lockstep" if not self.phase_complete:
                bound = phase_us
            case "survivor" if bare:
                bound = pace.time_to(1) + pace.step_us
                self.drafts = 1
            case "priced":
                # Text that copies is easy for a drafter too: what it is worth elsewhere is what it does elsewhere.
                agreement = self.agreement if self._guessed else self.unaided
                more = patience(pace, cost, agreement.mean, value, limits.wait_us)
                if more <= self._depth:
                    pace.went()
                else:
                    bound = pace.time_to(more) + pace.step_us
                    self.drafts = more
        if bound is not None and (limits.wait_us is None or limits.wait_us > 0):
            # In lock-step the phase began long before the wait, which says nothing of messages.
            self._pace = pace if alone and self.waits != "lockstep" else None
            self.since = now_us
            self.until = now_us + min(bound, limits.wait_us or bound)

    def begins(self, now_us: float) -> None:
        """The round waits from now on, for drafts that the verifier itself makes."""
        self.since = now_us

    def end(self, now_us: float, tree: TokenTree) -> float | None:
        """Microseconds that the request waited, if it need not wait any longer; None: it waits on."""
        if self.until is None:
            return 0.0
        arrived = self.phase_complete or (self.drafts is not None and self.drafts <= self._held(tree))
        if not arrived and now_us < self.until:
            return None
        waited = now_us - self.since
        if not arrived:
            self.late += 1
        if self._pace is not None:
            drafts = self.drafts if self.drafts is not None else len(tree.chain(self.max_window))
            self._pace.waited(waited if arrived else 1.5 * waited, drafts)
            self._pace = None
        self.until = None
        return waited

    def _held(self, tree: TokenTree) -> int:
        """Draft tokens in a row that are there already, those counted that would end a wait: a guess of the verifier's
        own counts where it is surer than the drafter's would be; others fill up windows, but nobody waits for them."""
        surest = math.log(max(self.agreement.mean, 1e-6))
        return len(tree.chain(self.max_window, lambda node: node.rank != OWN or tree.total(node) >= surest))

    # --- learn -------------------------------------------------------------------------------------------------------

    def begin_phase(self) -> None:
        """The drafter hears of committed text, and drafts behind it."""
        self.phase_complete = False

    def end_phase(self) -> None:
        """The drafter has said all that it drafts in this phase."""
        self.phase_complete = True

    def arrived(self) -> None:
        """Drafts came that are of use."""
        self.late = 0

    def observe(self, best: Node | None, token: int) -> None:
        """``best``: what the drafter held likeliest, where ``token`` was committed."""
        if best is None:
            return
        right = 1.0 if token == best.token else 0.0
        self.agreement.add(right)
        if not self._guessed:
            self.unaided.add(right)
