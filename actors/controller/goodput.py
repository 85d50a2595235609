"""Goodput: how many tokens per second a setting should bring. Pure arithmetic, one function for every method.

Everything is in microseconds and in chances that a draft token is the target's, given that all before it were. With
prior beliefs it gives the verifier's setting before a controller has spoken; with measured ones, the controller's.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from actors.tree.window import Cost
from protocols.messages import Method

MAX_GAMMA = 32
THETA = (Method.DUODECODING, Method.DUODECODING_LOCKSTEP)  # the number of sequences is chosen in every phase
TREES = (Method.TREE, Method.AUTO)
# The grid. Gamma is flat (the paper's table 3: two to either side cost 3%), so that its values may be far apart.
GAMMAS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, MAX_GAMMA)
SEQUENCES = (1, 2, 3, 4, 6, 8)
WAITS = (0, 1, 2, 3, 4, 6, 8)  # draft tokens in a row
ALONE = 1.5  # streams on the average, below which a stream has its forwards for itself
PRIOR_RANKS = (0.7, 0.1, 0.05, 0.02)  # chance of a draft's first, second ... choice: those of usable pairs
PRIOR_THETA = (1.0, 0.5, 0.25, 0.12)  # share of phases in which the theta rule wants so many sequences


@dataclass(frozen=True, slots=True)
class Setting:
    """What a controller commands. ``gamma``: draft tokens of a phase; of a tree its depth. ``sequences``: most of them;
    in a tree the leaves of one step. ``wait``: draft tokens in a row that a round is worth waiting for, in a tree."""

    gamma: int
    sequences: int = 1
    wait: int = 0


@dataclass(frozen=True, slots=True)
class Belief:
    """What is known of target, drafter and text.

    ``ranks[i]``: chance that the next token is the draft's choice of rank i, from 0. ``acceptance[i]``: chance that the
    draft token at depth i + 1 of a chain is right, given those above; the last holds for all below. ``theta[i]``: share
    of phases in which the theta rule wants more than i sequences. ``step``: time of a draft step by its leaves;
    ``cost``: of a forward by its rows. ``rate``: tokens per microsecond now, the price of a row; 0: not known.
    """

    cost: Cost
    step: Callable[[int], float]
    ranks: Sequence[float] = PRIOR_RANKS
    acceptance: Sequence[float] = PRIOR_RANKS[:1]
    theta: Sequence[float] = PRIOR_THETA
    overhead_us: float = 300.0
    message_us: float = 0.0  # to the drafter and back
    streams: float = 1.0  # that share each forward and each draft step
    rate: float = 0.0

    def forward(self, rows: float) -> float:
        """Time of a forward with so many rows of every stream."""
        return self.cost(round(rows * self.streams))

    def draft(self, leaves: float) -> float:
        """Time of a draft step with so many leaves of every stream."""
        return self.step(max(1, round(leaves * self.streams)))

    def head(self, sequences: float) -> float:
        """Chance that the next token is among the first tokens of so many sequences (a mean, so between integers)."""
        whole = int(sequences)
        share = sequences - whole
        return min(1.0, sum(self.ranks[:whole]) + (share * self.ranks[whole] if whole < len(self.ranks) else 0.0))

    def expected(self, length: float) -> tuple[float, float]:
        """(expected accepted tokens of a chain of that mean length, chance that all of it is accepted)."""
        total, alive = 0.0, 1.0
        for depth in range(math.ceil(length)):
            share = min(1.0, length - depth)
            alive *= 1 - share + share * self.acceptance[min(depth, len(self.acceptance) - 1)]
            total += share * alive
        return total, alive

    def steps(self, time_us: float, step_us: float, wanted: float) -> float:
        """Mean draft steps of a drafter which wants so many during a forward; what it could take varies by a step.

        One that wants more than it can take is in the middle of a step when the verdict comes; if the target did not
        follow it, half of that is lost.
        """
        possible = (time_us + self.overhead_us - self.message_us) / step_us
        busy = min(max(wanted - possible + 0.5, 0.0), 1.0)  # the chance that the verdict finds it at work
        taken = busy * possible + (1 - busy) * wanted - busy * (1 - busy) / 2 if 0 < busy < 1 else min(wanted, possible)
        return max(0.0, taken - 0.5 * busy * (1 - self.acceptance[0]))


def goodput(method: str, setting: Setting | None, belief: Belief) -> float:
    """Tokens per microsecond of one stream; of a setting None: without drafts."""
    if setting is None or method == Method.VANILLA:
        return 1.0 / (belief.forward(1) + belief.overhead_us)
    if method == Method.SPS:
        accepted, _ = belief.expected(setting.gamma)
        share = 1.0 if belief.streams < ALONE else 0.5  # of several, half draft while half are verified
        verifying = belief.forward(share * (1 + setting.gamma))
        drafting = setting.gamma * belief.draft(share) + belief.message_us
        if share < 1:
            drafting = max(drafting, verifying)
        return (1 + accepted) / (drafting + verifying + belief.overhead_us)
    empty, full = _tree_rounds(setting, belief) if method in TREES else _chain_rounds(method, setting, belief)
    share = empty.survives / (1 - full.survives + empty.survives) if full.survives < 1 else 1.0
    tokens = (1 - share) * (1 + empty.accepted) + share * (1 + full.accepted)
    return tokens / ((1 - share) * empty.time + share * full.time + belief.overhead_us)


@dataclass(frozen=True, slots=True)
class _Round:
    """A parallel method alternates between rounds that begin with nothing drafted (pre-verify) and rounds that begin
    with what survived (post-verify). ``survives``: the chance that the next one is of the second kind."""

    accepted: float
    time: float
    survives: float
    window: int  # draft tokens verified


def _chain_rounds(method: str, setting: Setting, belief: Belief) -> tuple[_Round, _Round]:
    """PEARL and DuoDecoding: gamma tokens shared by k sequences, of which one survives.

    The verifier looks at what there is when its forward ends: a slow drafter makes chains shorter, not rounds longer,
    but for the first token, which it waits for.
    """
    gamma = setting.gamma
    wanted = sum(belief.theta[: setting.sequences]) if method in THETA else 1.0
    k = max(1.0, min(wanted, gamma))
    step = belief.draft(k)
    if method == Method.DUODECODING_LOCKSTEP:  # here it waits until the whole phase is there
        length = max(0.0, gamma / k - 1)
        first = gamma / k * step + belief.message_us
    else:
        drafted = belief.steps(belief.forward(1), step, gamma / k)
        drafted = belief.steps(belief.forward(drafted), step, gamma / k)  # what is verified takes time to draft in
        length = min(max(0.0, drafted - 1), chain_window(belief))
        first = step + belief.message_us
    accepted, whole = belief.expected(length)
    enter = belief.head(k)
    empty = _Round(0.0, max(belief.forward(1), first), enter, 0)
    return empty, _Round(accepted, max(belief.forward(1 + length), first), whole * enter, round(length))


def _tree_rounds(setting: Setting, belief: Belief) -> tuple[_Round, _Round]:
    """A tree grown best-first from chances that are the same at every node, and its window by the price of rows.

    A round with survivors begins with as many expanded nodes as the subtree of a survivor has on the average.
    """
    step = belief.draft(setting.sequences)
    empty, below = _Tree(belief.ranks, setting.gamma).verified(setting, belief, step)
    for _ in range(2):  # the second time from what either kind of round leaves
        tree = _Tree(belief.ranks, setting.gamma)
        tree.grow(round(below), 1)
        full, left = tree.verified(setting, belief, step)
        below = (below + left) / 2
    return empty, full


class _Tree:
    """A best-first tree whose every node has the same chances of children. Node 0 is the root."""

    LEAST = 0.05  # chance of a path that is not worth a draft step
    MAX_NODES = 200

    def __init__(self, ranks: Sequence[float], gamma: int) -> None:
        self.ranks = [chance for chance in ranks if chance > 0.01]
        self.gamma = gamma
        self.chance, self.depth, self.parent = [1.0], [0], [-1]
        self.expanded: list[int] = []
        self.leaves = [(-1.0, 0)]

    def grow(self, steps: int, width: int) -> None:
        for _ in range(steps):
            if len(self.chance) > self.MAX_NODES:
                return
            batch = [heapq.heappop(self.leaves)[1] for _ in range(min(width, len(self.leaves)))]
            if not batch:
                return
            for node in batch:
                self.expanded.append(node)
                for rank in self.ranks:
                    chance = self.chance[node] * rank
                    if chance > self.LEAST and self.depth[node] + 1 < self.gamma:
                        heapq.heappush(self.leaves, (-chance, len(self.chance)))
                    self.chance.append(chance)
                    self.depth.append(self.depth[node] + 1)
                    self.parent.append(node)

    def verified(self, setting: Setting, belief: Belief, step: float) -> tuple[_Round, float]:
        """The round that verifies the tree's best nodes while it grows on, and the expanded nodes below a survivor."""
        waited = 0.0
        missing = setting.wait - max(self.depth)
        if missing > 0 and belief.streams < ALONE:  # who waits misses the forward that others share
            waited = belief.message_us + missing * step
            self.grow(missing, setting.sequences)
        best = sorted(range(1, len(self.chance)), key=lambda node: -self.chance[node])
        rate = belief.rate or 1.0 / belief.forward(1)
        base = belief.forward(1)
        accepted = expected = value = 0.0
        rows = 0
        for count, node in enumerate(best[:MAX_GAMMA], 1):
            expected += self.chance[node]
            worth = expected - rate * (belief.forward(1 + count) - base)
            if worth > value:
                rows, value, accepted = count, worth, expected
        inside = {0, *best[:rows]}
        time = belief.forward(1 + rows)
        steps = belief.steps(time, step, math.inf)
        self.grow(int(steps), setting.sequences)
        survives, below = self._survivors(inside)
        if (share := steps - int(steps)) > 0:  # of one step more
            self.grow(1, setting.sequences)
            more, further = self._survivors(inside)
            survives, below = survives + share * (more - survives), below + share * (further - below)
        return _Round(accepted, waited + time, min(survives, 1.0), rows), below

    def _survivors(self, inside: set[int]) -> tuple[float, float]:
        """The chance that the token behind a window was drafted, and how many nodes are expanded below it then."""
        over: dict[int, int] = {}  # node -> the survivor that it is or hangs below
        below: dict[int, int] = {}  # survivor -> expanded nodes in its subtree
        for node in range(1, len(self.chance)):
            if node not in inside:
                over[node] = node if self.parent[node] in inside else over[self.parent[node]]
        for node in self.expanded:
            if node in over:
                below[over[node]] = below.get(over[node], 0) + 1
        survives = sum(self.chance[node] for node in over if over[node] == node)
        mean = sum(self.chance[node] * count for node, count in below.items()) / survives if survives else 0.0
        return survives, mean


