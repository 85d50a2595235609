"""What a draft would have proposed at every place of finished answers: one forward for hundreds of places.

The engine, its quantisation and the ranking are those that serve, so the ranks are those of a running drafter. With
int8 weights alone activations are rounded by what shares a forward, and a near-tie may fall the other way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from actors.engines.build import build_draft
from actors.engines.draft import Draft
from actors.replay.logged import LoggedRequest


@dataclass(frozen=True, slots=True)
class Agreement:
    """One array for each request, with an entry for each token of its text.

    ``ranks``: the token's place among the draft's candidates under the request's sampling and shared noise, from 1; 0:
    it is none of them. ``logprobs``: its natural-log probability under the draft's logits, divided by the request's
    temperature where that is above 0, without noise; minus infinity where the draft cannot follow the text any more
    (its context has ended, or the text holds a token that it does not know).
    """

    ranks: list[NDArray[np.int32]]
    logprobs: list[NDArray[np.float32]]


def replay_draft(draft: str | Draft, logged: Sequence[LoggedRequest]) -> Agreement:
    """``draft``: a loaded model, or a directory or hub id, which is loaded as a drafter on a CPU loads it."""
    model = draft if isinstance(draft, Draft) else build_draft(draft, "cpu", "auto", 0, torch.get_num_threads())
    ranks, logprobs = [], []
    for request in logged:
        found, sure = _replayed(model, request)
        ranks.append(found)
        logprobs.append(sure)
    return Agreement(ranks, logprobs)


def _replayed(model: Draft, request: LoggedRequest) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    sampling, text = request.sampling, request.text
    ranks = np.zeros(len(text), dtype=np.int32)
    logprobs = np.full(len(text), -np.inf, dtype=np.float32)
    at = 0
    for logits, candidates in model.along(request.prompt, text, sampling):
        end = at + len(candidates)
        chosen = torch.tensor(text[at:end], device=logits.device)
        known = chosen < logits.shape[1]
        scaled = logits if sampling.temperature == 0 else logits * (1.0 / sampling.temperature)
        sure = scaled.log_softmax(-1).gather(1, torch.where(known, chosen, 0)[:, None])[:, 0]
        logprobs[at:end] = torch.where(known, sure, -torch.inf).numpy(force=True)
        for token, (ids, _) in zip(text[at:end], candidates, strict=True):
            ranks[at] = ids.index(token) + 1 if token in ids else 0
            at += 1
    return ranks, logprobs
