"""Which configurations of ``transformers`` the fused decoder computes, where, and whether in bfloat16."""

from __future__ import annotations

from typing import Any

import torch

from actors.engines.decoder.cpu.compiler import compiled_kernels
from actors.engines.decoder.cpu.records import LANES
from actors.engines.decoder.families import Undescribed, describe
from actors.engines.decoder.spec import (
    SILU,
    Attention,
    DecoderSpec,
    Experts,
    HeadNorms,
    Layer,
    Mlp,
    Norm,
    Norms,
)

CPU = torch.device("cpu")
COMPILED = (torch.float32, torch.bfloat16)  # types of keys and values


def spec_of(config: Any) -> DecoderSpec | None:
    """The description of a ``transformers`` configuration; None: there is none."""
    try:
        spec = describe(config)
    except Undescribed:
        return None
    own = any(attention.shares is None for attention in spec.attentions)  # an assistant has none
    return spec if own and spec.attention.width % 2 == 0 else None


def supports(config: Any, device: torch.device = CPU, dtype: torch.dtype = torch.float32) -> bool:
    """Whether the fused decoder computes that ``transformers`` configuration; if not, TransformersEngine does."""
    if device.type == "cpu":
        return compiled_spec(config, device, dtype) is not None
    return (spec := spec_of(config)) is not None and is_plain(spec)


def compiled_spec(config: Any, device: torch.device = CPU, dtype: torch.dtype = torch.float32) -> DecoderSpec | None:
    """The description of a configuration whose layers numba compiles there; None: it does not."""
    if device.type != "cpu" or dtype not in COMPILED:
        return None
    spec = spec_of(config)
    return spec if spec is not None and _compiles(spec) else None


def is_plain(spec: DecoderSpec) -> bool:
    """Whether it is of Llama's kind, which torch and Triton compute on a GPU."""
    first, mlp = spec.attention, spec.layers[0].mlp
    turning = first.rotation
    whole = turning is not None and 2 * len(turning.frequencies) == first.width and turning.stretch is None
    sizes, names = (spec.hidden, spec.vocabulary), (spec.embedding, spec.final_norm, spec.head)
    alike = all(layer == _plainly(layer, first, mlp.inner) for layer in spec.layers)
    return whole and alike and spec == DecoderSpec(*sizes, spec.layers, Norm(spec.norm.eps), *names)


def _plainly(layer: Layer, like: Attention, inner: int) -> Layer | None:
    """A layer of Llama's kind with the weights of another; None: it has not those."""
    own, mlp, norms = layer.attention, layer.mlp, layer.norms
    if own is None or isinstance(mlp, Experts) or None in (norms.attention, norms.mlp):
        return None
    head_norms = None if own.norms is None else HeadNorms(own.norms.query, own.norms.key)
    scale, named = like.width**-0.5, own.norms is None or own.norms.query is not None
    made = Attention(like.heads, like.kv_heads, like.width, scale, own.qkv, own.out, like.rotation, norms=head_norms)
    return Layer(made, Mlp(inner, SILU, mlp.up, mlp.down), Norms(norms.attention, norms.mlp)) if named else None


def _compiles(spec: DecoderSpec) -> bool:
    kernels = compiled_kernels()
    windows = {(attention.window, attention.chunked) for attention in spec.attentions if attention.window}
    convolutions = {mixer.kernel for mixer in spec.recurrent}
    if kernels is None or len(windows) > 1 or len(convolutions) > 1:
        return False
    latents = [attention.latent for attention in spec.attentions if attention.latent is not None]
    sizes = {size for latent in latents for size in (latent.rank, latent.turned, latent.query_rank)}
    sizes |= {attention.width for attention in spec.attentions}
    sizes |= set() if spec.inputs is None else {spec.inputs.width}
    for mixer in spec.recurrent:
        sizes |= {mixer.keys, mixer.values, mixer.normed}
    return not any(size % LANES for size in (spec.hidden, *spec.inner, *sizes))


def multiplies_bfloat16(config: Any) -> bool:
    """Whether products of bfloat16 are twice as fast there as those of float32."""
    kernels = compiled_kernels()
    return kernels is not None and kernels.HAS_BFLOAT16 and supports(config)
