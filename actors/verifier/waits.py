"""Wait for drafts, or verify the present tree? A wait must gain more tokens than the same time gains without it
(docs/how-it-works.md, "One price").

Waiting is decided here and nowhere else. All times are microseconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from actors.calibration import USUAL
from actors.cost import DRIFT, Curve
from actors.estimate import STALL, Estimate
from actors.methods import WaitRule
from actors.tree.tree import OWN, Node, TokenTree

MAX_WAITED_FOR = 8  # draft tokens in a row
MAX_LATE = 3  # waits in a row without a draft; then no round waits for the drafter until a draft comes
WORTH = 1.1  # a wait must gain this much, because a processor that has idled is slower afterwards
DEFAULT_US = 600.0  # a message's way there and back, before it is measured (0.3 to 1 ms on an idle core)


@dataclass(slots=True)
class DrafterPace:
    """The pace of one drafter: its draft steps, and what a wait takes besides them, such as messages there and back."""

    steps: Curve
    message: Estimate = field(default_factory=lambda: Estimate(DEFAULT_US, weight=10, memory=10))

    @property
    def step_us(self) -> float:
        """A draft step of one leaf."""
        return self.steps(1)

    def measured(self, steps: Sequence[tuple[int, float]]) -> None:
        """The drafter reports its steps as measured anew: (leaves, microseconds)."""
        self.steps = Curve(dict(steps))

    def time_to(self, drafts: int) -> float:
        """Time from a verdict's sending to ``drafts`` new tokens in a row."""
        return self.message.mean + drafts * self.step_us

    def waited(self, time_us: float, drafts: int) -> None:
        """A wait of ``time_us`` brought ``drafts`` tokens in a row; or it was given up, and they take longer."""
        self.message.add(max(0.0, time_us - drafts * self.step_us))

    def drift(self) -> None:
        """No round waited, so nothing was measured: return slowly to the default, as :meth:`CostModel.drift` does, or
        a moment of slow messages would prevent waits for ever."""
        self.message.add(DEFAULT_US, DRIFT)


@dataclass(frozen=True, slots=True)
class Going:
    """The next round if it began now."""

    now_us: float
    cost: Callable[[int], float]  # a round's time, by the stream's rows
    value: float  # tokens per microsecond
    covered: bool  # the whole last window was accepted
    alone: bool  # no other stream decodes, so that a wait ends when drafts arrive, and not when a forward ends
    gamma: int | None  # the plan's draft length
    longest_us: float | None  # longest wait that the controller allows; None: no limit but the price


def patience(pace: DrafterPace, agreement: float, going: Going) -> int:
    """The number of draft tokens in a row worth a wait; 0: go now.

    Waiting for m draft tokens yields ``(1 + a + ... + a^m) / (time_to(m) + cost(1 + m))``, where a is ``agreement``:
    the chance that a draft token is the target's.
    """
    best, best_value, expected = 0, going.value, 1.0
    for drafts in range(1, MAX_WAITED_FOR + 1):
        if going.longest_us is not None and pace.time_to(drafts) > going.longest_us:
            break
        expected += agreement**drafts
        value = expected / (pace.time_to(drafts) + going.cost(1 + drafts))
        if value > best_value * WORTH:
            best, best_value = drafts, value
    return best


class Wait:
    """One stream's waits for its drafter: whether the next round waits, and for how long."""

    def __init__(self, rule: WaitRule, max_window: int) -> None:
        self.rule, self.max_window = rule, max_window
        self.until: float | None = None  # the latest end of the wait; None: no wait
        self.since = 0.0  # when the latest wait began
        self.drafts: int | None = None  # draft tokens in a row that end the wait; None: the end of the drafting phase
        self.decided_at = 0  # committed tokens for which it was decided
        self.waited_us = 0.0  # wait in the round that comes
        self.covered = True  # the whole last window was accepted
        self.agreement = Estimate(USUAL, weight=4)  # how often the drafter's likeliest token is the target's
        self._phase_over = False  # the drafter has sent all that it drafts in this phase
        self._late = 0  # waits in a row without a draft
        self._pace: DrafterPace | None = None  # the drafter's pace, which this wait measures

    def cancel(self) -> None:
        """The next round does not wait."""
        self.until = self.drafts = None

    def decide(self, pace: DrafterPace, tree: TokenTree, going: Going) -> None:
        """Set ``until`` and ``drafts`` if the next round is to wait. Called once after each commit."""
        self.cancel()
        if self._late >= MAX_LATE or going.longest_us == 0:
            return
        bound: float | None = None
        phase_us = STALL * pace.time_to(going.gamma or self.max_window)  # a drafter that is later may be dead
        match self.rule:
            case "phase":
                bound = phase_us
            case "lockstep" if not self._phase_over:
                bound = phase_us
            case "survivor" if going.covered and not tree.root.children:
                bound = pace.time_to(1) + pace.step_us
                self.drafts = 1
            case "priced" if going.alone:
                more = patience(pace, self.agreement.mean, going)
                if more > self._held(tree):
                    bound = pace.time_to(more) + pace.step_us
                    self.drafts = more
                else:
                    pace.drift()
        if bound is not None:
            # in lock-step the phase began long before the wait, which measures no message then
            self._pace = pace if going.alone and self.rule != "lockstep" else None
            self.since = going.now_us
            self.until = going.now_us + min(bound, going.longest_us or bound)

    def over(self, now_us: float, tree: TokenTree) -> bool:
        """Whether the next round may begin. Ends a wait if its drafts have arrived, or its time is over."""
        if self.until is None:
            return True
        arrived = self._phase_over or (self.drafts is not None and self.drafts <= self._held(tree))
        if not arrived and now_us < self.until:
            return False
        waited = now_us - self.since
        self._late += not arrived
        if self._pace is not None:
            drafts = self.drafts if self.drafts is not None else len(tree.chain(self.max_window))
            self._pace.waited(waited if arrived else 1.5 * waited, drafts)
            self._pace = None
        self.until = None
        self.waited_us += waited
        return True

    def take_waited(self) -> float:
        """The waits of the round that is over."""
        waited, self.waited_us = self.waited_us, 0.0
        return waited

    def _held(self, tree: TokenTree) -> int:
        """The number of draft tokens in a row in the tree. Retrieved ones count where they are surer than the drafter's
        would be: only those can take the place of what a wait would bring."""
        surest = math.log(max(self.agreement.mean, 1e-6))
        return len(tree.chain(self.max_window, lambda node: node.rank != OWN or tree.total(node) >= surest))

    def begin_phase(self) -> None:
        """The drafter has new committed text, and drafts after it."""
        self._phase_over = False

    def end_phase(self) -> None:
        """The drafter has sent all that it drafts in this phase."""
        self._phase_over = True

    def arrived(self) -> None:
        """Drafts have arrived that are not outdated: the drafter is alive."""
        self._late = 0

    def observe(self, best: Node | None, token: int) -> None:
        """``best``: the drafter's likeliest next token (None: it had none), where ``token`` was committed."""
        if best is not None:
            self.agreement.add(float(token == best.token))
