"""Linear layers of the generic engine on a CPU: weights packed once for the kernels that read them at every step.

oneDNN's packed kernels are faster than the default for few rows, and agree for most numbers of them
(:mod:`actors.engines.weights.rows`).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from actors.engines.decoder.cpu.compiler import compiled_kernels
from actors.engines.decoder.cpu.panels import Panels
from actors.engines.weights.huge_pages import HugePages
from actors.engines.weights.layers import Matrix
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


class PanelLinear(nn.Module):
    """``y = x W^T + b`` for float32 x ``(..., in)``, in a model of ``transformers``."""

    def __init__(self, panels: Panels) -> None:
        super().__init__()
        self.panels = panels

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1]).contiguous().numpy()
        return torch.from_numpy(self.panels.multiply(rows)).view(*x.shape[:-1], -1)


def quickest_linear(
    weight: Tensor, bias: Tensor | None, int8: bool, pages: HugePages | None = None
) -> nn.Module | None:
    """In panels for one thread in float32, of half the memory where 16 bits lose nothing, or of 8 bits; else by
    :func:`make_linear`."""
    if weight.device.type == "cpu" and weight.dtype == torch.float32 and torch.get_num_threads() == 1:
        kernels = compiled_kernels()
        if kernels is not None:
            matrix = Matrix(weight.detach(), None if bias is None else bias.detach())
            return PanelLinear(Panels(matrix, kernels.Team(0), int8, pages))
    return make_linear(weight, bias)


def pack_linears(
    model: nn.Module,
    make: Callable[[Tensor, Tensor | None], nn.Module | None] = make_linear,
) -> int:
    """Replace each ``nn.Linear`` of a model by what ``make`` returns. Returns how many were.

    Their float weights are freed, but for those of an output layer that shares them with the embedding."""
    replaced = 0
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear:
                layer = make(child.weight, child.bias)
                if layer is not None:
                    layer.weight = child.weight.new_empty(0)  # transformers' Mamba reads its output layer's dtype
                    setattr(module, name, layer)
                    replaced += 1
    return replaced
