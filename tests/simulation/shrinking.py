"""From a plan that fails to the smallest that still does, and how such a plan is written down."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from tests.simulation.plans import Plan, Rates


def written(plan: Plan) -> str:
    return msgspec.json.encode(plan).decode()


def read(text: str) -> Plan:
    return msgspec.json.decode(text, type=Plan)


def shrink(plan: Plan, fails: Callable[[Plan], bool]) -> Plan:
    """Parts are left out as long as it fails without them: a network's faults, a second verifier, a learner, then
    troubles, streams and drafters."""
    replace = msgspec.structs.replace
    while True:
        before = plan
        for name in Rates.__struct_fields__:
            calmer = replace(plan, rates=replace(plan.rates, **{name: 0}))
            if calmer != plan and fails(calmer):
                plan = calmer
        first = plan.verifiers[0]
        if len(plan.verifiers) > 1 and fails(
            alone := replace(plan, verifiers=(first,), drafts=tuple(plan.drafts_at(first)))
        ):
            plan = alone
        if plan.learning is not None and fails(unlearned := replace(plan, learning=None)):
            plan = unlearned
        for name in ("troubles", "streams", "drafts"):
            plan = _with_fewest(plan, name, fails)
        if plan.controller and fails(alone := replace(plan, controller=False)):
            plan = alone
        if plan == before:
            return plan


def _with_fewest(plan: Plan, name: str, fails: Callable[[Plan], bool]) -> Plan:
    """Delta debugging: leave out half of the parts of that name, then quarters, and so on to single ones."""
    parts = getattr(plan, name)
    size = (len(parts) + 1) // 2
    while size:
        start = 0
        while start < len(parts):
            some = msgspec.structs.replace(plan, **{name: (*parts[:start], *parts[start + size :])})
            if fails(some):
                plan, parts = some, getattr(some, name)
            else:
                start += size
        size = size // 2 if size > 1 else 0
    return plan
