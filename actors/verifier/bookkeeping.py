"""What drafts take of a round beside forward and draft steps: their window is chosen, laid out, walked and committed.

A round of the bundled target takes 1.4 ms on a CPU without drafts, of which its forward 1.15; each node of a window
adds 0.10 ms to the forward and 0.02 to 0.05 here, so that a price without it lets rows in that lose. With a large
target, or on a GPU, it is next to nothing. Learnt from how much longer rounds with more rows took, as forward times are
(:class:`actors.cost.CostModel`).
"""

from __future__ import annotations

from collections import defaultdict
from functools import partial

from actors.estimate import Slope
from actors.verifier.forward import Job

# Squared rows. The bookkeeping of a lone stream's rounds differs by 0.1 ms beside what their drafts take, so that
# sixteen leave an error of half a row's 0.05 ms.
PRIOR = 16.0
MEMORY = 64 * PRIOR


class Bookkeeping:
    def __init__(self) -> None:
        self._slopes: defaultdict[int, Slope] = defaultdict(partial(Slope, PRIOR, MEMORY))

    def observe(self, job: Job, took_us: float, forward_us: float) -> None:
        """A round took so long, of which its forward ``forward_us``. Not where a drafter was at work, which may
        have been waited for, nor beside a prompt, nor with a grammar, whose time for a row is priced by itself."""
        if job.piece is not None or any(r.has_drafter or r.spec.windows.grammar is not None for r in job.requests):
            return
        streams = len(job.requests)
        beside_us = max(0.0, took_us - forward_us - job.drafting_us)
        self._slopes[streams.bit_length()].add(streams, job.rows - streams, beside_us)

    def row_us(self, streams: int) -> float:
        """For each row of drafts of a round that so many streams share; 0 as long as nothing is known."""
        return max(0.0, self._slopes[streams.bit_length()].towards(0.0))
