"""A :class:`StatusReport` as people read it: tables of the target, what is commanded, the drafters and the requests."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from rich.table import Table

from actors.settings import retrieves
from duoactor.render import clean, duration, folded, model_name, print_table, table
from protocols.messages import (
    DEFAULTED,
    UNCHANGED,
    Budget,
    DrafterStatus,
    Method,
    RequestStatus,
    Sampling,
    StatusReport,
    TargetStatus,
)

GGUF_BITS = {"Q8_0": 8.5, "Q4_K_M": 4.9}  # bits of a weight
WHOLE = ("float32", "bfloat16", "float16")  # formats whose name says how large a weight is
SMALLER = 0.8  # times as large, for another format to be worth its name
SOURCE = "accepted_from_"  # beginning of counters' names
# Columns of drafters, the least important first; the name and the state always stand
SPARE = ("pid", "host", "weights", "model", "drafted", "leases", "step", "accepted", "gains")


def print_status(report: StatusReport) -> None:
    facts = table("", "")
    facts.show_header = False
    facts.columns[1].no_wrap = False
    target, pid = report.target, report.verifier.pid
    facts.add_row("target", f"{model_name(target.model_id)} ({target.dtype} on {target.device}, pid {pid})")
    facts.add_row("method", report.method)
    if said := sampling(target.sampling):
        facts.add_row("sampling", f"{said}: of requests that name none")
    if not target.branches:
        facts.add_row("windows", "the likeliest path only: branches would change bits")
    facts.add_row("up for", duration(report.uptime_ms))
    kept = f", {target.kv_cached:,} kept for prompts that begin alike" if target.kv_cached else ""
    facts.add_row("KV pool", f"{target.kv_used:,} of {target.kv_slots:,} tokens in use{kept}")
    if queries := report.counters.get("prefix_cache_queries", 0):
        facts.add_row("prefix cache", f"{report.counters.get('prefix_cache_hits', 0) / queries:.0%} of prompt tokens")
    for label, text in cores_and_rates(target):
        facts.add_row(label, text)
    facts.add_row("controller", clean(report.controller.actor_id) if report.controller is not None else "none")
    if report.learner is not None:
        facts.add_row("learner", clean(report.learner.actor_id))
    if (inline := report.inline) is not None:
        version = f"version {inline.version}" if inline.version else "its own"
        facts.add_row("drafts itself", f"{model_name(inline.model_id)} (weights: {version})")
        if said := agreement(inline.agreement):
            facts.add_row("", said)
    if sources := tokens_by_source(report.counters):
        facts.add_row("accepted from", sources)
    print_table(facts)
    if said := report.left_out or (inline.trouble if inline is not None else ""):
        print(folded(clean(f"verifier: {said}"), sys.stdout))
    print()
    if report.budgets:
        print_budgets(report.budgets)
        print()
    if report.drafters or inline is None:
        print_drafters(report.drafters, report.method)
    if report.requests:
        print()
        print_table(request_table(report.requests))
    sys.stdout.flush()


def request_table(requests: Sequence[RequestStatus], rates: Mapping[str, float] | None = None) -> Table:
    """``rates``: tokens/s by request id."""
    made = table("request", "method", "state", ">tokens", *([] if rates is None else [">tokens/s"]), "drafter")
    for one in requests:
        rate = [] if rates is None else [f"{rates[one.rid]:.1f}" if one.rid in rates else "-"]
        rid = one.rid if rates is None else one.rid[:12]
        made.add_row(*map(clean, (rid, one.method, one.state)), str(one.tokens), *rate, clean(one.drafter or "none"))
    return made


def sampling(defaults: Sampling) -> str:
    """The sampling that the model's publisher recommends; empty: none."""
    said = (
        name for name in DEFAULTED if defaults != UNCHANGED and getattr(defaults, name) != getattr(Sampling(), name)
    )
    return ", ".join(f"{name} {getattr(defaults, name):g}" for name in said)


def agreement(shares: Sequence[float]) -> str:
    """Agreement of the verifier's own drafts in words; empty: unknown."""
    parts = [f"{share:.0%} at depth {depth}" for depth, share in enumerate(shares, 1)]
    return f"agrees {', '.join(parts)}; published heads reach 60 to 85%" if parts else ""


def tokens_by_source(counters: Mapping[str, int]) -> str:
    """Accepted tokens by source; a token named by two counts for both. Empty: there were none."""
    found = {name.removeprefix(SOURCE): n for name, n in counters.items() if name.startswith(SOURCE) and n}
    return ", ".join(f"{name} {count:,}" for name, count in sorted(found.items(), key=lambda one: -one[1]))


def cores_and_rates(target: TargetStatus) -> list[tuple[str, str]]:
    """Use of the CPUs, and the rate without drafts: (label, text) each, as far as known."""
    found = []
    if target.threads:
        pinned = f", on CPU{'s' * (',' in target.cpus)} {target.cpus}" if target.cpus else ""
        spare = f"; CPU{'s' * (',' in target.spare_cpus)} {target.spare_cpus} too while drafters rest"
        lent = spare if target.spare_cpus else ""
        found.append(("cores", f"{_count(target.threads, 'thread')} for the target{pinned}{lent}"))
    if target.tokens_per_second:
        found.append(("one stream", f"{target.tokens_per_second:.0f} tokens/s without drafts, by the latest forwards"))
    if reads := reading(target):
        found.append(("weights", reads))
    if takes := taking(target):
        found.append(("memory", takes))
    return found


