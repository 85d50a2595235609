"""What a draft would have proposed at each position of finished answers, with hundreds of positions in one forward.

The engine, its quantisation and the ranking are the serving ones, so the ranks are a running drafter's. Only
with int8 weights a near-tie may fall the other way, because activations are rounded together with those of other rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from actors.engines.drafts.ranking import Candidates
from actors.models import ModelInfo
from actors.records import LoggedRequest
from protocols.messages import Sampling


class Replayed(Protocol):
    @property
    def info(self) -> ModelInfo:
        """Description of the model whose tokenizer a text must have."""
        ...

    def along(self, prompt: Sequence[int], text: Sequence[int], sampling: Sampling) -> Iterator[list[Candidates]]:
        """See :meth:`actors.engines.drafts.draft.Draft.along`."""
        ...


def replay_draft(model: Replayed, logged: Sequence[LoggedRequest]) -> list[NDArray[np.int32]]:
    """For each request, int32 ``(tokens,)``: the rank of each token of its output, from 1, among the draft's candidates
    under the request's sampling and noise. 0: it is no candidate, or the draft cannot mirror the text further (the text
    exceeds the draft's context or vocabulary)."""
    return [_ranks(model, request) for request in logged]


def _ranks(model: Replayed, request: LoggedRequest) -> NDArray[np.int32]:
    ranks = np.zeros(len(request.text), dtype=np.int32)
    at = 0
    for candidates in model.along(request.prompt, request.text, request.sampling):
        for ids, _ in candidates:
            token = request.text[at]
            ranks[at] = ids.index(token) + 1 if token in ids else 0
            at += 1
    return ranks
