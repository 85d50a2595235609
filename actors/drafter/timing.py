"""What a draft step costs on this hardware, measured through the interface that serves requests."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

from actors.models import DraftModel, Leaf, sample_tokens
from protocols.messages import Sampling

PROMPT = 64
ANY_VOCABULARY = 1 << 15  # for a draft that has none of its own
WIDTHS = (1, 2, 4, 8)
REPEATS = 7
PATIENCE_S = 4.0  # a slow model is measured fewer times, not for minutes


def measure_draft(model: DraftModel, timer: Callable[[], float] = time.perf_counter) -> dict[int, float]:
    """Median time in microseconds of a draft step by the number of leaves in it."""
    prefix = sample_tokens(min(PROMPT, model.info.max_context // 2), model.info.vocab_size or ANY_VOCABULARY)
    handle = model.open(prefix, len(prefix), Sampling())
    times: dict[int, list[float]] = {w: [] for w in WIDTHS}
    try:
        model.expand([Leaf(handle, prefix[-1], (), is_root=True)])
        start = timer()
        for repeat in range(REPEATS + 1):
            for width in WIDTHS:
                leaves = [Leaf(handle, prefix[i], ()) for i in range(width)]
                begin = timer()
                expansions = model.expand(leaves)
                spent = timer() - begin
                model.release(handle, [e.slot for e in expansions])
                if repeat or timer() - start > PATIENCE_S:
                    times[width].append(spent)
            if timer() - start > PATIENCE_S:
                break
    finally:
        model.close(handle)
    return {w: median(t) * 1e6 for w, t in times.items() if t}
