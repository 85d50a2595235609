"""A stream's plan and limits, by the budgets that the controller commands.

A value that no budget sets is the verifier's: gamma follows from the calibration, windows and waits from the price.
"""

from __future__ import annotations

from actors.methods import Strategy
from actors.verifier.context import Context
from actors.verifier.drafters import DrafterPeer
from actors.verifier.state import UNSET
from actors.verifier.streams import Stream
from protocols.messages import Budget, Generate, Kind, Plan


def fixed_gamma(context: Context, message: Generate) -> int:
    """The draft length that the request or the operator asks for; 0: none."""
    return message.num_speculative_tokens or context.settings.num_speculative_tokens


def may_rest(context: Context, stream: Stream) -> bool:
    """Whether the verifier may decide that the stream does without drafts: not if it asks for a draft length."""
    return stream.strategy.may_rest and not fixed_gamma(context, stream.message)


def kind_of(stream: Stream, drafter: str) -> Kind:
    message = stream.message
    return Kind(stream.method, drafter, message.num_speculative_tokens, message.sequences)


def budget_of(context: Context, stream: Stream, drafter: DrafterPeer | None) -> Budget:
    if drafter is None:
        return UNSET
    return context.state.budgets.of(kind_of(stream, drafter.actor_id), context.clock())


def first_plan(context: Context, strategy: Strategy, message: Generate) -> Plan:
    """The plan of a request that no drafter has yet."""
    return Plan(
        strategy.method, fixed_gamma(context, message) or None, message.sequences or context.settings.sequences or None
    )


def plan_for(context: Context, stream: Stream, drafter: DrafterPeer) -> Plan:
    """The plan of ``drafter`` for a stream."""
    first = first_plan(context, stream.strategy, stream.message)
    budget = budget_of(context, stream, drafter)
    gamma = first.gamma or budget.gamma
    if gamma is None and stream.strategy.window == "chain":
        gamma = context.price.chain(drafter.pace.steps, drafter.pace.message.mean).gamma(stream.method)
    return Plan(stream.method, gamma, first.sequences, budget.sequences)