def chain_window(belief: Belief) -> int:
    """Draft tokens of a parallel chain that are worth their rows, at least 1; the rest waits for the next round.

    A phase with one sequence has a chain of all its gamma tokens, which is long where several would share them.
    """
    rate = belief.rate or 1.0 / belief.forward(1)
    return max(range(1, MAX_GAMMA + 1), key=lambda rows: belief.expected(rows)[0] - rate * belief.forward(1 + rows))


def tree_window(setting: Setting, belief: Belief) -> int:
    """Draft tokens of a tree's larger windows, at least 2."""
    return max(2, *(one.window for one in _tree_rounds(setting, belief)))


# --- choosing --------------------------------------------------------------------------------------------------------


def hardware_gamma(belief: Belief, sequences: int = 1) -> int:
    """The paper's hardware-aware budget: the draft length that takes as long as its own verification, the batched step
    of so many sequences included."""
    for gamma in range(1, MAX_GAMMA):
        if gamma / sequences * belief.draft(sequences) >= belief.forward(1 + gamma / sequences):
            return gamma
    return MAX_GAMMA


def dimensions(method: str) -> tuple[str, ...]:
    """What a method leaves to choose."""
    if method in TREES:
        return ("gamma", "sequences", "wait")
    return ("gamma", "sequences") if method in THETA else ("gamma",)


