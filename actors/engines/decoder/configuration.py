"""The configurations of ``transformers`` that the fused decoder computes, on which device, and whether in bfloat16."""

from __future__ import annotations

from typing import Any

import torch

from actors.engines.decoder.cpu.compiler import compiled_kernels
from actors.engines.decoder.cpu.records import LANES
from actors.engines.decoder.families import Undescribed, describe
from actors.engines.decoder.spec import DecoderSpec, Selective

CPU = torch.device("cpu")
COMPILED = (torch.float32, torch.bfloat16)  # types of keys and values


def described(config: Any) -> DecoderSpec:
    """The description of a ``transformers`` configuration. Raises Undescribed, with the reason."""
    spec = describe(config)
    if spec.attentions and all(attention.shares is not None for attention in spec.attentions):
        raise Undescribed("its layers read the keys of another model")
    if any(attention.width % 2 for attention in spec.attentions):
        raise Undescribed("the width of a head is odd")
    return spec


def spec_of(config: Any) -> DecoderSpec | None:
    """The description of a ``transformers`` configuration; None: there is none."""
    try:
        return described(config)
    except Undescribed:
        return None


def compiled_spec(config: Any, device: torch.device = CPU, dtype: torch.dtype = torch.float32) -> DecoderSpec | None:
    """The description of a configuration, if numba compiles its layers there; None: torch computes them."""
    if device.type != "cpu" or dtype not in COMPILED:
        return None
    spec = spec_of(config)
    return spec if spec is not None and _compiles(spec) else None


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
        sizes |= {mixer.keys, mixer.values, mixer.normed, *([mixer.rank] if isinstance(mixer, Selective) else [])}
    return not any(size % LANES for size in (spec.hidden, *spec.inner, *sizes))


def multiplies_bfloat16(config: Any) -> bool:
    """Whether products of bfloat16 are twice as fast there as those of float32."""
    kernels = compiled_kernels()
    return kernels is not None and kernels.HAS_BFLOAT16 and compiled_spec(config) is not None
