"""Which configurations of ``transformers`` the fused decoder computes, where, and whether in bfloat16."""

from __future__ import annotations

from typing import Any

import torch

from actors.engines.decoder.cpu.compiler import compiled_kernels, fits
from actors.engines.decoder.families import Undescribed, describe
from actors.engines.decoder.spec import SILU, DecoderSpec, Experts

CPU = torch.device("cpu")
COMPILED = (torch.float32, torch.bfloat16)  # types of keys and values


def spec_of(config: Any) -> DecoderSpec | None:
    """The description of a ``transformers`` configuration; None: there is none."""
    try:
        spec = describe(config)
    except Undescribed:
        return None
    return spec if spec.attentions and spec.attention.width % 2 == 0 else None


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
    turning = spec.attention.rotation
    whole = turning is not None and 2 * len(turning.frequencies) == spec.attention.width
    if not whole or spec.norm.centred or spec.norm.offset or spec.logit_cap:
        return False
    if (spec.embedding_scale, spec.residual_scale, spec.logit_scale) != (1.0, 1.0, 1.0):
        return False
    if len({(one.heads, one.kv_heads, one.width) for one in spec.attentions}) > 1 or spec.inputs is not None:
        return False
    for layer in spec.layers:
        attention, mlp, norms = layer.attention, layer.mlp, layer.norms
        if attention is None or attention.gated:
            return False
        if isinstance(mlp, Experts) or mlp.inner != spec.dense[0].inner:
            return False
        if layer.parallel or None in (norms.attention, norms.mlp) or norms.behind_attention or norms.behind_mlp:
            return False
        if attention.latent or attention.window or attention.cap or attention.sinks:
            return False
        if attention.shares is not None or attention.value_norm or layer.scale:
            return False
        if attention.unit_norm or attention.whole_norm or (turning is not None and turning.stretch):
            return False
        if attention.rotation != turning or attention.scale != attention.width**-0.5:
            return False
        if mlp.activation != SILU or not mlp.gated:
            return False
    return True


def _compiles(spec: DecoderSpec) -> bool:
    kernels = compiled_kernels()
    windows = {(attention.window, attention.chunked) for attention in spec.attentions if attention.window}
    convolutions = {mixer.kernel for mixer in spec.recurrent}
    if kernels is None or len(windows) > 1 or len(convolutions) > 1:
        return False
    latents = [attention.latent for attention in spec.attentions if attention.latent is not None]
    sizes = {latent.rank for latent in latents} | {latent.turned for latent in latents}
    sizes |= {attention.width for attention in spec.attentions}
    sizes |= set() if spec.inputs is None else {spec.inputs.width}
    for mixer in spec.recurrent:
        sizes |= {mixer.keys, mixer.values, mixer.normed}
    return fits(kernels.LANES, spec.hidden, *spec.inner, *sizes)


def multiplies_bfloat16(config: Any) -> bool:
    """Whether products of bfloat16 are twice as fast there as those of float32."""
    kernels = compiled_kernels()
    return kernels is not None and kernels.HAS_BFLOAT16 and supports(config)
