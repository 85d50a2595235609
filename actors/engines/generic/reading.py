"""What one token's forward reads of the weights of a transformers model."""

from __future__ import annotations

from typing import Any

from torch import nn

from actors.engines.generic.linears import PackedLinear, PanelLinear


def read_bytes(model: nn.Module, config: Any) -> int:
    """As the weights lie, packed ones included; of an embedding a row, of experts the chosen ones."""
    count = getattr(config, "num_local_experts", 0) or getattr(config, "num_experts", 0) or 0
    share = getattr(config, "num_experts_per_tok", count) / count if count else 1.0
    return int(sum((share if "experts" in name else 1.0) * _own(module) for name, module in model.named_modules()))


def _own(module: nn.Module) -> int:
    if isinstance(module, nn.Embedding):
        return 0
    if isinstance(module, PanelLinear):
        return int(module.panels.size)
    if isinstance(module, PackedLinear):
        return int(module.out_features * module.in_features * module.packed.element_size())
    return sum(weight.numel() * weight.element_size() for weight in module.parameters(recurse=False))
