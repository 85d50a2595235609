"""Loads and times the models, and replays the log with every draft and method."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from actors.cost import CostModel
from actors.methods import strategy_for
from actors.records import LoggedRequest
from actors.replay.system import Policy, Times, measured, replay
from actors.settings import retrieves
from actors.verifier.compute import INLINE_US
from duoactor import render
from duoactor.config import resolve_model
from duoactor.doctor.forecast import MESSAGE_US, STEP_US
from duoactor.replay.ablation import named
from duoactor.replay.report import Report, limits, replayed_line, shares
from duoactor.replay.target import timed_target
from protocols.errors import RequestError
from protocols.messages import FailureCode, Method

if TYPE_CHECKING:
    from actors.models import DraftModel


def measure(
    report: Report,
    logged: Sequence[LoggedRequest],
    drafts: Sequence[str],
    policies: Sequence[Policy],
    device: str,
    cpus: Sequence[int],
    show: Callable[[str], None],
    ablate: bool = False,
) -> None:
    """Fills in ``report``. RequestError where a method is none, or cannot be replayed; where drafts make no difference
    to it, it is replayed with the first of them. ``ablate``: see :func:`duoactor.replay.ablation.named`."""
    from actors.engines.drafts.draft import Draft
    from actors.engines.drafts.replay import replay_draft

    for policy in policies:
        if strategy_for(policy.method).proposer in (Method.LOOKAHEAD, Method.REST):
            detail = f"{policy.method} cannot be replayed: it needs more than a log of requests tells"
            raise RequestError(FailureCode.UNSUPPORTED, detail)
    show("timing the target …")
    target = timed_target(report.target, device, cpus)
    report.forward_us, report.lent_us = dict(target.forward_us), dict(target.lent_us or {})
    inline = CostModel(report.forward_us)(8) <= INLINE_US
    alone = target.lent_us or target.forward_us  # of a target that nobody drafts for, or an oracle does
    for name in drafts:
        show(f"loading {render.model_name(name)} …")
        model, steps = _draft(name)
        shown = render.model_name(name)
        report.step_us[shown] = steps
        slower = {width: us + STEP_US for width, us in steps.items()}
        times = Times(report.forward_us, slower, MESSAGE_US / 2, lent=target.lent_us, branch=target.branch)
        if name == drafts[0]:
            plain = measured(logged, model, times, Policy(Method.VANILLA), target.beside)
            report.rounds[Method.VANILLA] = plain
            cost = CostModel({rows: us * plain.forward for rows, us in alone.items()})
            alone_us = cost(1) + plain.code
        oracles = []
        if not retrieves(name):
            show(f"{shown} reads {len(logged)} texts …")
            assert isinstance(model, Draft)
            ranks = [each.tolist() for each in replay_draft(model, logged)]
            report.shares = (*report.shares, *shares(shown, logged, ranks))
            oracles = limits(shown, logged, ranks, cost, plain.code)
        for label, policy in named(policies, ablate):
            strategy = strategy_for(policy.method)
            if name != drafts[0] and not (strategy.drafter and policy.draft):
                continue
            show(f"{label} with {shown} …")
            own = steps if inline and strategy.inline and not retrieves(name) else None
            there = dataclasses.replace(times, inline_step=own)
            asked = dataclasses.replace(policy, branches=target.branches)
            if policy.method != Method.VANILLA:
                forward = plain.forward if own is None else None  # no drafter is at work beside drafts of its own
                report.rounds[label] = measured(logged, model, there, asked, target.beside, forward)
            found = replay(logged, model, dataclasses.replace(there, round=report.rounds[label]), asked)
            report.lines = (*report.lines, replayed_line(shown, label, found, alone_us))
        report.lines = (*report.lines, *oracles)


def _draft(name: str) -> tuple[DraftModel, dict[int, float]]:
    from actors.draft_timing import measure_draft
    from actors.drafter.start import load_draft
    from actors.settings import DrafterSettings

    model = load_draft(DrafterSettings(draft=resolve_model(name, "draft")))
    return model, measure_draft(model)