def taking(target: TargetStatus) -> str:
    """A stream's share of the KV pool, and other memory; empty where unknown."""
    each, beside = target.reading.token_bytes, target.reading.stream_bytes
    pool = f" ({each * target.kv_slots / 1e9:.3g} GB at most; --kv-tokens)" if target.kv_slots else ""
    parts = [f"{each / 1e3:,.1f} kB a token{pool}"] * bool(each) + [f"{beside / 1e6:,.1f} MB a stream"] * bool(beside)
    return f"keys and values take {' and '.join(parts)}" if parts else ""


def reading(target: TargetStatus) -> str:
    """Format, bytes a token, share of the memory's bandwidth, and what would be faster; empty where unknown."""
    reads = target.reading
    if not reads.read_bytes:
        return ""
    bits = f" ({reads.bits:.1f} bits a weight)" if reads.bits and target.dtype not in WHOLE else ""
    said = f"{target.dtype}, a token reads {reads.read_bytes / 1e6:,.0f} MB{bits}"
    if reads.gigabytes and target.tokens_per_second:
        share = reads.read_bytes * target.tokens_per_second / 1e9 / reads.gigabytes
        memory = f"memory's {reads.gigabytes:.0f} GB/s"
        said += f", {share:.0%} of {memory}" if share <= 1 else f", more than {memory}: from caches"
    others = {name: bits for name, bits in GGUF_BITS.items() if name.removesuffix("_M") not in target.dtype}
    smaller = [f"{bits / reads.bits:.0%} in {name}" for name, bits in others.items() if bits < SMALLER * reads.bits]
    return said + (f"; a GGUF file would read less: {', '.join(smaller)}" if smaller else "")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def print_budgets(budgets: Sequence[Budget]) -> None:
    """Print the controller's commands for each recent kind of requests, and the rate of one stream."""
    made = table("speculation", "drafter", ">gamma", ">sequences", ">window", ">wait", ">measured")
    for one in sorted(budgets, key=lambda one: one.kind):
        rate, kind = one.measured_tokens_per_second, one.kind
        fixed = [f"gamma {kind.gamma}"] * bool(kind.gamma)
        fixed += [f"sequences {kind.sequences}"] * bool(kind.sequences)
        name = f"{kind.method or 'every method'}{', ' if fixed else ''}{', '.join(fixed)}{' asked' if fixed else ''}"
        names = map(clean, (name, kind.drafter or "every one"))
        made.add_row(*names, *_commands(one), f"{rate:.1f} tokens/s" if rate else "-")
    print_table(made)
    sys.stdout.flush()


def _commands(budget: Budget) -> tuple[str, str, str, str]:
    """Gamma, sequences, window and wait in words; what is unset is the receiver's to choose."""
    sequences, window = (f"to {one}" if one is not None else "unset" for one in (budget.sequences, budget.window))
    wait = "unset" if budget.wait_us is None else f"to {budget.wait_us / 1000:.1f} ms" if budget.wait_us else "never"
    gamma = "unset" if budget.gamma is None else str(budget.gamma)
    return gamma, sequences, window, wait


def print_drafters(drafters: Sequence[DrafterStatus], method: str) -> None:
    """``method``: of requests that name none."""
    if not drafters:
        copies = method == Method.AUTO or retrieves(method)
        left = "drafts are copied from earlier text" if copies else "the target decodes alone"
        print(folded(f"no drafters: {left}; start one with `duoactor drafter`", sys.stdout), flush=True)
        return
    print_table(drafter_table(drafters), SPARE)
    if any(one.speedup for one in drafters):
        said = "gains: a stream's speed over its speed without the drafter, lately; the counts are since a drafter came"
        print(folded(said, sys.stdout))
    for one in drafters:
        if one.state == "paused":
            print(folded(clean(_paused(one)), sys.stdout))
        if one.trouble:
            print(folded(clean(f"{one.actor_id}: {one.trouble}"), sys.stdout))
    sys.stdout.flush()


def drafter_table(drafters: Sequence[DrafterStatus]) -> Table:
    columns = ("drafter", "model", "state", ">leases", ">gains", ">step", ">drafted", ">accepted")
    made = table(*columns, "host", ">pid", "weights")
    for one in drafters:
        share = f"{one.accepted} ({one.accepted / one.drafted:.0%})" if one.drafted else "0"
        made.add_row(
            *map(clean, (one.actor_id, model_name(one.model_id), one.state)),
            str(one.leases),
            _gains(one),
            f"{one.step_us / 1000:.2f} ms",
            str(one.drafted),
            share,
            clean(one.host),
            str(one.pid),
            _weights(one),
        )
    return made


def _gains(drafter: DrafterStatus) -> str:
    """Its measured gain for one of its streams."""
    if not drafter.speedup:
        return "-"
    added = drafter.tokens_per_second * (1 - 1 / drafter.speedup)
    return f"{added:+.1f} tokens/s ({drafter.speedup:.2f}x)"


def _paused(drafter: DrafterStatus) -> str:
    """Why it drafts nothing now, however often it is right, and what would change that."""
    right = f", {drafter.accepted / drafter.drafted:.0%} of them right," if drafter.drafted else ""
    slower = f" ({drafter.speedup:.2f}x the speed without it)" if drafter.speedup else ""
    return (
        f"{drafter.actor_id} is paused: its drafts{right} took more time than they saved{slower}. Streams go on "
        "without it and try it again later; a smaller draft model, or `--draft-dtype int8`, may gain"
    )


def _weights(drafter: DrafterStatus) -> str:
    return f"version {drafter.version} ({drafter.gain:+.3f})" if drafter.version else "its own"
