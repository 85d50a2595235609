"""Linear layers for the CPU: weights packed once for the kernels that read them at every step.

oneDNN's packed kernels are faster than the default for few rows, and agree for most numbers of them
(:mod:`actors.engines.weights.rows`).
"""

from __future__ import annotations

from collections.abc import Callable, Container

import torch
from torch import Tensor, nn

from actors.engines.weights.rows import packed_rows


def can_pack(dtype: torch.dtype) -> bool:
    """Whether oneDNN packs weights of a type on this machine."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32


class PackedLinear(nn.Module):
    """``y = x W^T + b`` for x ``(..., in)``, float32 or bfloat16, with oneDNN's weight layout."""

    def __init__(self, weight: Tensor, bias: Tensor | None, rows: int = 8) -> None:
        """``rows``: the row count that the memory layout is chosen for."""
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), rows)
        self.bias = None if bias is None else bias.detach()

    def multiply(self, x: Tensor) -> Tensor:
        """The products of rows ``(rows, in)``."""
        return packed_rows(self._product, x)

    def _product(self, x: Tensor) -> Tensor:
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
        return out

    def forward(self, x: Tensor) -> Tensor:
        return self.multiply(x.reshape(-1, self.in_features)).view(*x.shape[:-1], self.out_features)


def make_linear(weight: Tensor, bias: Tensor | None) -> nn.Module | None:
    """The fastest layer for that weight on this CPU; None: ``nn.Linear`` is."""
    return PackedLinear(weight, bias) if weight.device.type == "cpu" and can_pack(weight.dtype) else None


def pack_linears(
    model: nn.Module,
    make: Callable[[Tensor, Tensor | None], nn.Module | None] = make_linear,
    kept: Container[nn.Module] = (),
) -> int:
    """Replace each ``nn.Linear`` of a model, except those ``kept``, by what ``make`` returns. Returns how many were.

    Their float weights are freed, but for those of an output layer that shares them with the embedding."""
    replaced = 0
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear and child not in kept:
                layer = make(child.weight, child.bias)
                if layer is not None:
                    layer.weight = child.weight.new_empty(0)  # transformers' Mamba reads its output layer's dtype
                    setattr(module, name, layer)
                    replaced += 1
    return replaced
