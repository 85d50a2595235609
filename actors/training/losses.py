"""The losses of a draft in training: divergences from the target's distribution at each position of its own texts.

The Kullback-Leibler divergence (KL) falls fastest while a draft is poor. Total variation (TV) is what counts in the
end, since 1 - TV is the share of draft tokens that are accepted. The weight moves from the first to the second as
acceptance rises (LK losses, arXiv 2602.23881).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

SHARPNESS = 3.0  # of the change from KL to TV: the paper's eta
GREEDY_AS = 0.4  # temperature in place of 0 for greedy texts: at 0 only ties have a gradient
# Share of a batch's positions that are left out, the worst-fitted ones: capacity spent on them is lost
# (AdaSPEC, arXiv 2510.19779).
LEFT_OUT = 0.1
_LEAST = 1e-6


def divergences(logits: Tensor, ids: Tensor, logprobs: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
    """``(KL, TV)`` of each position, of the target from the draft: KL at temperature 1, TV at the text's temperature.

    ``logits``: the draft's, float32 ``(n, columns)``. ``ids`` ``(n, k)``: the columns of the target's likeliest tokens,
    -1 for tokens outside the draft's head. ``logprobs`` ``(n, k)``: the target's for them; all other tokens
    count as one. ``temperature`` ``(n,)``: 0 is greedy.

    Tokens that the head does not cover cannot be learned. KL is taken over the others, and has their probability as its
    weight (EAGLE-3 leaves out positions without a covered likeliest token). TV counts them as rejected, as they are.
    """
    lacking = ids < 0
    own = logits.gather(1, ids.clamp_min(0)).masked_fill(lacking, -torch.inf)
    ours = own - logits.logsumexp(-1, keepdim=True)
    theirs = logprobs.exp()
    rest_theirs = (1 - theirs.sum(1)).clamp_min(_LEAST)
    rest_ours = (1 - ours.exp().sum(1)).clamp_min(_LEAST)
    of_others = (theirs.masked_fill(lacking, 0.0).sum(1) + rest_theirs).log()  # 0 where the head lacks nothing
    surprise = (logprobs - of_others[:, None] - ours).masked_fill(lacking, 0.0)
    kl = (theirs * surprise).sum(1) + rest_theirs * (rest_theirs.log() - of_others - rest_ours.log())
    scale = 1.0 / torch.where(temperature == 0, GREEDY_AS, temperature)[:, None]
    plain = scale == 1
    p = torch.where(plain, theirs, (logprobs * scale).softmax(-1))  # sharpened, nothing is left to the others
    q = (own * scale - (logits * scale).logsumexp(-1, keepdim=True)).exp()
    both = torch.minimum(p, q).sum(1) + torch.where(plain[:, 0], torch.minimum(rest_theirs, rest_ours), 0.0)
    return kl, 1 - both


def blend(kl: Tensor, tv: Tensor, acceptance: float, left_out: float = 0.0) -> Tensor:
    """The loss of a batch. ``acceptance``: a running mean of 1 - TV."""
    share = math.exp(-SHARPNESS * acceptance)
    if left_out:
        kept = kl <= kl.detach().quantile(1 - left_out)
        kl, tv = kl[kept], tv[kept]
    return share * kl.mean() + (1 - share) * tv.mean()


def choice(logits: Tensor, tokens: Tensor, noise: Tensor, temperature: Tensor) -> Tensor:
    """The loss of a batch of which the target's tokens (n,) are known, and the noise (n, columns) that they were chosen
    with: the cross-entropy of softmax(logits / temperature + noise). It asks that the token be the draft's choice, with
    that noise, and no more. (Without the noise the bundled draft learned as much, within the error:
    docs/experiments/draft-training.md.)"""
    scaled = logits / torch.where(temperature == 0, 1.0, temperature)[:, None]
    return functional.cross_entropy(scaled + noise, tokens)