def alternatives(method: str, setting: Setting, dimension: str) -> list[Setting]:
    """The settings of the grid that differ in that one dimension. The one that is best among equals comes first: the
    smallest, but the theta rule is a method's own and is capped only where it loses."""
    match dimension:
        case "gamma":
            return [replace(setting, gamma=value) for value in GAMMAS]
        case "sequences":
            order = reversed(SEQUENCES) if method in THETA else SEQUENCES
            return [replace(setting, sequences=value) for value in order]
    return [replace(setting, wait=value) for value in WAITS]


def initial_setting(method: str, belief: Belief) -> Setting:
    """Before anything is known of the text: what prior chances make best, a chain no longer than the hardware's budget.

    Where verifying is flat in the number of tokens (a GPU) that is the paper's gamma; where every row costs, as on a
    CPU, a longer chain would lose what it gains.
    """
    longest = hardware_gamma(belief)
    widest = SEQUENCES[-1] if method in THETA else 1
    setting = Setting(min(GAMMAS, key=lambda gamma: abs(gamma - longest)), widest, 0)
    for _ in range(2):
        for dimension in dimensions(method):
            setting = max(alternatives(method, setting, dimension), key=lambda one: goodput(method, one, belief))
    return replace(setting, gamma=min(setting.gamma, longest)) if method not in TREES else setting
