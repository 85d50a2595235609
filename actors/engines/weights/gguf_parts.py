"""What tables of GGUF architectures are made of: names that many share, and how an architecture differs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from actors.engines.weights.gguf import GGUF
from actors.engines.weights.gguf_configs import Config
from actors.engines.weights.gguf_makers import Floats, as_it_is, stacked

Made = dict[str, tuple[tuple[str, ...], Callable[..., Floats]]]
Order = NDArray[np.int64]
Configure = Callable[[GGUF, Config], Config]

ATTENTION = {f"self_attn.{name}_proj": f"attn_{name}" for name in "qkv"} | {"self_attn.o_proj": "attn_output"}
MLP = {f"mlp.{name}_proj": f"ffn_{name}" for name in ("gate", "up", "down")}
QUERY_NORMS = {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}
IN_FRONT = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
STANDARD = ATTENTION | MLP | IN_FRONT
UNGATED = {"mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}


@dataclass(frozen=True, slots=True)
class Architecture:
    """What one ``general.architecture`` is called and how it differs."""

    model_type: str
    names: dict[str, str]  # names of a layer's parts: ours (Hugging Face's) to the file's
    config: Configure = lambda file, config: {}  # what is added to the usual configuration
    turned: bool = False  # queries and keys have the partners of a rotation side by side
    offset: bool = False  # norms hold w + 1, but for those of recurrent layers
    made: Made = field(default_factory=dict)  # out of several, or of one in another way
    varied: tuple[str, ...] = ()  # keys that may differ between layers: the usual configuration has the largest
    rows: dict[str, Callable[[Config], Order]] = field(default_factory=dict)  # row orders of parts with some of it
    outside: dict[str, str] = field(default_factory=dict)  # names besides the usual ones
    layers: str = "model.layers"
    numbers: dict[str, str] = field(default_factory=dict)  # parts that are metadata, with a number for each layer
    constants: dict[str, float] = field(default_factory=dict)  # weights of transformers' layers that files have equal


def plain(names: Mapping[str, str]) -> Made:
    """What is stored as it is, by names whole: ours to the file's."""
    return {ours: ((theirs,), as_it_is) for ours, theirs in names.items()}


def of_experts(part: str = "mlp") -> Made:
    both = ("ffn_gate_exps.weight", "ffn_up_exps.weight")
    down = plain({f"{part}.experts.down_proj": "ffn_down_exps.weight"})
    return {f"{part}.experts.gate_up_proj": (both, stacked), **down}


def of_convolution(part: str) -> Made:
    taps: Made = {f"{part}.conv1d.weight": (("ssm_conv1d.weight",), lambda taps: taps[:, None])}
    return taps | plain({f"{part}.conv1d.bias": "ssm_conv1d.bias"})


def of_scan(part: str = "mamba") -> Made:
    """Mamba 2 by its name in a layer."""
    return {
        **of_convolution(part),
        **plain({f"{part}.dt_bias": "ssm_dt.bias"}),
        f"{part}.A_log": (("ssm_a",), lambda rates: np.log(-rates).reshape(-1)),
        f"{part}.D": (("ssm_d",), lambda shares: shares.reshape(-1)),
        f"{part}.norm.weight": (("ssm_norm.weight",), lambda weight: weight.reshape(-1)),
    }
