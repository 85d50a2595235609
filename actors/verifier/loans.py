"""One stream's drafter: the lease, the messages sent to it, and its reports since the last round.

A lease has an epoch of its own, which fences off what is sent under any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from actors.verifier.drafters import MAX_NAMED, DrafterPeer
from protocols.limits import MAX_FORWARDS, MAX_NODES
from protocols.messages import Drafting, Method, Plan

NOTHING = Plan(Method.VANILLA)  # the plan of a drafter that rests


@dataclass(slots=True)
class Loan:
    plan: Plan
    drafter: DrafterPeer | None = None  # the drafter that has the lease
    names: list[str] = field(default_factory=list)  # actor ids of its holders, the latest last
    epoch: int = 0  # 0: no drafter has it
    sent_plan: Plan | None = None  # plan that the drafter was sent last
    sent_len: int = 0  # committed tokens that the drafter was sent; its phase began after them
    sequences: int = 0  # k of the drafter's phase
    # what was reported since the last round, see ``Drafting``; whatever a drafter sends, the newest are kept
    forwards: list[tuple[int, int]] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Actor id of the drafter; empty: none has it."""
        return self.drafter.actor_id if self.drafter is not None else ""

    @property
    def works(self) -> bool:
        """Whether a drafter has it and does not rest."""
        return self.drafter is not None and self.plan.method != Method.VANILLA

    def begin(self, epoch: int, plan: Plan) -> None:
        """A drafter is offered the lease, and with it the whole text."""
        self.epoch, self.plan, self.sent_plan = epoch, plan, plan

    def taken(self, drafter: DrafterPeer) -> None:
        self.drafter = drafter
        drafter.leases += 1
        self.names = [*(other for other in self.names if other != self.name), self.name][-MAX_NAMED:]

    def end(self) -> None:
        """No drafter has the lease any more: what one still sends is fenced off."""
        if self.drafter is not None:
            self.drafter.leases -= 1
        self.drafter, self.epoch = None, 0

    def synced(self, length: int) -> None:
        """The drafter has been sent the plan and ``length`` tokens."""
        self.sent_plan, self.sent_len = self.plan, length

    def report(self, forwards: Sequence[tuple[int, int]], ranks: Sequence[int] = ()) -> None:
        """Draft forwards, on the verifier's clock, and the ranks of what the target chose."""
        self.forwards = [*self.forwards, *forwards][-MAX_FORWARDS:]
        self.ranks = [*self.ranks, *ranks][-MAX_NODES:]

    def take_report(self, message_us: float) -> Drafting:
        """The reports since the last call."""
        drafting = Drafting(self.sequences, tuple(self.ranks), tuple(self.forwards), message_us)
        self.forwards, self.ranks = [], []
        return drafting
