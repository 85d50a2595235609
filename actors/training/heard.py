"""What a text that was served teaches: at places where the target's likeliest tokens are known by them, as
``duoactor distill`` does; at others by its token, and the noise that it was chosen with."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from actors.learner.traffic import Heard
from actors.training.batches import Batch
from actors.training.losses import blend, choice, divergences

NEVER = -10_000.0  # logarithm of the probability of what is no alternative


def alternatives(
    text: Heard, tokens: int, width: int, vocabulary: int
) -> tuple[NDArray[np.int32], NDArray[np.float16]]:
    """``(ids, logprobs)``, each (tokens, width), of the first tokens of the output. Unknown tokens, and
    tokens outside the draft's, have the id ``vocabulary``."""
    ids = np.full((tokens, width), vocabulary, dtype=np.int32)
    logprobs = np.full((tokens, width), NEVER, dtype=np.float16)
    if known := text.alternatives:
        told = np.frombuffer(text.top_ids, dtype="<i4").reshape(-1, known)[:tokens]
        fits = (told >= 0) & (told < vocabulary)
        ids[:, :known] = np.where(fits, told, vocabulary)
        said = np.frombuffer(text.top_logprobs, dtype="<f2").reshape(-1, known)[:tokens]
        logprobs[:, :known] = np.where(fits, said, np.float16(NEVER))
    return ids, logprobs


def told(ids: Tensor, vocabulary: int) -> Tensor:
    """Of alternatives (n, k) the places (n,) of which something is known."""
    return (ids < vocabulary).any(1)


def loss(logits: Tensor, batch: Batch, noise: Tensor, columns: Tensor) -> Tensor:
    """``logits`` (n, columns of the head) are the draft's; ``noise`` (m, columns) is that of the m places of which
    nothing but the token is known; ``columns`` (vocabulary,): where in the head each token is, -1: nowhere."""
    known = told(batch.ids, len(columns))
    share = float(known.float().mean())
    wanted = columns[batch.answers]
    sayable = wanted[~known] >= 0
    alone = ~known & (wanted >= 0)
    found = logits.new_zeros(())
    if bool(alone.any()):
        found = found + (1 - share) * choice(logits[alone], wanted[alone], noise[sayable], batch.temperature[alone])
    if share > 0:
        ids = functional.pad(columns, (0, 1), value=-1)[batch.ids[known]]
        kl, tv = divergences(logits[known], ids, batch.logprobs[known], batch.temperature[known])
        found = found + share * blend(kl, tv, 1 - float(tv.detach().mean()))
    return found
