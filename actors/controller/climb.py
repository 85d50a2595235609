"""The controller's policy: round statistics in, budgets out. No sockets, no clock.

A setting starts where calibration and the measured acceptance rate put it, in closed form. From there it climbs: a
neighbouring setting is tried in turns with the one in force, and takes its place if its goodput, tokens per second, is
measurably higher. What is learnt is kept as a factor on the start, so that a change of costs moves the setting at once.
A round counts for the setting that it names itself, because a command takes a while until rounds are drafted by it; the
streams of one round, which share its time, are one sample.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from actors.backoff import Backoff
from actors.calibration import USUAL
from actors.chains import TREES, Costs
from actors.cost import UNKNOWN, Curve
from actors.draft_timing import WIDTHS
from actors.estimate import Estimate
from actors.methods import STRATEGIES
from actors.models import DEFAULT_NODES
from protocols.limits import MAX_BUDGETS, Mean, within
from protocols.messages import Budget, DraftStats, Kind, Method, RoundStats

TTL_MS = 5000
FIRST = 128  # rounds before the first trial, in which the acceptance rate is learnt
BLOCK = 32  # rounds of one side of a trial in turn
UNDER_WAY = 2  # rounds that name a new setting, but verify what was drafted before it came
LATEST = 4 * BLOCK  # rounds in which a setting must come into force: a user may have fixed another
MAX_BLOCKS = 12  # blocks of a trial; what has not won by then differs by less than is worth knowing
WON, LOST = 2.0, 1.0  # standard errors by which a trial is decided: the start is good, a move must be sure
STEP = math.sqrt(2)  # factor between neighbouring settings
MOST = {"gamma": DEFAULT_NODES, "sequences": max(WIDTHS)}
# Start of the climb of sequences: a cap on those of the theta rule; in a tree the leaves of a draft step
SEQUENCES: dict[str, int] = {Method.DUODECODING: 8, Method.DUODECODING_LOCKSTEP: 8, Method.TREE: 4, Method.AUTO: 4}


class Measured:
    """Times and tokens of streams' rounds of one load."""

    def __init__(self) -> None:
        self.rounds = 0  # rounds of all streams together
        self.right = Estimate(USUAL, weight=BLOCK, memory=FIRST)  # share of draft tokens that are right
        self.wall, self.tokens, self.beside, self.streams = (Estimate() for _ in range(4))
        self.slowdown, self.message = 1.0, 0.0

    def observe(self, stats: RoundStats) -> None:
        self.rounds += 1
        self.slowdown, self.message = stats.slowdown, stats.drafting.message_us
        part = 1 / max(1, stats.streams)  # streams share the verifier's round, which is one sample
        self.streams.add(stats.streams, part)
        self.wall.add(stats.wall_us, part)
        self.tokens.add(stats.committed, part)
        self.beside.add(min(max(0.0, stats.wall_us - stats.forward_us - stats.wait_us), stats.forward_us), part)
        for rank in stats.drafting.ranks or (1,) * stats.accepted + (0,) * (stats.accepted < stats.window):
            self.right.add(float(rank == 1), part)

    def costs(self, forward: Curve, step: Curve) -> Costs:
        chance = min(0.99, max(0.01, self.right.mean))
        streams = max(1, round(self.streams.mean))
        return Costs(forward, step, self.slowdown, self.beside.mean, self.message, streams, chance)


class Comparison:
    """A neighbouring setting in turns with the one in force, in blocks of rounds."""

    def __init__(self, name: str, known: int, way: int, rounds: int, usual_us: float) -> None:
        """``way``: direction of the tried setting from the known one. ``usual_us``: time of a round."""
        tried = _scaled(name, known, way)
        self.settings = known, tried if tried != known else max(1, known + way)
        self.name, self.usual_us = name, usual_us
        self.sides = Estimate(memory=math.inf), Estimate(memory=math.inf)  # tokens of a usual round's time, by either
        self.blocks = 0
        self.booked: list[tuple[float, float]] = []  # tokens and times of the round's streams that count
        self._turn_to(True, rounds)

    def _turn_to(self, tried: bool, rounds: int) -> None:
        self.tried, self.setting = tried, self.settings[tried]  # the side, which is commanded now
        self.in_force, self.until = False, rounds + LATEST  # when the side ends

    def book(self, stats: RoundStats, rounds: int) -> None:
        assert stats.plan is not None
        if (stats.plan.gamma if self.name == "gamma" else stats.plan.max_sequences) == self.setting:
            if not self.in_force:
                self.in_force, self.until = True, rounds + BLOCK
            if rounds > self.until - BLOCK + UNDER_WAY:
                self.booked.append((stats.committed, stats.wall_us / self.usual_us))

    def won(self, rounds: int) -> bool | None:
        """A round is over: whether the tried setting has won; None: the trial goes on."""
        if self.booked:
            tokens, times = (sum(each) / len(self.booked) for each in zip(*self.booked, strict=True))
            self.sides[self.tried].add_ratio(tokens, times)
            self.booked.clear()
        if rounds < self.until:
            return None
        if not self.in_force:
            return False
        self.blocks += 1
        if self.blocks >= 4:
            known, new = self.sides
            ahead, error = new.mean - known.mean, math.hypot(known.error, new.error)
            if ahead > WON * error or -ahead > LOST * error or self.blocks >= MAX_BLOCKS:
                return ahead > WON * error
        self._turn_to(not self.tried, rounds)
        return None


