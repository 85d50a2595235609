"""Muon (https://kellerjordan.github.io/posts/muon): momentum with a matrix's update made orthogonal.

``torch.optim.Muon`` is the same, but always computes in bfloat16. On a processor without instructions for it that took
14.9 s of a step of 17.7 (a draft of 384x2, a Zen 3); in float32 it takes 0.5 s.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from actors.engines.weights.dtypes import cpu_has_bfloat16

# Coefficients of the quintic Newton-Schulz iteration: the steepest at zero that ends near one (Jordan, as above).
QUINTIC = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5
LIKE_ADAMW = 0.2  # root mean square of an update, so that AdamW's rates fit (Liu et al., arXiv 2502.16982)
_LEAST = 1e-7


class Muon(torch.optim.Optimizer):
    """Muon's steps for matrices that are neither embeddings nor an output layer."""

    def __init__(
        self, matrices: Iterable[nn.Parameter], lr: float, momentum: float = 0.95, weight_decay: float = 0.01
    ) -> None:
        """``lr``: in AdamW's units."""
        super().__init__(matrices, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """``closure`` is not used: gradients must be there."""
        for group in self.param_groups:
            for matrix in group["params"]:
                if matrix.grad is None:
                    continue
                state = self.state[matrix]
                if not state:
                    state["momentum_buffer"] = torch.zeros_like(matrix.grad)
                mean = state["momentum_buffer"].lerp_(matrix.grad, 1 - group["momentum"])
                update = orthogonal(matrix.grad.lerp(mean, group["momentum"]))  # Nesterov's
                matrix.mul_(1 - group["lr"] * group["weight_decay"])
                matrix.add_(update, alpha=-group["lr"] * LIKE_ADAMW * math.sqrt(max(matrix.shape)))


def orthogonal(matrix: Tensor) -> Tensor:
    """Nearly the U Vᵀ of its singular value decomposition U S Vᵀ: singular values of about 0.7 to 1.2."""
    a, b, c = QUINTIC
    exact = matrix.device.type == "cpu" and not cpu_has_bfloat16()
    x = matrix.to(torch.float32 if exact else torch.bfloat16)
    x = x / x.norm().clamp_min(_LEAST)
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    for _ in range(ITERATIONS):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.T if tall else x).to(matrix.dtype)
