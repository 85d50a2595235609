"""What speculation will bring, by the one cost model that also commands it (``actors.controller.goodput``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from actors.controller.goodput import MAX_GAMMA, Belief, goodput, initial_setting
from actors.cost import CostModel
from duoactor.doctor.report import Agreement, Forecast, Help
from protocols.messages import Method

METHODS = (Method.TREE, Method.DUODECODING, Method.PEARL, Method.SPS)  # that draft with a model alone
# What a running pair adds to what each model takes by itself: SpS waited 3.8 ms for 3.1 draft tokens of 0.7 ms each,
# where a step by itself takes 0.2 to 0.3: trees grow, verdicts come, caches are cold. Compiled layers changed little:
# 3.3 ms for 2.0 draft tokens in docs/benchmarks/bundled/report.md.
MESSAGE_US = 1500.0  # to the drafter and back
STEP_US = 400.0  # of a draft step
ROUND_US = 300.0  # of a round beside its forward, as :class:`Belief` has it
BETTER_AGREEMENT = 0.1
WORTH_SAYING = 1.03  # what helps by less is within what gamma is flat to
PAYS = 1.05  # less is within the noise of a usual machine


@dataclass(frozen=True, slots=True)
class Measured:
    """What is known of a pair on a machine. Times are microseconds, of a forward by rows, of a draft step by width."""

    forward_us: Mapping[int, float]
    step_us: Mapping[int, float]
    agreement: Agreement
    lent_us: Mapping[int, float] = field(default_factory=dict)  # of a forward with the CPUs that resting drafters leave
    inline: bool = False  # the verifier drafts itself, between forwards

    @property
    def lent(self) -> CostModel:
        """Of a target that has the drafters' CPUs, too."""
        return CostModel(self.lent_us or self.forward_us)

    @property
    def alone(self) -> float:
        """Tokens of the target alone in a microsecond. Nobody needs the drafters' CPUs then."""
        return goodput(Method.VANILLA, None, replace(belief_of(self), cost=self.lent))


def belief_of(known: Measured) -> Belief:
    """What would be believed after some rounds."""
    steps = CostModel(known.step_us)
    return Belief(
        CostModel(known.forward_us),
        lambda leaves: steps(leaves) + STEP_US,
        ranks=known.agreement.ranks,
        acceptance=known.agreement.depths,
        message_us=MESSAGE_US,
    )


def forecasts(known: Measured) -> tuple[Forecast, ...]:
    """One stream by every method with its best setting, the best first."""
    belief, alone = belief_of(known), known.alone
    found = [between_forwards(known)] if known.inline else []
    for method in METHODS:
        setting = initial_setting(method, belief)
        rate = goodput(method, setting, belief)
        found.append(Forecast(method, setting.gamma, setting.sequences, rate * 1e6, rate / alone))
    return tuple(sorted(found, key=lambda one: -one.speedup))


def between_forwards(known: Measured) -> Forecast:
    """Of ``auto``, where target and draft share a CPU and the verifier drafts itself: chains alone are counted. Nothing
    is sent, and steps take what they take alone."""
    cost, step, depths = known.lent, CostModel(known.step_us)(1), known.agreement.depths
    alone = 1.0 / (cost(1) + ROUND_US)
    rates = [alone]
    expected, reached = 1.0, 1.0
    for depth in range(MAX_GAMMA):
        reached *= depths[min(depth, len(depths) - 1)]
        expected += reached
        rates.append(expected / (cost(2 + depth) + ROUND_US + (1 + depth) * step))
    gamma = max(range(len(rates)), key=rates.__getitem__)
    return Forecast(Method.AUTO, gamma, 1, rates[gamma] * 1e6, rates[gamma] / alone)


def helps(known: Measured) -> tuple[Help, ...]:
    """What would make the best method faster, the most helpful first; what would not help is left out."""
    changes = (
        (f"a draft that agrees with the target {BETTER_AGREEMENT:.0%} more often", _agreeing(known)),
        ("a draft step of half the time (a smaller draft, int8, a core of its own)", _quicker(known)),
        ("verifying in which eight tokens cost no more than one (a GPU, or bfloat16 in hardware)", _flat(known)),
    )
    enough, alone = forecasts(known)[0].speedup * WORTH_SAYING, known.alone * 1e6
    found = [Help(what=what, speedup=forecasts(changed)[0].tokens_per_second / alone) for what, changed in changes]
    return tuple(sorted((one for one in found if one.speedup > enough), key=lambda one: -one.speedup))


def _agreeing(known: Measured) -> Measured:
    seen = known.agreement
    better = min(0.97, seen.first + BETTER_AGREEMENT)
    left = (1 - better) / max(1e-9, 1 - seen.first)  # of what was wrong at once
    ranks = (better, *(chance * left for chance in seen.ranks[1:]))
    depths = tuple(1 - (1 - chance) * left for chance in seen.depths)
    return replace(known, agreement=Agreement(tokens=seen.tokens, ranks=ranks, depths=depths))


def _quicker(known: Measured) -> Measured:
    return replace(known, step_us={width: us / 2 for width, us in known.step_us.items()})


def _flat(known: Measured) -> Measured:
    cost = CostModel(known.forward_us)
    return replace(known, forward_us={1: cost(1), 8: cost(1), **{rows: cost(rows - 7) for rows in (16, 32)}})
