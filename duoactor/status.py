"""A :class:`StatusReport` as people read it: tables of the target, what is commanded, the drafters and the requests."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from duoactor.render import duration, model_name, print_table, table
from protocols.messages import Budget, DrafterStatus, StatusReport


def print_status(report: StatusReport) -> None:
    facts = table("", "")
    facts.show_header = False
    facts.columns[1].no_wrap = False
    facts.add_row("target", f"{model_name(report.model_id)} ({report.dtype} on {report.device}, pid {report.pid})")
    facts.add_row("method", report.method)
    if not report.branches:
        facts.add_row("windows", "the likeliest path only: branches would change bits, or the model is recurrent")
    facts.add_row("up for", duration(report.uptime_ms))
    kept = f", {report.kv_cached:,} kept for prompts that begin alike" if report.kv_cached else ""
    facts.add_row("KV pool", f"{report.kv_used:,} of {report.kv_slots:,} tokens in use{kept}")
    if queries := report.counters.get("prefix_cache_queries", 0):
        facts.add_row("prefix cache", f"{report.counters.get('prefix_cache_hits', 0) / queries:.0%} of prompt tokens")
    for label, text in cores_and_rates(report):
        facts.add_row(label, text)
    facts.add_row("controller", report.controller or "none")
    if report.learner:
        facts.add_row("learner", report.learner)
    if report.inline_draft:
        version = f"version {report.inline_version}" if report.inline_version else "its own"
        facts.add_row("drafts itself", f"{model_name(report.inline_draft)} (weights: {version})")
    print_table(facts)
    if report.inline_trouble:
        print(f"verifier: {report.inline_trouble}")
    print()
    if report.budgets:
        print_budgets(report.budgets)
        print()
    print_drafters(report.drafters)
    if report.requests:
        print()
        requests = table("request", "method", "state", ">tokens", "drafter")
        for request in report.requests:
            requests.add_row(request.rid, request.method, request.state, str(request.tokens), request.drafter or "none")
        print_table(requests)
    sys.stdout.flush()


def cores_and_rates(report: StatusReport) -> list[tuple[str, str]]:
    """How the CPUs are used, and at what rates: (label, text) each, as far as the verifier tells it."""
    known = report.expected
    if known is None:
        return []
    found = []
    if known.threads:
        pinned = f", on CPU{'s' * (',' in known.cpus)} {known.cpus}" if known.cpus else ""
        lent = f"; CPU{'s' * (',' in known.spare_cpus)} {known.spare_cpus} too while drafters rest"
        found.append(
            ("cores", f"{_count(known.threads, 'thread')} for the target{pinned}{lent if known.spare_cpus else ''}")
        )
    speed = f"{known.plain_tokens_per_second:.0f} tokens/s without drafts, by measured forwards"
    if known.drafts:
        drafters = {drafter.actor_id for drafter in report.drafters}
        whose = f"of {known.drafts}" if known.drafts in drafters else "between forwards"
        speedup = known.tokens_per_second / max(known.plain_tokens_per_second, 1e-9)
        speed += f"; predicted with drafts {whose}: {known.tokens_per_second:.0f} ({speedup:.2f}x)"
        speed += f", if {known.agreement:.0%} agree"
    return [*found, ("one stream", speed)]


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def print_budgets(budgets: Sequence[Budget]) -> None:
    """What the controller commands for each kind of requests in use lately, and whether it turned out as it said."""
    made = table("speculation", "drafter", ">gamma", ">sequences", ">window", ">wait", ">predicted", ">measured")
    for one in sorted(budgets, key=lambda one: (one.method or "", one.fixed_gamma, one.fixed_sequences)):
        rates = (one.predicted_tokens_per_second, one.measured_tokens_per_second)
        shown = (f"{rate:.1f} tokens/s" if rate else "-" for rate in rates)
        fixed = [f"gamma {one.fixed_gamma}"] * bool(one.fixed_gamma)
        fixed += [f"sequences {one.fixed_sequences}"] * bool(one.fixed_sequences)
        name = f"{one.method or 'every method'}{', ' if fixed else ''}{', '.join(fixed)}{' asked' if fixed else ''}"
        made.add_row(name, one.drafter or "every one", *_commands(one), *shown)
    print_table(made)
    sys.stdout.flush()


def _commands(budget: Budget) -> tuple[str, str, str, str]:
    """Gamma, sequences, window and wait in words; what is unset is the receiver's to choose."""
    sequences, window = (f"to {one}" if one is not None else "unset" for one in (budget.sequences, budget.window))
    wait = "unset" if budget.wait_us is None else f"to {budget.wait_us / 1000:.1f} ms" if budget.wait_us else "never"
    gamma = "unset" if budget.gamma is None else str(budget.gamma)
    return gamma, sequences, window, wait


def print_drafters(drafters: Sequence[DrafterStatus]) -> None:
    if not drafters:
        print("no drafters: the target decodes alone; start one with `duoactor drafter`", flush=True)
        return
    asked = any(one.compared for one in drafters)
    columns = ("drafter", "model", "state", ">leases", ">gains", ">step", ">drafted", ">accepted")
    made = table(*columns, *[">as substitute"] * asked, "host", ">pid", "weights")
    for one in drafters:
        share = f"{one.accepted} ({one.accepted / one.drafted:.0%})" if one.drafted else "0"
        made.add_row(
            one.actor_id,
            model_name(one.model_id),
            one.state,
            str(one.leases),
            _gains(one),
            f"{one.step_us / 1000:.2f} ms",
            str(one.drafted),
            share,
            *[_as_substitute(one)] * asked,
            one.host,
            str(one.pid),
            _weights(one),
        )
    print_table(made, spare=("pid", "host", "weights", "model", "drafted", "leases", "as substitute"))
    for one in drafters:
        if one.trouble:
            print(f"{one.actor_id}: {one.trouble}")
    sys.stdout.flush()


def _gains(drafter: DrafterStatus) -> str:
    """Its measured gain for one of its streams."""
    if not drafter.speedup:
        return "-"
    added = drafter.tokens_per_second * (1 - 1 / drafter.speedup)
    return f"{added:+.1f} tokens/s ({drafter.speedup:.2f}x)"


def _as_substitute(drafter: DrafterStatus) -> str:
    """How often its first choice would have been right in streams of others, and how often theirs was."""
    if not drafter.compared:
        return "-"
    return f"{drafter.right / drafter.compared:.0%} for {drafter.others_right / drafter.compared:.0%}"


def _weights(drafter: DrafterStatus) -> str:
    return f"version {drafter.version} ({drafter.gain:+.3f})" if drafter.version else "its own"