class Climb:
    """Gamma and the number of sequences of one load; a chain has one sequence."""

    def __init__(self, kind: Kind) -> None:
        self.kind, self.measured = kind, Measured()
        names = ("gamma", "sequences") if kind.method in SEQUENCES else ("gamma",)
        self.factors = dict.fromkeys(names, 0)  # factors on the start, in powers of STEP
        self.ways = [(name, way) for name in names for way in (1, -1)]  # directions of trials, the next one first
        self.lost = 0  # trials in a row
        self.rounds = 0  # the verifier's rounds, each of which has a part of every stream
        self.pause = Backoff(FIRST)  # rounds without trials, after those in all directions were lost
        self.pause.pause(0)
        self.said: dict[str, int] = {}  # settings that were commanded last; none since the last trial
        self.trial: Comparison | None = None
        self._seen: set[str] = set()  # streams with a part in the present round

    def observe(self, stats: RoundStats) -> None:
        self.measured.observe(stats)
        if stats.rid in self._seen or len(self._seen) >= max(1, stats.streams):
            self.rounds += 1
            self._seen.clear()
            self._round_over()
        self._seen.add(stats.rid)
        if self.trial is not None:
            self.trial.book(stats, self.rounds)

    def _round_over(self) -> None:
        name, way = self.ways[0]
        if self.trial is None:
            if self.said and not self.pause.resting(self.rounds):
                self.trial = Comparison(name, self.said[name], way, self.rounds, self.measured.wall.mean)
        elif (won := self.trial.won(self.rounds)) is not None:
            self.trial, self.said = None, {}
            if won:
                self.factors[name] += way
                self.lost = 0
                self.pause.succeed()
                return
            self.lost, self.ways = self.lost + 1, [*self.ways[1:], self.ways[0]]
            if self.lost % len(self.ways) == 0:
                self.pause.rest(self.rounds)

    def budget(self, revision: int, costs: Costs) -> Budget:
        method = self.kind.method
        rate = self.measured.tokens.mean / max(1.0, self.measured.wall.mean)  # tokens per microsecond
        parallel = STRATEGIES[method].waits == "survivor"
        starts = {"gamma": costs.gamma(method), "sequences": SEQUENCES.get(method, 0)}
        self.said = {name: _scaled(name, starts[name], factor) for name, factor in self.factors.items()}
        if (trial := self.trial) is not None:
            now = self.said[trial.name]
            if abs(now - trial.settings[0]) > max(1.0, (STEP - 1) * now):
                self.trial = None  # costs have changed: both sides are far off
            else:
                self.said[trial.name] = trial.setting
        return Budget(
            revision,
            TTL_MS,
            self.kind,
            **self.said,
            window=costs.window(rate) if parallel else None,
            wait_us=0.0 if costs.streams > 1 and (parallel or method in TREES) else None,
            measured_tokens_per_second=within(1e6 * rate, Mean),
        )


def _scaled(name: str, start: int, factor: int) -> int:
    return min(MOST[name], max(1, round(start * STEP**factor)))


class Control:
    """The settings of all loads. ``decide`` gives the budgets of loads with rounds since its last call."""

    def __init__(self) -> None:
        self.forward = UNKNOWN
        self.steps: dict[str, Curve] = {}  # draft steps by drafter, the latest last
        self.climbs: dict[tuple[Kind, int], Climb] = {}  # climbs by kind and bit length of streams, the latest last
        self.fresh: dict[Kind, Climb] = {}  # climb of the load that each kind has now
        self.revision = 0

    def calibrated(self, forward_us: Sequence[tuple[int, float]]) -> None:
        """The forward's time by rows, which the verifier measured when it started."""
        self.forward = Curve(dict(forward_us)) if forward_us else UNKNOWN

    def observe_round(self, stats: RoundStats) -> None:
        kind = stats.kind
        if stats.plan is None or kind.method not in STRATEGIES:  # no drafter works, or a newer verifier's method
            return
        load = kind, max(1, stats.streams).bit_length()
        climb = self.fresh[kind] = self.climbs.get(load) or Climb(kind)
        _put(self.climbs, load, climb)
        climb.observe(stats)

    def observe_draft(self, stats: DraftStats) -> None:
        if stats.step_us:
            _put(self.steps, stats.actor_id, Curve(dict(stats.step_us)))

    def decide(self) -> list[Budget]:
        decided = []
        for kind, climb in sorted(self.fresh.items()):
            if climb.measured.rounds >= BLOCK:  # else too little is known
                self.revision += 1
                costs = climb.measured.costs(self.forward, self.steps.get(kind.drafter, UNKNOWN))
                decided.append(climb.budget(self.revision, costs))
        self.fresh.clear()
        return decided


def _put(known: dict[Any, Any], key: object, value: object) -> None:
    """Put a value last. Beyond ``MAX_BUDGETS`` the first is forgotten."""
    known.pop(key, None)
    known[key] = value
    if len(known) > MAX_BUDGETS:
        del known[next(iter(known))]
