"""Measures what draft steps take on this hardware, through the interface that serves requests."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from actors.cost import CostModel
from actors.models import DraftModel, Leaf, sample_tokens
from protocols.errors import PoolFull
from protocols.messages import Sampling

PROMPT = 64  # tokens of the text behind which steps are measured
ANY_VOCABULARY = 1 << 15  # for a draft without a vocabulary of its own, which copies ids
WIDTHS = (1, 2, 4, 8)  # leaves
REPEATS = 15
PATIENCE_S = 4.0  # then a slow model is measured fewer times, instead of for minutes
PROBES = 3  # steps of one probe
MAX_PROBE_SHARE = 0.01  # of an idle drafter's time: it may share its core with an actor that is busy
RAREST = 8  # times as rare as that are probes that go on finding what was believed ...
AGREES = 0.25  # ... up to this length


def measure_draft(model: DraftModel, timer: Callable[[], float] = time.perf_counter) -> dict[int, float]:
    """The time of a draft step in microseconds, by the number of leaves in it: the lower quartile of several steps.

    Drafters start while other actors load and measure themselves on the same cores. A step that shares its core takes
    several times as long, so that even a median can be far off (it gave 5.55 ms instead of 0.37 ms).
    """
    prefix = _prefix(model)
    handle = model.open(prefix, len(prefix), Sampling(max_tokens=1))
    times: dict[int, list[float]] = {w: [] for w in WIDTHS}
    try:
        model.expand([Leaf(handle, prefix[-1], (), is_root=True)])
        start = timer()
        for repeat in range(REPEATS + 1):
            for width in WIDTHS:
                spent = _timed_step(model, handle, prefix[:width], timer)
                if repeat or timer() - start > PATIENCE_S:  # the first pass warms up caches and allocators
                    times[width].append(spent)
            if timer() - start > PATIENCE_S:
                break
    finally:
        model.close(handle)
    return {w: sorted(t)[len(t) // 4] * 1e6 for w, t in times.items() if t}


class Probe:
    """Measures draft steps anew while nothing is drafted. Without a probe, step times would stay those of the start
    or of the last request, and a drafter that seemed too slow then would never be used again. As long as they
    find what is believed, the next one comes after longer each time."""

    def __init__(self, steps: CostModel, timer: Callable[[], float] = time.perf_counter) -> None:
        self.steps, self.timer = steps, timer
        self._next_at = 0.0
        self._rarer = 1

    def run(self, model: DraftModel, now: float, believed_us: float | None = None) -> float | None:
        """Let ``steps`` observe the fastest of a few steps, if that is due at ``now`` (seconds). Returns the
        microseconds that computing a token of a text took; None: it was not due, or there was no room. ``believed_us``:
        that as it is believed; None: nothing is."""
        if now < self._next_at:
            return None
        begin = self.timer()
        prefix = _prefix(model)
        try:
            handle = model.open(prefix, len(prefix), Sampling(max_tokens=1))
        except PoolFull:
            return None
        try:
            model.expand([Leaf(handle, prefix[-1], (), is_root=True)])
            read_us = (self.timer() - begin) * 1e6 / len(prefix)
            spent = min(_timed_step(model, handle, prefix[:1], self.timer) for _ in range(PROBES))
        finally:
            model.close(handle)
        agrees = _agrees(spent * 1e6, self.steps(1)) and (believed_us is None or _agrees(read_us, believed_us))
        self._rarer = min(RAREST, 2 * self._rarer) if agrees else 1
        for _ in range(PROBES):
            self.steps.observe(1, spent * 1e6)
        self._next_at = now + self._rarer * (self.timer() - begin) / MAX_PROBE_SHARE
        return read_us

    def spare(self, now: float) -> None:
        """A request's step was measured at ``now``: no probe is needed for as long as after one."""
        self._next_at = now + PROBES * self.steps(1) / 1e6 / MAX_PROBE_SHARE


def _agrees(found: float, believed: float) -> bool:
    return abs(found - believed) <= AGREES * believed


def _prefix(model: DraftModel) -> list[int]:
    return sample_tokens(max(1, min(PROMPT, model.info.max_context // 2)), model.info.vocab_size or ANY_VOCABULARY)


def _timed_step(model: DraftModel, handle: int, tokens: Sequence[int], timer: Callable[[], float]) -> float:
    """Seconds of a step that expands ``tokens`` below the root."""
    begin = timer()
    expansions = model.expand([Leaf(handle, token, ()) for token in tokens])
    spent = timer() - begin
    model.release(handle, [expansion.slot for expansion in expansions])
    return spent
