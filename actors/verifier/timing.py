"""Measures at start-up what the target's forwards take on this hardware, through the interface that serves requests."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping

import msgspec
import numpy as np

from actors.cost import Curve
from actors.draft_timing import PATIENCE_S, PROMPT
from actors.models import DEFAULT_NODES, TargetModel, Window, sample_tokens
from protocols.errors import RequestError
from protocols.messages import Sampling

COARSE = (1, 4, 8, 16, 32, 64)  # row counts that are measured however long it takes
# Kernels work in tiles (six rows with AVX2), so that time climbs in steps: a window has to know that its seventh row
# costs as much as the first six together, and the eighth nothing more. The most telling ones come first.
FINE = (6, 7, 12, 2, 3, 5, 10, 14, 18, 24, 48)
DEFAULT_ROWS = DEFAULT_NODES + 1
REPEATS = 7  # of each row count; larger ones than DEFAULT_ROWS only FEW times
FEW = 3
BUSHY = 15  # nodes of the window that branches are priced by
LENT_ROWS = (1, 4, 8, 16)
LENT_REPEATS = 12
LENT_PATIENCE_S = 1.0


class Timing(msgspec.Struct, frozen=True):
    """Microseconds of a round by its rows, with the target's own CPUs (``alone_us``) and with those of resting
    drafters too, and what a branch adds, in rounds of one row."""

    alone_us: dict[int, float]
    branch: float
    lent_us: dict[int, float] | None


def measure(model: TargetModel) -> Timing:
    alone_us = measure_target(model)
    return Timing(alone_us, measure_branch(model), measure_lent(model, alone_us))


class _Rounds:
    """Timed rounds of a request behind a short prompt."""

    def __init__(self, model: TargetModel, timer: Callable[[], float], room: int, nodes: int = DEFAULT_NODES) -> None:
        """``room``: tokens that its rounds may commit. ``nodes``: of the largest window."""
        info = model.info
        self.model, self.timer = model, timer
        self.tokens = sample_tokens(min(PROMPT, info.max_context // 2), info.vocab_size)
        self.left = min(info.max_context - len(self.tokens), room)
        sampling = Sampling(max_tokens=self.left, ignore_eos=True)
        self.handle = model.open(self.tokens, sampling, most_nodes=nodes)

    def __enter__(self) -> _Rounds:
        while self.model.prefill(self.handle) is None:
            pass
        self.left, self.began = self.left - 1, self.timer()
        return self

    def __exit__(self, *raised: object) -> None:
        self.model.close(self.handle)

    @property
    def took_s(self) -> float:
        """Time of all rounds so far."""
        return self.timer() - self.began

    def time(self, rows: int, parents: list[int] | None = None) -> float:
        """Seconds of a round of ``rows``. ``parents``: see :class:`Window`; None: a chain."""
        nodes = list(range(-1, rows - 2)) if parents is None else parents
        window = Window(self.handle, self.tokens[: rows - 1], nodes)
        begin = self.timer()
        outcome = self.model.verify([window])[0]
        self.left -= len(outcome.tokens)
        return self.timer() - begin


def measure_target(model: TargetModel, timer: Callable[[], float] = time.perf_counter) -> dict[int, float]:
    """The time of a round in microseconds, by its number of rows (root and window together).

    It is the lower quartile of several rounds, not the median, because other actors load and measure their models on
    the same machine meanwhile: a median gave 8.2 ms for 8 rows that take 3.7 ms, and that verifier's windows stayed
    short for as long as it ran."""
    rows = [r for r in (*COARSE, *FINE) if r - 1 <= model.max_window]
    room = DEFAULT_ROWS * (REPEATS + 2)
    try:
        measured = _Rounds(model, timer, room, max(rows) - 1)
    except RequestError:  # a small pool has no room for the largest windows
        rows = [r for r in rows if r <= DEFAULT_ROWS]
        measured = _Rounds(model, timer, room)
    times: dict[int, list[float]] = {r: [] for r in rows}
    with measured as rounds:
        for repeat, r in itertools.product(range(REPEATS + 1), rows):
            late = rounds.took_s > PATIENCE_S
            if rounds.left <= max(rows) or (late and (repeat or r not in COARSE)):
                break
            if r <= DEFAULT_ROWS or repeat <= FEW:
                times[r].append(rounds.time(r))
    # the first pass warms caches and allocators; it only counts where there was no time for a second
    return {r: _lower_quartile(t[1:] or t) * 1e6 for r, t in sorted(times.items()) if t}


def _lower_quartile(times: list[float]) -> float:
    return sorted(times)[len(times) // 4]


def measure_branch(model: TargetModel, timer: Callable[[], float] = time.perf_counter) -> float:
    """The time that each path of a window beside the first adds to a round, in rounds of one row; 0 without
    branches."""
    room = min(model.info.max_context - PROMPT, (3 * FEW + 1) * (BUSHY + 1))
    nodes = min(BUSHY, model.max_window, room // (3 * FEW + 1) - 1)
    leaves = nodes // 2
    if not model.branches or leaves < 1:
        return 0.0
    chain = list(range(-1, nodes - 1))
    bush = [*chain[: nodes - leaves], *chain[:leaves]]  # a path, and a leaf beside each of its nodes
    shapes: tuple[list[int], ...] = ([], chain, bush)
    times: tuple[list[float], ...] = ([], [], [])
    with _Rounds(model, timer, room) as rounds:
        while len(times[0]) < FEW and (rounds.took_s < PATIENCE_S or not times[0]):
            for parents, taken in zip(shapes, times, strict=True):
                taken.append(rounds.time(1 + len(parents), parents))
    one, plain, bushy = (min(taken) for taken in times)
    return max(0.0, bushy - plain) / leaves / one


def measure_lent(
    model: TargetModel, own_us: Mapping[int, float], timer: Callable[[], float] = time.perf_counter
) -> dict[int, float] | None:
    """Microseconds of a round by its rows when the target also uses the CPUs of resting drafters; None: there are no
    such CPUs, or they do not help. ``own_us``: the same without them, as :func:`measure_target` found it.

    Rounds with and without those CPUs alternate, and ``own_us`` is scaled by the ratio of the shortest of each, because
    drafters load and measure their models on those CPUs meanwhile. The ratio depends on the rows: two threads read
    weights little faster than one, but compute twice as fast (91M parameters: 0.70 of the time with one row, 0.55 with
    8).
    """
    if not model.has_spare_cpus:
        return None
    own = Curve(own_us)
    rows = [r for r in LENT_ROWS if r - 1 <= model.max_window and r <= own.rows[-1]]
    while len(rows) > 1 and 2 * sum(map(own, rows)) > LENT_PATIENCE_S * 1e6:
        rows.pop()
    best = {r: [float("inf")] * 2 for r in rows}
    with _Rounds(model, timer, LENT_REPEATS * (len(rows) + 1) * 4, rows[-1] - 1) as rounds:
        try:
            for repeat in range(2 * LENT_REPEATS):
                if repeat >= 2 and (rounds.took_s > LENT_PATIENCE_S or rounds.left <= rows[-1] * (len(rows) + 1)):
                    break
                used = repeat % 2
                model.use_spare_cpus(bool(used))
                for r in (1, *rows):  # the first round wakes helper threads that sleep; a second one of a row follows
                    best[r][used] = min(best[r][used], rounds.time(r))
        finally:
            model.use_spare_cpus(False)
    ratios = [min(1.0, lent / alone) for alone, lent in best.values()]
    lent_us = {r: own(r) * float(np.interp(r, rows, ratios)) for r in own.rows}
    return lent_us if min(ratios) < 1.0 else None
