"""Linear layers for the CPU: weights packed once for the kernels that read them at every step.

oneDNN's packed kernels are faster than the default for few rows, and agree for most numbers of them
(:mod:`actors.engines.weights.rows`). int8 is for draft models only: it changes the logits, which a draft may.
"""

from __future__ import annotations

import warnings
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
        """Of rows ``(rows, in)``."""
        return packed_rows(self._product, x)

    def _product(self, x: Tensor) -> Tensor:
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
        return out

    def forward(self, x: Tensor) -> Tensor:
        return self.multiply(x.reshape(-1, self.in_features)).view(*x.shape[:-1], self.out_features)


class Int8Linear(nn.Module):
    """``y = x W^T + b`` with int8 weights, one scale for each output, and activations that are quantised on the fly
    (fbgemm). Takes any float type."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        weight = weight.detach().float()
        scales = (weight.abs().amax(dim=1) / 127.0).clamp_(min=1e-8)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch.ao's deprecation warnings
            zeros = torch.zeros_like(scales, dtype=torch.int64)
            quantised = torch.quantize_per_channel(weight, scales.double(), zeros, 0, torch.qint8)
            self.packed = torch.ops.quantized.linear_prepack(quantised, None if bias is None else bias.detach().float())

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = torch.ops.quantized.linear_dynamic(x.float(), self.packed, True)
        return out.to(x.dtype)


def make_linear(weight: Tensor, bias: Tensor | None, int8: bool = False) -> nn.Module | None:
    """The fastest layer for that weight on this CPU; None: ``nn.Linear`` is."""
    if weight.device.type != "cpu":
        return None
    if int8:
        return Int8Linear(weight, bias)
    return PackedLinear(weight, bias) if can_pack(weight.dtype) else None


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
