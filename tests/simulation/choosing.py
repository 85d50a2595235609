"""A few plans that hold together what many hold."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations

from tests.simulation.plans import Plan
from tests.simulation.world import simulate

Fact = tuple[str, object]


def failed(plans: Iterable[Plan], count: int) -> dict[int, list[str]]:
    """Problems of those that are chosen, by seed."""
    return {plan.seed: found for plan in chosen(plans, count) if (found := simulate(plan).problems)}


def chosen(plans: Iterable[Plan], count: int) -> list[Plan]:
    """So many plans with the most pairs of facts: each next one adds the most to those before it."""
    left = {plan: {*combinations(sorted(facts(plan), key=str), 2)} for plan in plans}
    found: list[Plan] = []
    while len(found) < count:
        best = max(left, key=lambda plan: len(left[plan]))
        found.append(best)
        told = left.pop(best)
        left = {plan: pairs - told for plan, pairs in left.items()}
    return found


def facts(plan: Plan) -> set[Fact]:
    """Who takes part and what happens, without the times and the numbers."""
    found: set[Fact] = {
        ("compute", plan.compute),
        ("slots", plan.slots),
        ("ends", plan.eos_rate > 0),
        ("controller", plan.controller),
        ("mixes", plan.mixes_prompts),
        ("inline", plan.inline_draft is not None),
    }
    found |= {(name, getattr(plan.rates, name) > 0) for name in plan.rates.__struct_fields__}
    for at in plan.verifiers:
        found.add((f"drafters of {at}", len(plan.drafts_at(at))))
    for draft in plan.drafts:
        found |= {("rooms", draft.rooms), ("liar", draft.skill == 0)}
    for stream in plan.streams:
        found |= {("method", stream.method), ("temperature", stream.temperature), ("host", stream.host)}
        found |= {("leaves", stream.leave_at > 0), ("pauses", stream.pause_s)}
    found |= {(trouble.what, trouble.who) for trouble in plan.troubles}
    if learning := plan.learning:
        found |= {("eager", learning.eager), ("unsound", learning.unsound > 0), ("loads for", learning.load_s)}
    return found
