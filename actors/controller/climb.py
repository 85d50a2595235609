"""The controller's policy: round statistics in, budgets out. No sockets, no clock.

A setting starts where calibration and the measured acceptance rate put it, in closed form. From there it climbs: a
neighbouring setting is tried in turns with the one in force, and takes its place if its goodput, tokens per second, is
measurably higher. What is learnt is kept as a factor on the start, so that a change of costs moves the setting at once.

A command takes a while until rounds are drafted by it. So a round counts for the setting that it names itself, and the
streams of one round, which share its time, are one sample.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence

import msgspec

from actors.backoff import Backoff
from actors.calibration import USUAL
from actors.chains import TREES, Costs
from actors.cost import UNKNOWN, Curve
from actors.draft_timing import WIDTHS
from actors.estimate import Estimate
from actors.methods import STRATEGIES, strategy_for
from actors.models import DEFAULT_NODES
from protocols.limits import MAX_BUDGETS, Mean, within
from protocols.messages import Budget, DraftStats, Kind, Method, RoundStats

FIRST = 128  # rounds before the first trial, in which the acceptance rate is learnt
BLOCK = 32  # rounds of one side of a trial in turn
UNDER_WAY = 2  # rounds that name a new setting, but verify what was drafted before it came
LATEST = 4 * BLOCK  # rounds in which a setting must come into force: a user may have fixed another
MAX_BLOCKS = 12  # blocks of a trial; what has not won by then differs by less than is worth knowing
WON, LOST = 2.0, 1.0  # standard errors by which a trial is decided: the start is good, a move must be sure
STEP = math.sqrt(2)  # factor between neighbouring settings
MOST = {"gamma": DEFAULT_NODES, "sequences": max(WIDTHS)}
THETA = (Method.DUODECODING, Method.DUODECODING_LOCKSTEP)


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

    @property
    def rate(self) -> float:
        """Tokens per microsecond."""
        return self.tokens.mean / self.wall.mean if self.wall.mean else 0.0

    def costs(self, forward: Curve, step: Curve) -> Costs:
        chance = min(0.99, max(0.01, self.right.mean))
        streams = max(1, round(self.streams.mean))
        return Costs(forward, step, self.slowdown, self.beside.mean, self.message, streams, chance)


class Climb:
    """The setting of one load."""

    def __init__(self, method: str) -> None:
        self.method, self.measured = method, Measured()
        self.names = ("gamma",) if method in (Method.SPS, Method.PEARL) else ("gamma", "sequences")
        self.factors = dict.fromkeys(self.names, 0.0)  # on the start, in powers of STEP
        self.turn = 0  # direction of the next trial: two for each dimension
        self.lost = 0  # trials in a row
        self.rounds = 0  # the verifier's rounds, each of which has a part of every stream
        self.pause = Backoff(FIRST)  # rounds without trials, after those in all directions were lost
        self.pause.pause(0)
        self.said: dict[str, int] = {}  # the settings that were commanded last
        self.trial: tuple[str, int] | None = None
        self.settings = (0, 0)  # the known one and the tried one, which stand still during a trial
        self.since = 0  # rounds, at which this side of the trial was commanded
        self.until = math.inf  # rounds, at which it ends; not known before it is in force
        self.sides = _sides()
        self.blocks = 0  # blocks of the trial so far
        self.usual_us = 1.0  # time of a round, as the trial began
        self.tried = False  # whether the tried side is commanded
        self._seen: set[str] = set()  # streams with a part in the present round
        self._booked: list[tuple[float, float]] = []  # their tokens and times that count for the side

    def observe(self, stats: RoundStats) -> None:
        self.measured.observe(stats)
        if stats.rid in self._seen or len(self._seen) >= max(1, stats.streams):
            self._round_over()
        self._seen.add(stats.rid)
        if self.trial is not None:
            self._book(self.trial[0], stats)

    def _round_over(self) -> None:
        self.rounds += 1
        self._seen.clear()
        if self.trial is not None:
            self._judge()
        elif self.said and not self.pause.resting(self.rounds):
            self._begin(self.names[self.turn // 2], 1 - 2 * (self.turn % 2))

    def _begin(self, name: str, way: int) -> None:
        known = self.said[name]
        tried = _scaled(known, way, MOST[name])
        self.trial, self.settings = (name, way), (known, tried if tried != known else max(1, known + way))
        self.sides, self.blocks, self.usual_us = _sides(), 0, self.measured.wall.mean
        self._turn_to(tried=True)

    def _turn_to(self, tried: bool) -> None:
        self.tried, self.since, self.until = tried, self.rounds, math.inf
        self._booked.clear()

    def _book(self, name: str, stats: RoundStats) -> None:
        assert stats.plan is not None
        if (stats.plan.gamma if name == "gamma" else stats.plan.max_sequences) != self.settings[self.tried]:
            return
        if self.until == math.inf:
            self.until = self.rounds + BLOCK
        if self.rounds > self.until - BLOCK + UNDER_WAY:
            self._booked.append((stats.committed, stats.wall_us / self.usual_us))

    def _judge(self) -> None:
        if self._booked:
            tokens, times = (sum(each) / len(self._booked) for each in zip(*self._booked, strict=True))
            self.sides[self.tried].add_ratio(tokens, times)
            self._booked.clear()
        if self.until == math.inf and self.rounds - self.since > LATEST:
            return self._end(won=False)
        if self.rounds < self.until:
            return
        self.blocks += 1
        if self.blocks >= 4:
            known, new = self.sides
            error = math.hypot(known.error, new.error)
            if new.mean - known.mean > WON * error:
                return self._end(won=True)
            if known.mean - new.mean > LOST * error or self.blocks >= MAX_BLOCKS:
                return self._end(won=False)
        self._turn_to(not self.tried)

    def _end(self, won: bool) -> None:
        assert self.trial is not None
        (name, way), self.trial, self.tried = self.trial, None, False
        self.said.clear()  # the next trial begins from what is commanded next
        if won:
            self.factors[name] += way
            self.lost = 0
            self.pause.succeed()
            return
        self.lost += 1
        self.turn = (self.turn + 1) % (2 * len(self.names))
        if self.lost % (2 * len(self.names)) == 0:
            self.pause.rest(self.rounds)

    def budget(self, forward: Curve, step: Curve) -> Budget | None:
        """The budget for a load; None: too little is known."""
        if self.measured.rounds < BLOCK:
            return None
        costs, rate = self.measured.costs(forward, step), self.measured.rate
        parallel = strategy_for(self.method).waits == "survivor"
        starts = {"gamma": costs.gamma(self.method), "sequences": MOST["sequences"] if self.method in THETA else 4}
        self.said = {name: self._moved(name, starts[name], MOST[name]) for name in self.names}
        return Budget(
            0,
            0,
            gamma=self.said["gamma"],
            sequences=self.said.get("sequences"),
            window=costs.window(rate) if parallel else None,
            wait_us=0.0 if costs.streams > 1 and (parallel or self.method in TREES) else None,
            measured_tokens_per_second=within(1e6 * rate, Mean),
        )

    def _moved(self, name: str, start: int, most: int) -> int:
        now = _scaled(start, self.factors[name], most)
        if self.trial is None or self.trial[0] != name:
            return now
        if abs(now - self.settings[0]) > max(1.0, (STEP - 1) * now):  # costs have changed: both sides are far off
            self.trial, self.tried = None, False
            return now
        return self.settings[self.tried]


def _sides() -> tuple[Estimate, Estimate]:
    """Tokens of a usual round's time: with the setting in force, and with the one that is tried."""
    known, tried = (Estimate(memory=math.inf) for _ in range(2))
    return known, tried


