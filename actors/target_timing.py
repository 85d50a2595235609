"""Measures what the target's forwards take on this hardware, through the interface that serves requests."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from actors.cost import Curve
from actors.draft_timing import PATIENCE_S, PROMPT, REPEATS, lower_quartile
from actors.models import DEFAULT_NODES, TargetModel, Window, sample_tokens
from protocols.errors import RequestError
from protocols.messages import Sampling


class Shape(NamedTuple):
    """A round: its rows, and the CPUs that compute it."""

    rows: int
    lent: bool = False  # the target also uses the CPUs of resting drafters


# The first are measured however long it takes. Kernels work in tiles (six rows with AVX2), so that time climbs in
# steps: a window has to know that its seventh row costs as much as the first six together, and the eighth nothing more.
NEEDED = tuple(map(Shape, (1, 4, 8, 16, 32, 64)))
FINE = tuple(map(Shape, (6, 7, 12, 2, 3, 5, 10, 14, 18, 24, 48)))
LENT = tuple(Shape(rows, lent) for lent in (False, True) for rows in (1, 4, 8, 16))


class Timing(msgspec.Struct, frozen=True):
    """Microseconds of a round by its rows, with the target's own CPUs (``alone_us``) and with those of resting
    drafters too. ``lent_us``: None: there are no such CPUs, or they do not help."""

    alone_us: dict[int, float]
    lent_us: dict[int, float] | None


def measure(model: TargetModel, timer: Callable[[], float] | None = None) -> Timing:
    """By this thread's CPU time where it computes: others that want the processors meanwhile lengthen some row counts'
    rounds and not others', and such prices would last."""
    timer = timer or (time.thread_time if model.info.device == "cpu" else time.perf_counter)
    fitting = [shape for shape in (*NEEDED, *FINE) if shape.rows - 1 <= model.max_window]
    try:
        found = rounds_us(model, timer, fitting, NEEDED)
    except RequestError:  # a small pool has no room for the largest windows
        found = rounds_us(model, timer, [shape for shape in fitting if shape.rows - 1 <= DEFAULT_NODES], NEEDED)
    alone_us = {shape.rows: us for shape, us in sorted(found.items())}
    return Timing(alone_us, _lent(model, timer, alone_us) if model.has_spare_cpus else None)


def _lent(model: TargetModel, timer: Callable[[], float], alone_us: Mapping[int, float]) -> dict[int, float] | None:
    """``alone_us`` is scaled by the ratio of rounds with and without those CPUs, which alternate, because drafters load
    and measure their models there meanwhile. The ratio depends on the rows: two threads read weights little faster than
    one, but compute twice as fast (91M parameters: 0.70 of the time with one row, 0.55 with 8)."""
    shapes = [shape for shape in LENT if shape.rows in alone_us]
    try:
        found = rounds_us(model, timer, shapes, [shape for shape in shapes if shape.rows == 1])
    finally:
        model.use_spare_cpus(False)
    rows = [rows for rows, lent in found if lent and Shape(rows) in found]
    ratios = [min(1.0, found[Shape(count, lent=True)] / found[Shape(count)]) for count in rows]
    if not rows:  # a context of a few tokens ends before they are measured
        return None
    own = Curve(alone_us)
    lent_us = {count: own(count) * float(np.interp(count, rows, ratios)) for count in own.rows}
    return lent_us if min(ratios) < 1.0 else None


def rounds_us(
    model: TargetModel, timer: Callable[[], float], shapes: Sequence[Shape], needed: Sequence[Shape]
) -> dict[Shape, float]:
    """Microseconds of rounds after a short prompt. ``needed``: shapes that are measured however long it takes. Raises
    RequestError if the pool has no room for the largest.

    It is the lower quartile of several rounds, not the median, because other actors load and measure their models on
    the same machine meanwhile: a median gave 8.2 ms for 8 rows that take 3.7 ms, and that verifier's windows stayed
    short for as long as it ran."""
    info = model.info
    tokens = sample_tokens(max(1, min(PROMPT, info.max_context // 2)), info.vocab_size)
    left = min(info.max_context - len(tokens), (DEFAULT_NODES + 1) * (REPEATS + 2))
    shapes = [shape for shape in shapes if shape.rows == 1 or 4 * shape.rows <= left]  # a short context has no room
    largest = max(shape.rows for shape in shapes)
    handle = model.open(tokens, Sampling(max_tokens=left, ignore_eos=True), most_nodes=largest - 1)
    times: dict[Shape, list[float]] = {shape: [] for shape in shapes}
    lent = False

    def round_s(shape: Shape) -> float:
        nonlocal left
        window = Window(handle, tokens[: shape.rows - 1], range(-1, shape.rows - 2))
        begin = timer()
        left -= len(model.verify([window])[0].tokens)
        return timer() - begin

    try:
        while model.prefill(handle) is None:
            pass
        left, began = left - 1, timer()
        for repeat, shape in itertools.product(range(REPEATS + 1), shapes):
            if left <= 2 * largest and times[shapes[0]]:
                break
            if timer() - began > PATIENCE_S and (repeat or shape not in needed):
                continue
            if shape.lent is not lent:
                lent = shape.lent
                model.use_spare_cpus(lent)
                round_s(Shape(1))  # it wakes helper threads that sleep
            times[shape].append(round_s(shape))
    finally:
        model.close(handle)
    # the first pass warms caches and allocators; it only counts where there was no time for a second
    return {shape: lower_quartile(spent[1:] or spent) * 1e6 for shape, spent in times.items() if spent}
