"""The losses of a draft in training: divergences from the target's distribution at each position of its own texts.

The Kullback-Leibler divergence (KL) falls fastest while a draft is poor. Total variation (TV) is what counts in the
end, since 1 - TV is the share of draft tokens that are accepted. The weight moves from the first to the second as
acceptance rises (LK losses, arXiv 2602.23881).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

SHARPNESS = 3.0  # steepness of the change from KL to TV: the paper's eta
GREEDY_AS = 0.4  # temperature in place of 0 for greedy texts: at 0 only ties have a gradient
# Share of a batch's positions that are left out, the worst-fitted ones: capacity spent on them is lost
# (AdaSPEC, arXiv 2510.19779).
LEFT_OUT = 0.1
_LEAST = 1e-6
AT_ONCE = 1 << 20  # logits in float32, so that what is made of them stays in a CPU's cache


class _Read(torch.autograd.Function):
    """Each row's logits in some ``columns``, and the logarithms of the sums of exp(logits) and of
    exp(logits * scale).

    Rows go through the cache a few at a time. As separate operations these took two thirds of a training step."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, columns: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        plain, scaled = (logits.new_empty(len(logits), dtype=torch.float32) for _ in range(2))
        for rows in _in_turn(logits):
            some, factor = logits[rows].to(torch.float32, copy=True), scale[rows]
            most = some.amax(1)
            some.sub_(most[:, None])
            sharp = None if (factor == 1).all() else _exp(some * factor[:, None]).sum(1).log_().add_(most * factor)
            plain[rows] = _exp(some).sum(1).log_().add_(most)
            scaled[rows] = plain[rows] if sharp is None else sharp
        ctx.save_for_backward(logits, columns, scale, plain, scaled)
        return logits.gather(1, columns).float(), plain, scaled

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        logits, columns, scale, *sums = ctx.saved_tensors
        (of_own, *of_sums), found = gradients, torch.empty_like(logits)
        for rows in _in_turn(logits):
            some, factor = logits[rows].to(torch.float32, copy=True), scale[rows]
            plain, scaled, of_plain, of_scaled = (one[rows, None] for one in (*sums, *of_sums))
            if (factor == 1).all():
                some = _exp(some.sub_(plain)).mul_(of_plain + of_scaled)
            else:
                sharp = _exp((some * factor[:, None]).sub_(scaled)).mul_(of_scaled * factor[:, None])
                some = _exp(some.sub_(plain)).mul_(of_plain).add_(sharp)
            found[rows] = some.scatter_add_(1, columns[rows], of_own[rows])
        return found, None, None


def _in_turn(logits: Tensor) -> list[slice]:
    rows = max(1, AT_ONCE // logits.shape[1]) if logits.device.type == "cpu" else len(logits)
    return [slice(first, first + rows) for first in range(0, len(logits), rows)]


def _exp(logits: Tensor) -> Tensor:
    """In place. Results that float32 holds as denormal numbers take ten times as long."""
    return logits.clamp_min_(-80.0).exp_()


def divergences(logits: Tensor, ids: Tensor, logprobs: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
    """``(KL, TV)`` of each position, of the target from the draft: KL at temperature 1, TV at the text's temperature.

    ``logits``: the draft's, ``(n, columns)``. ``ids`` ``(n, k)``: the columns of the target's likeliest tokens,
    -1 for tokens outside the draft's head. ``logprobs`` ``(n, k)``: the target's for them; all other tokens
    count as one. ``temperature`` ``(n,)``: 0 is greedy.

    Tokens that the head does not cover cannot be learned. KL is taken over the others, and has their probability as its
    weight (EAGLE-3 leaves out positions without a covered likeliest token). TV counts them as rejected, as they are.
    """
    lacking = ids < 0
    scale = 1.0 / torch.where(temperature == 0, GREEDY_AS, temperature)
    own, whole, sharpened = _Read.apply(logits, ids.clamp_min(0), scale)  # type: ignore[no-untyped-call]
    own = own.masked_fill(lacking, -torch.inf)
    ours = own - whole[:, None]
    theirs = logprobs.exp()
    rest_theirs = (1 - theirs.sum(1)).clamp_min(_LEAST)
    rest_ours = (1 - ours.exp().sum(1)).clamp_min(_LEAST)
    of_others = (theirs.masked_fill(lacking, 0.0).sum(1) + rest_theirs).log()  # 0 where the head lacks nothing
    surprise = (logprobs - of_others[:, None] - ours).masked_fill(lacking, 0.0)
    kl = (theirs * surprise).sum(1) + rest_theirs * (rest_theirs.log() - of_others - rest_ours.log())
    plain = scale == 1
    p = torch.where(plain[:, None], theirs, (logprobs * scale[:, None]).softmax(-1))  # nothing is left to the others
    q = (own * scale[:, None] - sharpened[:, None]).exp()
    both = torch.minimum(p, q).sum(1) + torch.where(plain, torch.minimum(rest_theirs, rest_ours), 0.0)
    return kl, 1 - both


def blend(kl: Tensor, tv: Tensor, acceptance: float, left_out: float = 0.0) -> Tensor:
    """The loss of a batch. ``acceptance``: a running mean of 1 - TV."""
    share = math.exp(-SHARPNESS * acceptance)
    if left_out:
        kept = kl <= kl.detach().quantile(1 - left_out)
        kl, tv = kl[kept], tv[kept]
    return share * kl.mean() + (1 - share) * tv.mean()


def cross_entropy(logits: Tensor, tokens: Tensor, temperature: Tensor) -> Tensor:
    """The loss of a batch of which the target's tokens (n,) are known, and no more: the noise after them teaches
    nothing (docs/experiments/draft-training.md)."""
    return functional.cross_entropy(logits / torch.where(temperature == 0, 1.0, temperature)[:, None], tokens)
