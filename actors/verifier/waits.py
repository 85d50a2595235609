"""Wait for drafts, or verify what there is? A wait must bring more tokens than the same time brings without it
(docs/how-it-works.md, "One price").

All times are microseconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from actors.cost import CostModel
from actors.estimate import Estimate
from actors.methods import Strategy
from actors.tree.tree import OWN, Node, TokenTree
from actors.tree.window import Cost

MAX_WAITED_FOR = 8  # draft tokens in a row
MAX_LATE = 3  # after so many waits in a row without a draft, nobody waits for the drafter until one comes
WORTH = 1.1  # a wait must promise this much more, because a processor that has idled is slower afterwards
DEFAULT_US = 600.0  # of a message there and back, before it is measured (0.3 to 1 ms on an idle core)
LATE_US = 5000.0  # that a drafting phase may take beyond twice its expected time


@dataclass(slots=True)
class DrafterPace:
    """How fast one drafter is, as estimated by the verifier: its draft steps, and what a wait takes besides them
    (messages there and back, waking a process, mirroring the verdict)."""

    steps: CostModel
    message: Estimate = field(default_factory=lambda: Estimate(DEFAULT_US, weight=10, memory=10))

    @property
    def step_us(self) -> float:
        """A draft step of one leaf."""
        return self.steps(1)

    def measured(self, steps: Sequence[tuple[int, float]]) -> None:
        """The drafter reports its steps as measured anew: (leaves, microseconds)."""
        self.steps = CostModel(dict(steps))

    def time_to(self, drafts: int) -> float:
        """From sending a verdict to having ``drafts`` new tokens in a row."""
        return self.message.mean + drafts * self.step_us

    def waited(self, time_us: float, drafts: int) -> None:
        """A wait of ``time_us`` brought ``drafts`` tokens in a row; or it was given up, and they take longer."""
        self.message.add(max(0.0, time_us - drafts * self.step_us))

    def went(self) -> None:
        """Nobody waited, so nothing was measured. The estimate drifts back to its default, so that a moment in which
        messages were slow does not prevent waits for ever."""
        self.message.add(DEFAULT_US, weight=0.03)


@dataclass(frozen=True, slots=True)
class RoundLimits:
    """What the controller allows one round: draft tokens, and microseconds of waiting. None: no limit but the price."""

    window: int | None = None
    wait_us: float | None = None


NO_LIMITS = RoundLimits()


def patience(pace: DrafterPace, cost: Cost, agreement: float, value_now: float, longest_us: float | None = None) -> int:
    """How many draft tokens in a row are worth waiting for, for ``longest_us`` at most; 0: go now.

    Going now yields ``value_now`` tokens per microsecond. Waiting for m draft tokens yields
    ``(1 + a + ... + a^m) / (time_to(m) + cost(1 + m))``, where a is ``agreement``: the chance that a draft token is the
    target's.
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
    """One request's waits for its drafter: whether the next round waits, for how long, and what drafts are worth."""

    def __init__(self, strategy: Strategy, max_window: int) -> None:
        self.waits, self.max_window = strategy.waits, max_window
        self.until: float | None = None  # the latest end of the wait; None: nobody waits
        self.since = 0.0  # when the latest wait began
        self.drafts: int | None = None  # draft tokens in a row that end the wait; None: the end of the drafting phase
        self.phase_complete = False  # the drafter has sent all that it drafts in this phase
        self.late = 0  # waits in a row without a draft
        self.agreement = Estimate(0.6, weight=4)  # how often the drafter's likeliest token is the target's ...
        self.unaided = Estimate(0.6, weight=4)  # ... and where the verifier has no guess of its own
        self._guessed = False  # whether it had one when it decided whether to wait
        self._depth = 0  # draft tokens in a row that were there then
        self._pace: DrafterPace | None = None  # that this wait's length is a measurement of

    # --- decide ------------------------------------------------------------------------------------------------------

    def cancel(self) -> None:
        """The next round waits for nobody."""
        self.until = self.drafts = None

    def worthwhile(self, pace: DrafterPace | None) -> bool:
        """Whether there is a drafter, and drafts of it have come lately."""
        return pace is not None and self.late < MAX_LATE

    def look(self, tree: TokenTree) -> None:
        """Note what the tree holds, before proposers fill it up for the next window."""
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
        """Set ``until`` and ``drafts`` if the next round is to wait, by the rule of the strategy.

        ``value``: tokens per microsecond of going now. ``bare``: the whole window was accepted, and no draft is left
        below it. ``alone``: no other request decodes, so that a wait ends when drafts arrive, and not when a forward
        ends.
        """
        bound: float | None = None
        phase_us = 2 * pace.time_to(gamma or self.max_window) + LATE_US  # a drafter that is later may be dead
        match self.waits:
            case "phase":
                bound = phase_us
            case "lockstep" if not self.phase_complete:
                bound = phase_us
            case "survivor" if bare:
                bound = pace.time_to(1) + pace.step_us
                self.drafts = 1
            case "priced":
                # Where text repeats itself, retrieval and the drafter are both right. Where nothing was retrieved, the
                # drafter is only as good as it has been at such places.
                agreement = self.agreement if self._guessed else self.unaided
                more = patience(pace, cost, agreement.mean, value, limits.wait_us)
                if more <= self._depth:
                    pace.went()
                else:
                    bound = pace.time_to(more) + pace.step_us
                    self.drafts = more
        if bound is not None and (limits.wait_us is None or limits.wait_us > 0):
            # in lock-step the phase began long before the wait, whose length measures no message then
            self._pace = pace if alone and self.waits != "lockstep" else None
            self.since = now_us
            self.until = now_us + min(bound, limits.wait_us or bound)

    def begins(self, now_us: float) -> None:
        """From now on the round waits for the verifier's own draft model."""
        self.since = now_us

    def end(self, now_us: float, tree: TokenTree) -> float | None:
        """End the wait if what it was for has arrived, or its time is over. Returns its length (0: there was none);
        None: it goes on."""
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
        """How many draft tokens in a row the tree holds. The verifier's own guesses count where they are surer than the
        drafter's would be: only those can take the place of what a wait would bring."""
        surest = math.log(max(self.agreement.mean, 1e-6))
        return len(tree.chain(self.max_window, lambda node: node.rank != OWN or tree.total(node) >= surest))

    # --- learn -------------------------------------------------------------------------------------------------------

    def begin_phase(self) -> None:
        """The drafter is told of new committed text, and drafts behind it."""
        self.phase_complete = False

    def end_phase(self) -> None:
        """The drafter has sent all that it drafts in this phase."""
        self.phase_complete = True

    def arrived(self) -> None:
        """Drafts have arrived that are not outdated: the drafter is alive."""
        self.late = 0

    def observe(self, best: Node | None, token: int) -> None:
        """``best``: the drafter's likeliest next token (None: it had none), where ``token`` was committed."""
        if best is None:
            return
        right = 1.0 if token == best.token else 0.0
        self.agreement.add(right)
        if not self._guessed:
            self.unaided.add(right)
