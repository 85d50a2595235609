"""Speed-up over plain decoding for each place of the draft model, predicted by a model of a round."""

from __future__ import annotations

import math
from dataclasses import dataclass

from actors.chains import Costs
from actors.cost import Curve
from actors.models import DEFAULT_NODES

PAYS = 1.05  # less is within the noise of a usual machine
LOCAL_US = 300.0  # a message to a process on this host and the answer
Points = tuple[tuple[int, float], ...]  # rows and microseconds, as measured


@dataclass(frozen=True, slots=True)
class DraftPlace:
    """The drafter's place. ``away_ms``: each way to the drafter; None: between the target's own forwards."""

    name: str
    away_ms: float | None

    @property
    def message_us(self) -> float:
        return LOCAL_US + 2000 * (self.away_ms or 0.0)


INLINE = DraftPlace("inline", None)
HOST = DraftPlace("same host", 0.0)
FAR = tuple(DraftPlace(f"{ms:g} ms away", ms) for ms in (0.1, 1.0, 5.0, 20.0))
PLACES = (INLINE, HOST, *FAR)


def costs_of(forward: Points, step_us: float, beside_us: float, agreement: float, streams: int = 1) -> Costs:
    """A round's, with a draft step that does not grow with its leaves."""
    return Costs(Curve(dict(forward)), Curve({1: step_us}), 1.0, beside_us, 0.0, streams, agreement)


def speedup(place: DraftPlace, costs: Costs) -> float:
    """Speed-up of the best draft length at a place; drafts that do not pay are left out."""
    plain = 1 / _round(costs, 0)
    inline = place.away_ms is None
    make = _inline if inline else _apart
    return max(1.0, *(make(costs, gamma, place.message_us) / plain for gamma in range(1, DEFAULT_NODES + 1)))


def _round(costs: Costs, gamma: int) -> float:
    return costs.verify(1 + gamma) + costs.beside


def _inline(costs: Costs, gamma: int, _message_us: float) -> float:
    """Tokens per microsecond where target and draft take turns."""
    return (1 + costs.expected(gamma)) / (gamma * costs.draft(1) + _round(costs, gamma))


def _apart(costs: Costs, gamma: int, message_us: float) -> float:
    """A drafter that works during forwards. After a refused draft the next one takes a message and its steps to arrive.
    Meanwhile the target waits, or goes on alone and may leave the drafted path. After a window that was accepted whole
    the next one is ready, if the drafter proposed that window's last token too."""
    late = message_us + gamma * costs.draft(1)
    follows = costs.chance ** (gamma + 1)
    windows = 1 / (1 - follows)  # windows in a row
    tokens = windows * (1 + costs.expected(gamma))
    window_us = _round(costs, gamma) + (windows - 1) * max(_round(costs, gamma), gamma * costs.draft(1))
    waits = tokens / (late + window_us)
    plain_us = _round(costs, 0)
    alone = math.ceil(late / plain_us)
    tries = 1 / costs.chance**alone  # until the target's own tokens are the drafted ones
    goes_on = (alone * tries + tokens) / (alone * tries * plain_us + window_us)
    return max(waits, goes_on)


def advice(costs: Costs) -> str:
    """A sentence with the best place of the draft by the model."""
    gains = {place.name: speedup(place, costs) for place in (INLINE, HOST, *FAR[1:])}
    best = max(gains, key=lambda name: gains[name])
    ratio = costs.forward(1) / costs.draft(1)
    where = f"At c = {ratio:.0f} and {costs.chance:.0%} agreement"
    if gains[best] < PAYS:
        return f"{where} no place of the draft pays by the model."
    far = [place.away_ms for place in FAR if gains.get(place.name, 0.0) >= max(PAYS, gains["inline"] * PAYS)]
    said = f"inline drafts {gains['inline']:.1f}x, a drafter on this host {gains['same host']:.1f}x"
    if far:
        return f"{where} the model says {said}; a second host would pay up to {max(filter(None, far)):g} ms away."
    return f"{where} the model says {said}; a second host would not pay."
