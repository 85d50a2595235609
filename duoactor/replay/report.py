"""What a replay found, as ``--json`` prints it, and how it is worked out."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from actors.records import LoggedRequest
from actors.replay.limit import drafted_limit, perfect_limit
from actors.replay.measured import RoundTimes
from actors.replay.system import Replayed
from actors.tree.window import Cost

RANKS = 8
LONGEST = 31  # draft tokens of an oracle's window: actors.models.DEFAULT_NODES
DRAFTED, PERFECT = "limit with these drafts", "limit with perfect drafts"


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """Of places where the target's token is the draft's choice of rank 1, 2 …; None: of all temperatures, or tasks."""

    draft: str
    temperature: float | None
    task: str | None
    places: int
    ranks: tuple[float, ...]


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Of one way to decode. ``rounds`` and what follows from them are 0 where an oracle decodes."""

    requests: int
    tokens: int  # behind each request's first
    decode_ms: float
    speedup: float  # over the target alone
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    forward_ms: float = 0.0
    wait_ms: float = 0.0  # for drafts, steps of the verifier's own draft model among them

    @property
    def tokens_per_second(self) -> float:
        return 1000 * self.tokens / self.decode_ms if self.decode_ms else 0.0

    @property
    def mean_acceptance_length(self) -> float:
        return 1 + self.accepted / self.rounds if self.rounds else 0.0

    @property
    def acceptance_rate(self) -> float:
        return self.accepted / self.drafted if self.drafted else 0.0


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One draft with one method, or an oracle's limit: in all, by temperature, by task."""

    draft: str
    method: str
    all: Figures
    by_temperature: dict[str, Figures]
    by_task: dict[str, Figures]


class Report(msgspec.Struct, kw_only=True):
    log: tuple[str, ...]
    requests: int
    target: str
    forward_us: dict[int, float]  # by rows, measured here
    step_us: dict[str, dict[int, float]]  # of each draft by width, measured here
    lent_us: dict[int, float] = {}  # of forwards with the CPUs that a resting drafter leaves; empty: the same
    rounds: dict[str, RoundTimes] = {}  # by method: what rounds take beyond these times, measured here
    shares: tuple[Share, ...] = ()
    lines: tuple[Line, ...] = ()


Decoded = tuple[LoggedRequest, float, Replayed | None]  # with its milliseconds


def shares(draft: str, logged: Sequence[LoggedRequest], ranks: Sequence[Sequence[int]]) -> list[Share]:
    """All together, then by temperature, then by task."""
    found = []
    for temperature, task in _groups(logged):
        here = [
            rank
            for request, each in zip(logged, ranks, strict=True)
            if temperature in (None, request.sampling.temperature) and task in (None, request.task)
            for rank in each
        ]
        chances = tuple(here.count(wanted) / len(here) for wanted in range(1, RANKS + 1))
        found.append(Share(draft=draft, temperature=temperature, task=task, places=len(here), ranks=chances))
    return found


def line(draft: str, method: str, decoded: Sequence[Decoded], alone_us: float) -> Line:
    """``alone_us``: what the target takes for a token without drafts."""

    temperatures = sorted({one.sampling.temperature for one, _, _ in decoded})
    tasks = sorted({one.task for one, _, _ in decoded if one.task})
    return Line(
        draft=draft,
        method=method,
        all=_figures(decoded, alone_us),
        by_temperature={
            f"{heat:g}": _figures([one for one in decoded if one[0].sampling.temperature == heat], alone_us)
            for heat in temperatures
        },
        by_task={task: _figures([one for one in decoded if one[0].task == task], alone_us) for task in tasks},
    )


def replayed_line(draft: str, method: str, replayed: Sequence[Replayed], alone_us: float) -> Line:
    return line(draft, method, [(one.request, one.decode_ms, one) for one in replayed], alone_us)


def limits(
    draft: str, logged: Sequence[LoggedRequest], ranks: Sequence[Sequence[int]], cost: Cost, overhead_us: float
) -> list[Line]:
    """What policy leaves with these drafts, and what only better ones can give."""
    alone_us = cost(1) + overhead_us
    drafted = [drafted_limit(each, cost, overhead_us, LONGEST) for each in ranks]
    perfect = [perfect_limit(len(request.text), cost, overhead_us, LONGEST) for request in logged]
    return [
        line(draft, name, [(one, us / 1000, None) for one, us in zip(logged, times, strict=True)], alone_us)
        for name, times in ((DRAFTED, drafted), (PERFECT, perfect))
    ]


def _figures(decoded: Sequence[Decoded], alone_us: float) -> Figures:
    tokens = sum(len(request.text) - 1 for request, _, _ in decoded)
    decode_ms = sum(ms for _, ms, _ in decoded)
    stats = [one.stats for _, _, one in decoded if one is not None]
    return Figures(
        requests=len(decoded),
        tokens=tokens,
        decode_ms=decode_ms,
        speedup=alone_us * tokens / 1000 / decode_ms if decode_ms else 1.0,
        rounds=sum(one.rounds for one in stats),
        drafted=sum(one.draft_tokens for one in stats),
        accepted=sum(one.accepted_tokens for one in stats),
        forward_ms=sum(one.forward_ms for one in stats),
        wait_ms=sum(one.wait_ms for one in stats),
    )


def _groups(logged: Sequence[LoggedRequest]) -> list[tuple[float | None, str | None]]:
    """All; each temperature; each task that has a name."""
    temperatures = sorted({one.sampling.temperature for one in logged})
    tasks = dict.fromkeys(one.task for one in logged if one.task)
    return [(None, None), *((t, None) for t in temperatures), *((None, task) for task in tasks)]
