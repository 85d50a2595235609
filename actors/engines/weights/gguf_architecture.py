"""What one GGUF architecture is called in Hugging Face's words, and how its file differs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actors.engines.weights.gguf import GGUF

Config = dict[str, Any]
Floats = NDArray[np.float32]
Made = dict[str, tuple[tuple[str, ...], Callable[..., Floats]]]
Order = NDArray[np.int64]

ATTENTION = {f"self_attn.{name}_proj": f"attn_{name}" for name in "qkv"} | {"self_attn.o_proj": "attn_output"}
MLP = {f"mlp.{name}_proj": f"ffn_{name}" for name in ("gate", "up", "down")}
QUERY_NORMS = {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}
IN_FRONT = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
STANDARD = ATTENTION | MLP | IN_FRONT
SANDWICH = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
BEHIND_ATTENTION = {"input_layernorm": "attn_norm", "post_attention_layernorm": "post_attention_norm"}


@dataclass(frozen=True, slots=True)
class Architecture:
    """What one ``general.architecture`` is called and how it differs."""

    model_type: str
    names: dict[str, str]  # of a layer's parts: ours (Hugging Face's) to the file's
    config: Callable[[GGUF, Config], Config] = lambda file, config: {}  # what is added to the usual configuration
    turned: bool = False  # queries and keys have the partners of a rotation side by side
    offset: bool = False  # norms hold w + 1, but for those of recurrent layers
    made: Made = field(default_factory=dict)  # out of several
    varied: tuple[
        str, ...
    ] = ()  # keys that may differ between layers, of which the usual configuration has the largest
    rows: dict[str, Callable[[Config], Order]] = field(default_factory=dict)  # of a part that has some of a tensor's
    outside: dict[str, str] = field(default_factory=dict)  # names beside the usual ones


def every(period: int, layers: int) -> list[str]:
    return ["sliding_attention" if (i + 1) % period else "full_attention" for i in range(layers)]