def _scaled(start: int, factor: float, most: int) -> int:
    return int(min(most, max(1, round(start * math.pow(STEP, factor)))))


class Control:
    """The settings of all loads. ``decide`` gives the budgets of loads with rounds since its last call."""

    def __init__(self, ttl_ms: int = 5000) -> None:
        self.ttl_ms = ttl_ms
        self.forward = UNKNOWN
        self.steps: OrderedDict[str, Curve] = OrderedDict()  # by drafter, the latest last
        self.climbs: OrderedDict[tuple[Kind, int], Climb] = OrderedDict()  # by bit length of streams, the latest last
        self.fresh: dict[Kind, int] = {}
        self.revision = 0

    def calibrated(self, forward_us: Sequence[tuple[int, float]]) -> None:
        """The forward's time by rows, which the verifier measured when it started."""
        self.forward = Curve(dict(forward_us)) if forward_us else UNKNOWN

    def observe_round(self, stats: RoundStats) -> None:
        kind = stats.kind
        strategy = STRATEGIES.get(kind.method)  # None: of a newer verifier
        if stats.plan is None or strategy is None or not strategy.drafter:
            return
        streams = max(1, stats.streams).bit_length()
        climb = self.climbs.setdefault((kind, streams), Climb(kind.method))
        self.climbs.move_to_end((kind, streams))
        if len(self.climbs) > MAX_BUDGETS:
            self.climbs.popitem(last=False)
        climb.observe(stats)
        self.fresh[kind] = streams

    def observe_draft(self, stats: DraftStats) -> None:
        if stats.step_us:
            self.steps[stats.actor_id] = Curve(dict(stats.step_us))
            self.steps.move_to_end(stats.actor_id)
            if len(self.steps) > MAX_BUDGETS:
                self.steps.popitem(last=False)

    def decide(self) -> list[Budget]:
        decided = []
        for load in sorted(self.fresh.items()):
            kind, climb = load[0], self.climbs.get(load)
            budget = climb.budget(self.forward, self.steps.get(kind.drafter, UNKNOWN)) if climb is not None else None
            if budget is not None:
                self.revision += 1
                decided.append(msgspec.structs.replace(budget, kind=kind, revision=self.revision, ttl_ms=self.ttl_ms))
        self.fresh.clear()
        return decided
