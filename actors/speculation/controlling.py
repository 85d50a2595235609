"""What the budget controller believes and chooses: round statistics in, budgets out. No sockets, no clock of its own.

It maximises goodput, tokens per second, and not the acceptance rate: acceptance can stay at 0.9 while the right answer
flips from on to off (DESIGN section 5, point 4).
"""

from __future__ import annotations

from actors.speculation.budget import MOST_GAMMA, Belief, best_setting, goodput
from actors.speculation.pacing import Average
from protocols.messages import Budget, DraftStats, Method, RoundStats

DEPTHS = 16
HEADS = 8
ADAPTED = (Method.SPS, Method.PEARL, Method.DUODECODING)
HYSTERESIS = 1.03  # a new setting must promise this much more than the one in force
WARM_UP = 6  # rounds before the first word
OFF_ROUNDS = 64  # rounds without speculation before a probe
PROBE_ROUNDS = 8
PROBE_GAMMA = 4
SHRINK = 12.0  # observations' worth of trust in the rate over all depths


class LineCost:
    """Forward time as ``base + rows * slope``, fitted to what rounds took lately."""

    def __init__(self) -> None:
        self.by_rows: dict[int, Average] = {}

    def observe(self, rows: int, time_us: float) -> None:
        average = self.by_rows.get(rows)
        if average is None:
            self.by_rows[rows] = average = Average(time_us, most=12, weight=0.0)
        average.add(min(time_us, 4 * average.value))

    def fit(self) -> tuple[float, float]:
        points = [(float(r), a.value, a.count) for r, a in self.by_rows.items()]
        weight = sum(w for _, _, w in points)
        if not points:
            return 1000.0, 50.0
        mean_r = sum(r * w for r, _, w in points) / weight
        mean_t = sum(t * w for _, t, w in points) / weight
        spread = sum(w * (r - mean_r) ** 2 for r, _, w in points)
        if spread < 1e-9:
            slope = 0.05 * mean_t / (1 + 0.05 * mean_r)
        else:
            slope = max(0.0, sum(w * (r - mean_r) * (t - mean_t) for r, t, w in points) / spread)
        return max(1.0, mean_t - slope * mean_r), slope

    def __call__(self, rows: int) -> float:
        base, slope = self._line
        return base + slope * rows

    def freeze(self) -> LineCost:
        self._line = self.fit()
        return self


class MethodControl:
    """One method's acceptance, and the setting in force."""

    def __init__(self, method: str) -> None:
        self.method = method
        self.pooled = Average(0.6, most=256, weight=3.0)  # over all depths: speaks where one depth has little to say
        self.depths = [Average(0.6, most=48, weight=0.0) for _ in range(DEPTHS)]
        self.heads = [Average(min(0.95, 0.6 + 0.05 * k), most=64, weight=3.0) for k in range(HEADS)]
        self.tokens_per_us = Average(0.0, most=24, weight=0.0)
        self.overhead = Average(300.0, most=24)
        self.gamma: int | None = None
        self.sequences = 1.0
        self.theta = Average(1.5, most=32, weight=3.0)  # sequences that the theta rule chose, where it was free to
        self.rounds = 0
        self.since_change = 0
        self.predicted = 0.0
        self.probing = False

    def observe(self, stats: RoundStats) -> None:
        self.rounds += 1
        self.since_change += 1
        for depth in range(min(stats.accepted, DEPTHS)):
            self._saw(depth, 1.0)
        if stats.accepted < min(stats.window, DEPTHS):
            self._saw(stats.accepted, 0.0)
        elif stats.accepted == stats.window and stats.gamma > 0:
            for k in range(HEADS):
                self.heads[k].add(1.0 if 0 < stats.needed_sequences <= k + 1 else 0.0)
        if stats.sequences > 0 and (self.gamma is None or self.sequences > 1):
            self.theta.add(stats.sequences)
        self.tokens_per_us.add(stats.committed / max(1.0, stats.wall_us))
        self.overhead.add(max(0.0, stats.wall_us - stats.forward_us - stats.wait_us))

    def _saw(self, depth: int, hit: float) -> None:
        self.depths[depth].add(hit)
        self.pooled.add(hit)

    def forget(self) -> None:
        """Let what comes next weigh more than what was: the world may have changed unseen."""
        for average in (self.pooled, *self.depths, *self.heads):
            average.count = min(average.count, 3.0)

    def belief(self, step_us: float) -> Belief:
        pooled = self.pooled.value
        depths = [(d.count * d.value + SHRINK * pooled) / (d.count + SHRINK) for d in self.depths]
        return Belief([*depths, pooled], [h.value for h in self.heads], step_us, overhead_us=self.overhead.value)


class Control:
    """The controller's whole mind. ``decide`` is called now and then, and gives the budgets that changed or age."""

    def __init__(self, ttl_ms: int = 5000) -> None:
        self.ttl_ms = ttl_ms
        self.cost = LineCost()
        self.step_us = 1000.0
        self.methods: dict[str, MethodControl] = {}
        self.revision = 0

    def observe_round(self, stats: RoundStats) -> None:
        self.cost.observe(stats.rows, stats.forward_us)
        if stats.method in ADAPTED:
            control = self.methods.get(stats.method)
            if control is None:
                control = self.methods[stats.method] = MethodControl(stats.method)
            control.observe(stats)

    def observe_draft(self, stats: DraftStats) -> None:
        if stats.step_us:
            self.step_us = stats.step_us[0][1]

    def decide(self) -> list[Budget]:
        return [budget for c in self.methods.values() if (budget := self._decide(c)) is not None]

    def _decide(self, control: MethodControl) -> Budget | None:
        if control.rounds < WARM_UP:
            return None
        belief, cost = control.belief(self.step_us), self.cost.freeze()
        # Either one sequence, or as many as the theta rule wants: what it has wanted on the average.
        counts = (1.0, max(1.01, control.theta.value)) if control.method == Method.DUODECODING else (1.0,)
        gamma, sequences, value = best_setting(control.method, belief, cost, MOST_GAMMA, counts)
        if control.gamma is None:
            control.gamma, control.sequences, control.since_change = gamma, sequences, 0
        elif control.probing:
            if control.since_change >= PROBE_ROUNDS:
                control.probing = False
                control.gamma, control.sequences, control.since_change = gamma, sequences, 0
        elif control.gamma == 0 and control.since_change >= OFF_ROUNDS:
            control.gamma, control.sequences, control.since_change = PROBE_GAMMA, 1.0, 0
            control.probing = True
            control.forget()
        elif value > HYSTERESIS * goodput(control.method, control.gamma, control.sequences, belief, cost):
            control.gamma, control.sequences, control.since_change = gamma, sequences, 0
        control.predicted = goodput(control.method, control.gamma, control.sequences, belief, cost)
        self.revision += 1
        return Budget(
            self.revision,
            "",
            control.gamma,
            0 if control.sequences > 1 or control.method != Method.DUODECODING else 1,
            0,
            0.0,
            self.ttl_ms,
            control.predicted * 1e6,
            control.tokens_per_us.value * 1e6,
            control.method,
        )
