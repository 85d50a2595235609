"""A few rounds as bars per actor (the paper's figure 4).

Every bar is measured: the target's forwards and the waits by the verifier, the draft model's forwards by the drafter,
which tells when each ran; the verifier dates them by its own clock, 0.1 ms late at most between processes of one
machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from duoactor.bench.results import Round, Run

Actor = Literal["verifier", "drafter"]


@dataclass(frozen=True, slots=True)
class Bar:
    """Times in microseconds from the beginning of the answer's first bar."""

    actor: Actor
    kind: Literal["verify", "wait", "draft"]
    start_us: float
    length_us: float
    tokens: int  # committed by the round
    round: Round  # in which it was, or, of drafting, was told of

    @property
    def end_us(self) -> float:
        return self.start_us + self.length_us


def bars(rounds: Sequence[Round]) -> list[Bar]:
    """Every bar of one answer."""
    found: list[Bar] = []
    for one in rounds:
        if one.wait_us > 0:
            found.append(Bar("verifier", "wait", one.waited_from_us, one.wait_us, 0, one))
        found.append(Bar("verifier", "verify", one.started_us, one.forward_us, one.committed, one))
        found += [Bar("drafter", "draft", start, length, 0, one) for start, length in one.draft_forwards]
    origin = min((bar.start_us for bar in found), default=0.0)
    return [replace(bar, start_us=bar.start_us - origin) for bar in found]


def longest_kept(runs: Sequence[Run], method: str, prompt: str = "") -> Run | None:
    """The run with the most rounds among those whose rounds were kept."""
    kept = [run for run in runs if run.method == method and run.rounds and prompt in ("", run.prompt)]
    return max(kept, key=lambda run: len(run.rounds), default=None)


def excerpt(rounds: Sequence[Round], span_us: float, skip: int = 3) -> list[Bar]:
    """What can be seen in ``span_us`` microseconds from the forward of round ``skip`` on: the first rounds are not in
    their stride yet. Bars that begin before or end after are cut."""
    every = bars(rounds)
    skipped = rounds[min(skip, len(rounds) - 1)]
    begin = next(bar.start_us for bar in every if bar.kind == "verify" and bar.round is skipped)
    seen = []
    for bar in every:
        start, end = max(bar.start_us - begin, 0.0), min(bar.end_us - begin, span_us)
        if start < end:
            cut = bar.end_us - begin > span_us  # its tokens came later
            seen.append(replace(bar, start_us=start, length_us=end - start, tokens=0 if cut else bar.tokens))
    return seen
