"""Loads and times the models, and replays the log with every draft and method."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from actors.cost import CostModel
from actors.replay.logged import LoggedRequest
from actors.replay.system import Policy, Times, replay
from actors.settings import retrieves
from actors.tree.methods import strategy_for
from actors.verifier.compute import INLINE_US
from duoactor import render
from duoactor.config import resolve_model
from duoactor.doctor.forecast import MESSAGE_US, STEP_US
from duoactor.replay.report import Report, limits, replayed_line, shares
from protocols.errors import RequestError
from protocols.messages import FailureCode, Method

if TYPE_CHECKING:
    from actors.models import DraftModel

# Microseconds of a round outside its forward and its wait, from docs/benchmarks/bundled/report.md ("Time", overhead).
ROUND_US = {Method.VANILLA: 300.0, Method.SPS: 440.0, Method.TREE: 790.0, Method.AUTO: 800.0}
RETRIEVING_US, PARALLEL_US = 510.0, 650.0  # pld; pearl and both kinds of duodecoding


def measure(
    report: Report,
    logged: Sequence[LoggedRequest],
    drafts: Sequence[str],
    policies: Sequence[Policy],
    device: str,
    threads: int,
    show: Callable[[str], None],
) -> None:
    """Fills in ``report``. RequestError where a method is none, or cannot be replayed; where drafts make no difference
    to it, it is replayed with the first of them."""
    from actors.engines.draft import Draft
    from actors.engines.replay import replay_draft

    for policy in policies:
        if strategy_for(policy.method).proposer in (Method.LOOKAHEAD, Method.REST):
            detail = f"{policy.method} cannot be replayed: it needs more than a log of requests tells"
            raise RequestError(FailureCode.UNSUPPORTED, detail)
    show("timing the target …")
    where, branches, report.forward_us = _target(report.target, device, threads)
    cost = CostModel(report.forward_us)
    inline = where == "cpu" and cost(8) <= INLINE_US
    plain_us = ROUND_US[Method.VANILLA]
    alone_us = cost(1) + plain_us
    for name in drafts:
        show(f"loading {render.model_name(name)} …")
        model, steps = _draft(name)
        shown = render.model_name(name)
        report.step_us[shown] = steps
        times = Times(report.forward_us, {w: us + STEP_US for w, us in steps.items()}, MESSAGE_US / 2)
        oracles = []
        if not retrieves(name):
            show(f"{shown} reads {len(logged)} texts …")
            assert isinstance(model, Draft)
            ranks = [each.tolist() for each in replay_draft(model, logged)]
            report.shares = (*report.shares, *shares(shown, logged, ranks))
            oracles = limits(shown, logged, ranks, cost, plain_us)
        for policy in policies:
            if name != drafts[0] and not strategy_for(policy.method).drafter:
                continue
            show(f"{policy.method} with {shown} …")
            own = steps if inline and strategy_for(policy.method).inline and not retrieves(name) else None
            there = dataclasses.replace(times, overhead=_overhead(policy.method), inline_step=own)
            found = replay(logged, model, there, dataclasses.replace(policy, branches=branches))
            report.lines = (*report.lines, replayed_line(shown, policy.method, found, alone_us))
        report.lines = (*report.lines, *oracles)


def _overhead(method: str) -> float:
    strategy = strategy_for(method)
    return ROUND_US.get(strategy.method, PARALLEL_US if strategy.drafter else RETRIEVING_US)


def _target(name: str, device: str, threads: int) -> tuple[str, bool, dict[int, float]]:
    """Its device, whether windows may have branches, and times of forwards."""
    from actors.engines.build import build_target
    from actors.verifier.timing import measure_target

    target, _ = build_target(resolve_model(name, "target"), device, "auto", 0, threads)
    return target.info.device, target.branches, measure_target(target)


def _draft(name: str) -> tuple[DraftModel, dict[int, float]]:
    from actors.draft_timing import measure_draft
    from actors.drafter.start import load_draft
    from actors.settings import DrafterSettings

    model = load_draft(DrafterSettings(draft=resolve_model(name, "draft")))
    return model, measure_draft(model)
