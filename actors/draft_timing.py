"""Measures what draft steps take on this hardware, through the interface that serves requests."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from actors.models import DraftModel, Expansion, Leaf, sample_tokens
from protocols.errors import ModelError
from protocols.limits import MAX_INT
from protocols.messages import Sampling

PROMPT = 64  # tokens of the text before the measured steps and rounds of a target
WIDTHS = (1, 2, 4, 8)  # leaves
REPEATS = 7  # rounds of each width or shape
PATIENCE_S = 4.0  # then a slow model is measured fewer times, instead of for minutes


def measure_draft(model: DraftModel, timer: Callable[[], float] = time.perf_counter) -> dict[int, float]:
    """The time of a draft step in microseconds, by the number of leaves in it: the lower quartile of several steps.
    Raises ModelError if its results are no probabilities.

    Drafters start while other actors load and measure themselves on the same cores. A step that shares its core takes
    several times as long. So even a median can be far off (it gave 5.55 ms instead of 0.37 ms).
    """
    *_, times = measuring(model, timer)
    return step_times(times)


def check_draft(model: DraftModel) -> None:
    """Raise ModelError if the candidates that the model names after a text are no probabilities."""
    prefix = _prefix(model)
    handle = model.open(prefix, len(prefix), Sampling(max_tokens=1))
    try:
        _check(model, model.expand([Leaf(handle, prefix[-1], (), is_root=True)]))
    finally:
        model.close(handle)


def step_times(seconds: Mapping[int, Sequence[float]]) -> dict[int, float]:
    """Microseconds of a step by its width, out of what :func:`measuring` has found."""
    return {width: lower_quartile(spent) * 1e6 for width, spent in seconds.items() if spent}


def lower_quartile(times: Sequence[float]) -> float:
    return sorted(times)[len(times) // 4]


def measuring(model: DraftModel, timer: Callable[[], float] = time.perf_counter) -> Iterator[dict[int, list[float]]]:
    """:func:`measure_draft` step by step. Yields the seconds of all steps so far, by their width."""
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
                yield times
            if timer() - start > PATIENCE_S:
                break
    finally:
        model.close(handle)


def _prefix(model: DraftModel) -> list[int]:
    length = max(1, min(PROMPT, model.info.max_context // 2))
    return sample_tokens(length, model.info.vocab_size or MAX_INT)  # a proposer copies ids, whatever they are


def _timed_step(model: DraftModel, handle: int, tokens: Sequence[int], timer: Callable[[], float]) -> float:
    """Seconds of a step that expands ``tokens`` below the root."""
    begin = timer()
    expansions = model.expand([Leaf(handle, token, ()) for token in tokens])
    spent = timer() - begin
    model.release(handle, [expansion.slot for expansion in expansions])
    _check(model, expansions)
    return spent


def _check(model: DraftModel, expansions: Iterable[Expansion]) -> None:
    """Raise ModelError, which names the model, if its results are no probabilities."""
    try:
        for expansion in expansions:
            expansion.within(MAX_INT)
    except ModelError as error:
        raise ModelError(f"{model.info.model_id} cannot draft: {error}") from None
