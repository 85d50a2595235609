"""A selection from a product of parameters."""

from collections.abc import Sequence
from itertools import combinations, product
from typing import Any


def every_pair(*axes: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Rows in which any two values of different axes meet; most faults take no more than two."""
    places = [*product(*(range(len(axis)) for axis in axes))]
    pairs = {place: set(combinations(enumerate(place), 2)) for place in places}
    missing, rows = set().union(*pairs.values()), []
    while missing:
        best = max(places, key=lambda place: len(pairs[place] & missing))
        missing -= pairs[best]
        rows.append(tuple(axis[at] for axis, at in zip(axes, best, strict=True)))
    return rows
