"""Stretches of time on one clock: how long two actors worked at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Span = tuple[float, float]  # begin and end


def shared(some: Sequence[Span], others: Sequence[Span]) -> float:
    """How long both lasted at the same time; each is in order, and none of its spans overlap."""
    total, at = 0.0, 0
    for begin, end in some:
        while at < len(others) and others[at][1] <= begin:
            at += 1
        look = at
        while look < len(others) and others[look][0] < end:
            total += min(end, others[look][1]) - max(begin, others[look][0])
            look += 1
    return total


def union(spans: Iterable[Span]) -> list[Span]:
    """The same time in order, each moment once."""
    joined: list[Span] = []
    for begin, end in sorted(spans):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((begin, end))
    return joined


def within(spans: Iterable[Span], begin: float, end: float) -> list[Span]:
    """What of them lies between ``begin`` and ``end``."""
    return [(max(a, begin), min(b, end)) for a, b in spans if a < end and b > begin]
