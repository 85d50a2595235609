"""A few rounds as bars per actor (the paper's figure 4), and as a trace for Perfetto or chrome://tracing.

The verifier's bars are measured: when each forward began and how long it took. Of the drafter the telemetry tells how
long it drafted for each round, not when; its bar is put where drafting must have ended, before the forward that
verifies it begins, and behind its previous bar.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from duoactor.bench.methods import label
from duoactor.bench.results import Round, Run

Actor = Literal["verifier", "drafter"]


@dataclass(frozen=True, slots=True)
class Bar:
    """Times in microseconds from the beginning of the first bar of the answer."""

    actor: Actor
    kind: Literal["verify", "wait", "draft"]
    start_us: float
    length_us: float
    tokens: int  # committed by the round, or draft forwards
    round: Round


def bars(rounds: Sequence[Round]) -> list[Bar]:
    """Every bar of one answer, in the order of time per actor."""
    found: list[Bar] = []
    drafted_until = float("-inf")
    for one in rounds:
        if one.wait_us > 0:
            found.append(Bar("verifier", "wait", one.started_us - one.wait_us, one.wait_us, 0, one))
        found.append(Bar("verifier", "verify", one.started_us, one.forward_us, one.committed, one))
        if one.draft_us > 0:
            start = max(one.started_us - one.draft_us, drafted_until)
            drafted_until = start + one.draft_us
            found.append(Bar("drafter", "draft", start, one.draft_us, one.draft_steps, one))
    origin = min((bar.start_us for bar in found), default=0.0)
    return [Bar(b.actor, b.kind, b.start_us - origin, b.length_us, b.tokens, b.round) for b in found]


def longest_kept(runs: Sequence[Run], method: str, prompt: str = "") -> Run | None:
    """The run with the most rounds among those whose rounds were kept."""
    kept = [run for run in runs if run.method == method and run.rounds and prompt in ("", run.prompt)]
    return max(kept, key=lambda run: len(run.rounds), default=None)


def excerpt(rounds: Sequence[Round], span_us: float, skip: int = 3) -> list[Bar]:
    """The bars of ``span_us`` microseconds behind the first rounds, which are not in their stride yet."""
    all_bars = bars(rounds)
    skipped = rounds[min(skip, len(rounds) - 1)]
    begin = next(bar.start_us for bar in all_bars if bar.kind == "verify" and bar.round is skipped)
    inside = [bar for bar in all_bars if begin - 1 <= bar.start_us < begin + span_us]
    return [Bar(b.actor, b.kind, b.start_us - begin, b.length_us, b.tokens, b.round) for b in inside]


def trace(runs: Sequence[Run]) -> dict[str, Any]:
    """Chrome's trace event format: a process for each answer whose rounds were kept, a thread for each actor."""
    events: list[dict[str, Any]] = []
    threads: dict[Actor, int] = {"verifier": 1, "drafter": 2}
    kept = [run for run in runs if run.rounds]
    for pid, run in enumerate(kept, start=1):
        name = f"{label(run.method)}: {run.prompt}"
        events.append({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}})
        events += [
            {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": actor}}
            for actor, tid in threads.items()
        ]
        for bar in bars(run.rounds):
            one = bar.round
            events.append(
                {
                    "ph": "X",
                    "name": f"verify, {bar.tokens} tokens" if bar.kind == "verify" else bar.kind,
                    "cat": bar.kind,
                    "pid": pid,
                    "tid": threads[bar.actor],
                    "ts": round(bar.start_us, 1),
                    "dur": round(bar.length_us, 1),
                    "args": {
                        "window": one.window,
                        "accepted": one.accepted,
                        "committed": one.committed,
                        "sequences": one.sequences,
                        "gamma": one.gamma,
                        "draft_steps": one.draft_steps,
                    },
                }
            )
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def write_trace(path: Path, runs: Sequence[Run]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.encode(trace(runs)))
