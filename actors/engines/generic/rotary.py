"""Rotary embeddings with frequencies by a text's length: here each request's own, not the batch's longest.

LongRoPE (Phi-3's long variants; arXiv 2402.13753) has one set of frequencies for texts up to the length of its first
training and another for longer ones. ``transformers`` picks by the largest position of the forward: in a batch of
several requests a short one would get other bits because of a long neighbour, and a text that grows across the
boundary would mix keys of both sets in its cache (its ``generate`` starts over there). Here a request has one set from
its first token to its last, that of the longest text it may become: prompt and ``max_tokens``. So its bits depend on
the request alone and are those of ``generate`` unless the text crosses the boundary on the way.

Dynamic NTK scaling changes the frequencies beyond ``max_position_embeddings`` only, where no request reaches; rows
that fill a batch are kept below it too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

Lengths = Callable[[], NDArray[np.int64]]  # (rows,): the length to which each row's text may grow


def choose_by_request(model: nn.Module, lengths: Lengths) -> bool:
    """Make the model's rotary embeddings choose row by row; whether it has any that choose."""
    found = list(_choosing(model))
    for module, kinds in found:
        _replace(module, kinds, lengths)
    return bool(found)


def _choosing(model: nn.Module) -> Iterator[tuple[nn.Module, dict[str | None, str]]]:
    """Rotary modules and their kinds of frequencies by type of layer (None: one kind for all)."""
    for module in model.modules():
        kinds = getattr(module, "rope_type", None)
        if isinstance(kinds, str):
            kinds = {None: kinds}
        if isinstance(kinds, dict) and any(kind == "longrope" or "dynamic" in kind for kind in kinds.values()):
            yield module, kinds


def _replace(module: Any, kinds: dict[str | None, str], lengths: Lengths) -> None:
    plain = module.forward
    parameters, most = module.config.rope_parameters, int(module.config.max_position_embeddings)

    def forward(x: Tensor, position_ids: Tensor, layer_type: str | None = None) -> tuple[Tensor, Tensor]:
        options = {} if layer_type is None else {"layer_type": layer_type}
        kind = kinds.get(layer_type, "default")
        if "dynamic" in kind:
            return plain(x, position_ids.clamp(max=most - 1), **options)  # type: ignore[no-any-return]
        if kind != "longrope":
            return plain(x, position_ids, **options)  # type: ignore[no-any-return]
        own = parameters if layer_type is None else parameters[layer_type]
        edge = int(own["original_max_position_embeddings"])
        grows = lengths() > edge
        near = plain(x, position_ids.clamp(max=edge - 1), **options)
        if not grows.any():
            return near  # type: ignore[no-any-return]
        # a position at the edge, thrown away, makes the forward one of long texts
        raised = torch.cat([position_ids, position_ids.new_full((1, 1), edge)], dim=1)
        cos, sin = (part[:, :-1] for part in plain(x, raised, **options))
        choice = torch.from_numpy(grows).to(cos.device)[None, :, None]
        return torch.where(choice, cos, near[0]), torch.where(choice, sin, near[1])

    module.forward = forward
