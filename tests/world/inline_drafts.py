"""A toy verifier that drafts itself between forwards, and toy drafts for it."""

from __future__ import annotations

import itertools

from actors.verifier.sources.inline import InlineDraft
from protocols.messages import Chunk, Sampling
from tests.world.cluster import Cluster
from tests.world.models import EOS, VOCAB, ToyDraft

PROMPT = (5, 9, 33)
FORWARD_S = 0.002
STEP_US = {1: 100.0, 8: 150.0}
LONG = Sampling(max_tokens=200, ignore_eos=True)


def inline(model: ToyDraft, takes_us: float = STEP_US[1], **fields) -> InlineDraft:
    """``takes_us``: what a step takes; ``step_us``: what was measured at the start."""
    ticks = itertools.count()  # one passes during each step
    timer = lambda: next(ticks) * takes_us / 1e6  # noqa: E731
    fields = {"step_us": STEP_US, "vocab_size": VOCAB, "eos": frozenset({EOS}), "timer": timer, **fields}
    return InlineDraft(model, **fields)


def cluster(model: ToyDraft, **fields) -> Cluster:
    return Cluster(**{"forward_s": FORWARD_S, "inline": inline(model), "language": model.language, **fields})


async def one_stream(system: Cluster, sampling: Sampling = LONG, method: str = "auto", prompt=PROMPT) -> list[Chunk]:
    async with system:
        caller = await system.caller()
        return await caller.generate(prompt, sampling, method)


class Counting(ToyDraft):
    steps = 0

    def expand(self, leaves):
        self.steps += 1
        return super().expand(leaves)


class Unread(Counting):
    """It has a long text to read, which takes as many ticks of its clock as there are tokens."""

    tokens_read = 0

    def missing(self, handle):
        return max(0, len(self.contexts[handle][0]) - 1 - self.tokens_read)

    def prefill(self, handle, limit):
        self.tokens_read += limit
