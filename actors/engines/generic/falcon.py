"""Falcon's attention over slots.

transformers' calls torch itself instead of a function that can be replaced by name, and keeps the keys of one group of
heads once for each of its queries. Ours keeps them once. Where positions are slopes (ALiBi: falcon-rw) nothing is
replaced, and the model is refused, as others with such attention.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn

Attend = Callable[[nn.Module, Tensor, Tensor, Tensor], tuple[Tensor, None]]


def adopt_falcon(model: nn.Module, attend: Attend) -> bool:
    """Have the layers of a Falcon call ``attend`` as transformers calls its attention functions, and give it plain
    linear layers, which can be packed; whether it is one."""
    config: Any = model.config
    if config.model_type != "falcon" or config.alibi:
        return False
    from transformers.models.falcon.modeling_falcon import FalconAttention, FalconLinear, apply_rotary_pos_emb

    for module in model.modules():
        if isinstance(module, FalconAttention):
            module.forward = partial(_forward, module, attend, apply_rotary_pos_emb)
        elif isinstance(module, FalconLinear) and module.bias is None:
            module.__class__ = nn.Linear  # one with a bias rounds twice in 16 bits
    return True


def _forward(
    module: Any,
    attend: Attend,
    rotate: Callable[..., tuple[Tensor, Tensor]],
    hidden_states: Tensor,
    layer_past: Any = None,
    position_embeddings: tuple[Tensor, Tensor] | None = None,
    **rest: Any,
) -> tuple[Tensor, None]:
    """Of every kind of Falcon: the queries of a group of heads, then its key and its value; with one group for all of
    them (``multi_query``), or one for each."""
    assert position_embeddings is not None
    fused = module.query_key_value(hidden_states).unflatten(-1, (-1, module.head_dim))
    groups = (fused.shape[2] - module.num_heads) // 2
    fused = fused.unflatten(2, (groups, -1))
    query = fused[:, :, :, :-2].flatten(2, 3).transpose(1, 2)
    key, value = fused[:, :, :, -2].transpose(1, 2), fused[:, :, :, -1].transpose(1, 2)
    query, key = rotate(query, key, *position_embeddings)
    key, value = layer_past.update(key, value, module.layer_idx)
    out, weights = attend(module, query, key, value)
    return module.dense(out.flatten(2)), weights
