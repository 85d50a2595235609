"""The budgets that the controller commands, and what a stream's plan and limits are by them.

A value that no budget sets is the verifier's: gamma follows from the calibration, windows and waits from the price.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from actors.methods import Strategy
from actors.verifier.loans import NOTHING
from protocols.limits import MAX_BUDGETS
from protocols.messages import Budget, Generate, Kind, Plan

if TYPE_CHECKING:
    from actors.verifier.context import Context
    from actors.verifier.drafters import DrafterPeer
    from actors.verifier.streams import Stream

EVERY = Kind()
UNSET = Budget(0, 0)


class Budgets:
    """The controller's latest budget for each method and drafter, until its time to live is over or the controller is
    gone."""

    def __init__(self) -> None:
        self._said: dict[Kind, tuple[Budget, float]] = {}  # with the seconds at which they end

    def file(self, budget: Budget, now: float) -> None:
        """Take the controller's budget. ``now`` in seconds, as everywhere here. Beyond ``MAX_BUDGETS`` the oldest are
        forgotten."""
        self._said = {kind: one for kind, one in self._said.items() if now < one[1] and kind != budget.kind}
        while len(self._said) >= MAX_BUDGETS:
            del self._said[next(iter(self._said))]
        self._said[budget.kind] = (budget, now + budget.ttl_ms / 1000)

    def forget(self) -> None:
        """The controller is gone, and its budgets with it."""
        self._said.clear()

    def said(self, now: float) -> tuple[Budget, ...]:
        """The controller's budgets that are in force."""
        return tuple(budget for budget, until in self._said.values() if now < until)

    def of(self, kind: Kind, now: float) -> Budget:
        """The budget of a kind of requests."""
        for key in (kind, replace(kind, drafter=""), EVERY):
            budget, until = self._said.get(key, (UNSET, 0.0))
            if now < until:
                return budget
        return UNSET


def fixed_gamma(context: Context, message: Generate) -> int:
    """The draft length that the request or the operator asks for; 0: none."""
    return message.num_speculative_tokens or context.settings.num_speculative_tokens


def may_rest(context: Context, stream: Stream) -> bool:
    """Whether the verifier may decide that the stream does without drafts: not if it asks for a draft length."""
    return stream.strategy.may_rest and not fixed_gamma(context, stream.message)


def kind_of(stream: Stream, drafter: str) -> Kind:
    message = stream.message
    return Kind(stream.method, drafter, message.num_speculative_tokens, message.sequences)


def budget_of(context: Context, stream: Stream, drafter: DrafterPeer) -> Budget:
    return context.state.budgets.of(kind_of(stream, drafter.actor_id), context.clock())


def first_plan(context: Context, strategy: Strategy, message: Generate) -> Plan:
    """The plan of a request that no drafter has yet."""
    return Plan(
        strategy.method, fixed_gamma(context, message) or None, message.sequences or context.settings.sequences or None
    )


def plan_for(context: Context, stream: Stream, drafter: DrafterPeer, drafts: bool = True) -> Plan:
    """The plan of ``drafter`` for a stream. ``drafts``: False: it pauses."""
    if not drafts:
        return NOTHING
    first = first_plan(context, stream.strategy, stream.message)
    budget = budget_of(context, stream, drafter)
    gamma = first.gamma or budget.gamma
    if gamma is None and stream.strategy.window == "chain":
        gamma = context.price.chain(drafter.pace.steps, drafter.pace.message.mean).gamma(stream.method)
    return Plan(stream.method, gamma, first.sequences, budget.sequences)
