"""What speculation will bring, by the one cost model that also commands it (``actors.controller.goodput``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

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


def belief_of(forward_us: Mapping[int, float], step_us: Mapping[int, float], agreement: Agreement) -> Belief:
    """What would be believed after some rounds. Times are microseconds, of a forward by rows, of a step by width."""
    steps = CostModel(step_us)
    return Belief(
        CostModel(forward_us),
        lambda leaves: steps(leaves) + STEP_US,
        ranks=agreement.ranks,
        acceptance=agreement.depths,
        message_us=MESSAGE_US,
    )


def forecast(method: str, belief: Belief) -> Forecast:
    """One stream, with the best setting of the controller's grid."""
    alone = goodput(Method.VANILLA, None, belief)
    setting = initial_setting(method, belief)
    rate = goodput(method, setting, belief)
    return Forecast(
        method=method,
        gamma=setting.gamma,
        sequences=setting.sequences,
        tokens_per_second=rate * 1e6,
        speedup=rate / alone,
    )


def forecasts(belief: Belief) -> tuple[Forecast, ...]:
    """Of every method, the best first."""
    return tuple(sorted((forecast(method, belief) for method in METHODS), key=lambda one: -one.speedup))


def between_forwards(forward_us: Mapping[int, float], step_us: Mapping[int, float], agreement: Agreement) -> Forecast:
    """Of ``auto``, where target and draft share a CPU and the verifier drafts itself: chains alone are counted. Nothing
    is sent, and steps take what they take alone."""
    cost, step = CostModel(forward_us), CostModel(step_us)(1)
    alone = 1.0 / (cost(1) + ROUND_US)
    rates = [alone]
    expected, reached = 1.0, 1.0
    for depth in range(MAX_GAMMA):
        reached *= agreement.depths[min(depth, len(agreement.depths) - 1)]
        expected += reached
        rates.append(expected / (cost(2 + depth) + ROUND_US + (1 + depth) * step))
    gamma = max(range(len(rates)), key=rates.__getitem__)
    rate = rates[gamma]
    return Forecast(method=Method.AUTO, gamma=gamma, sequences=1, tokens_per_second=rate * 1e6, speedup=rate / alone)


def helps(belief: Belief, known: Forecast) -> tuple[Help, ...]:
    """What would make the best method faster, the most helpful first; what would not help is left out."""
    changes = (
        (f"a draft that agrees with the target {BETTER_AGREEMENT:.0%} more often", _agreeing(belief)),
        ("a draft step of half the time (a smaller draft, int8, a core of its own)", _quicker(belief)),
        ("verifying in which eight tokens cost no more than one (a GPU, or bfloat16 in hardware)", _flat(belief)),
    )
    alone = goodput(Method.VANILLA, None, belief)
    found = [
        Help(what=what, speedup=max(forecast(method, changed).tokens_per_second for method in METHODS) / alone / 1e6)
        for what, changed in changes
    ]
    found = [one for one in found if one.speedup > known.speedup * WORTH_SAYING]
    return tuple(sorted(found, key=lambda one: -one.speedup))


def _agreeing(belief: Belief) -> Belief:
    better = min(0.97, belief.ranks[0] + BETTER_AGREEMENT)
    left = (1 - better) / max(1e-9, 1 - belief.ranks[0])  # of what was wrong at once
    return replace(
        belief,
        ranks=(better, *(chance * left for chance in belief.ranks[1:])),
        acceptance=[1 - (1 - chance) * left for chance in belief.acceptance],
    )


def _quicker(belief: Belief) -> Belief:
    return replace(belief, step=lambda leaves: belief.step(leaves) / 2)


def _flat(belief: Belief) -> Belief:
    return replace(belief, cost=lambda rows: belief.cost(1) if rows <= 8 else belief.cost(rows - 7))
