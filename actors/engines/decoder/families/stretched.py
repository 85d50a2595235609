"""Frequencies of rotations for texts longer than those of the first training, with the bits of transformers' own.

Llama 3 divides those of long waves; YaRN (arXiv 2309.00071) mixes both, by how often a pair turns in the old context.
LongRoPE has found a divisor for each pair, once for texts of the old length and once for longer ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from actors.engines.decoder.spec import Longer


def llama3(parameters: Mapping[str, Any], frequencies: Tensor) -> Tensor:
    low, high = parameters["low_freq_factor"], parameters["high_freq_factor"]
    before, factor = parameters["original_max_position_embeddings"], parameters["factor"]
    waves = 2 * math.pi / frequencies
    divided = torch.where(waves > before / low, frequencies / factor, frequencies)
    smooth = (before / waves - low) / (high - low)
    mixed = (1 - smooth) * divided / factor + smooth * divided
    between = ~(waves < before / high) * ~(waves > before / low)
    return torch.where(between, mixed, divided)


def yarn(parameters: Mapping[str, Any], turned: int, longest: int) -> tuple[Tensor, float]:
    """Frequencies of ``turned`` dimensions, and the factor of cosines and sines. ``longest``: text of the model."""
    base = parameters["rope_theta"]
    before = parameters.get("original_max_position_embeddings") or longest
    factor = parameters.get("factor") or longest / before
    scale, scale_all = parameters.get("mscale"), parameters.get("mscale_all_dim")
    length = parameters.get("attention_factor")
    if length is None:
        length = _length(factor, scale) / _length(factor, scale_all) if scale and scale_all else _length(factor)

    def place(turns: float) -> float:
        """The dimension of the pair with ``turns`` turns in the old context."""
        return (turned * math.log(before / (turns * 2 * math.pi))) / (2 * math.log(base))

    first, last = place(parameters.get("beta_fast") or 32), place(parameters.get("beta_slow") or 1)
    if parameters.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, turned - 1)
    if first == last:
        last += 0.001
    kept = 1 - torch.clamp((torch.arange(turned // 2, dtype=torch.float32) - first) / (last - first), 0, 1)
    powers = base ** (torch.arange(0, turned, 2, dtype=torch.float) / turned)
    return 1.0 / (factor * powers) * (1 - kept) + 1.0 / powers * kept, length


def longrope(parameters: Mapping[str, Any], turned: int, longest: int) -> tuple[Tensor, float, Longer]:
    """Frequencies of ``turned`` dimensions in a short context, the factor of cosines and sines in any, and those of a
    long one. ``longest``: text of the model."""
    before = parameters["original_max_position_embeddings"]
    length, factor = parameters.get("attention_factor"), parameters.get("factor") or longest / before
    if length is None:
        length = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(before))
    powers = parameters["rope_theta"] ** (torch.arange(0, turned, 2, dtype=torch.float) / turned)
    short, long = (
        1.0 / (torch.tensor(parameters[f"{name}_factor"], dtype=torch.float) * powers) for name in ("short", "long")
    )
    return short, length, Longer(before, tuple(long.tolist()))


def _length(factor: float, scale: float = 1) -> float:
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0
