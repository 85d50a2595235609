"""The generic engine: runs any Hugging Face causal language model with transformers' own model code.

It needs three hooks into transformers: a cache with an ``update`` that writes keys and values into the given slots, an
attention function registered under a name of our own, which attends to each segment's part of the pool, and
``logits_to_keep``. It has no recurrent layers: a model that has some needs a description.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from actors.engines.cache.pool import KVPool, KVShape, attention_layers
from actors.engines.decoder.cpu.compiler import compiled_kernels
from actors.engines.decoder.cpu.engine import Threads
from actors.engines.decoder.families import describe
from actors.engines.engine import Trunk
from actors.engines.flat_batch import SPAN, WHOLE, FlatBatch
from actors.engines.generic.probe import Probe
from actors.engines.generic.rotary import choose_by_request
from actors.engines.generic.slots import SlotAttention, SlotCache, read_bytes, use_panels, without_owning
from actors.engines.measuring.bandwidth import memory_bandwidth
from actors.engines.weights.draft_vocabulary import draft_vocabulary
from actors.engines.weights.rows import FixedRows
from actors.models import ModelInfo
from protocols.errors import ModelError
from protocols.messages import Reading

CACHES = ("cache", "cache_params", "past_key_values")  # the argument's name since transformers 5.24, and before
_PLAIN_LAYERS = {"full_attention", "sliding_attention", "moe", "mlp"}
_names = itertools.count()


class TransformersEngine:
    """An :class:`actors.engines.engine.Engine`. One forward at a time; not thread-safe."""

    has_spare_cpus = False
    best: Tensor | None = None  # it only computes logits
    recurrence = None

    def use_spare_cpus(self, used: bool) -> None:
        raise NotImplementedError("it has none")

    def __init__(self, model: nn.Module, info: ModelInfo, slots: int, exact: bool = True) -> None:
        """Changes ``model``: its attention is replaced, and on a CPU with numba its linear layers. ``exact``: a row
        must have the bits of plain decoding, on every branch of a window; drafts do not need that. Raises ModelError
        for a model that cannot run in slots."""
        self.model: Any = model
        self.info = info
        parameter = next(model.parameters())
        self.device, self.dtype = parameter.device, parameter.dtype
        config: Any = model.config
        self.config: Any = config.get_text_config()
        shape = KVShape.of(self.config)
        if shape is None:
            raise self._refusal("num_attention_heads is missing or differs by layer")
        self.draft_vocabulary = draft_vocabulary(model)
        self.pool = KVPool(shape, slots, self.dtype, self.device, SPAN)
        self.cache = SlotCache(self.pool, attention_layers(self.config))
        self._attention = SlotAttention(self.cache, exact)
        self._fixed = exact and self.device.type == "cpu"
        use_experts: Any = getattr(model, "set_experts_implementation", None)
        if self._fixed and use_experts is not None:
            use_experts("eager")  # products by :class:`FixedRows`, added up in the order of the experts' numbers
        takes = inspect.signature(model.forward).parameters
        if self.cache.places and "position_ids" not in takes:  # it would count from its own cache, which holds nothing
            raise self._refusal("its code takes no positions")
        named = next((name for name in CACHES if name in takes), CACHES[-1])
        # transformers passes a mask with four dimensions on unchanged
        mask = torch.zeros(1, 1, 1, 1, dtype=torch.bool, device=self.device)
        self._options: dict[str, Any] = {named: self.cache, "attention_mask": mask, "use_cache": True}
        self.text_matters = choose_by_request(model, without_owning(self._attention, SlotAttention.lengths))
        self._adopt()
        self._threads = torch.get_num_threads()
        if self.device.type == "cpu" and compiled_kernels() is not None:
            use_panels(model, Threads.as_torchs().team)

    def reading(self) -> Reading:
        """Without bits a weight, which a smaller file would not change: what is read of its blocks is dequantised."""
        bandwidth = memory_bandwidth(self._threads) if self._fixed else 0.0
        read = read_bytes(self.model, self.config)
        return Reading(read, gigabytes=bandwidth, token_bytes=self.pool.slot_bytes)

    @torch.inference_mode()
    def _adopt(self) -> None:
        """Replace the model's attention by ours, and check that its logits stay the same.

        Many architectures do more than attend to a KV cache (chunked attention, latent caches, other recurrences). In
        slots they would run and give wrong logits. Raises ModelError for those.
        """
        if others := sorted(set(getattr(self.config, "layer_types", None) or ()) - _PLAIN_LAYERS):
            raise self._refusal(f"layer_types has {', '.join(others)}")
        try:
            probe = Probe(self, self.model, self.config) if self.device.type != "meta" else None
            if self.cache.places:
                self._replace_attention()
            alike = probe is None or probe.agrees()
        except (torch.OutOfMemoryError, ModelError):
            raise
        except Exception as error:
            raise self._refusal(f"its code fails there ({type(error).__name__})") from None
        if not alike:
            raise self._refusal("its logits become others there")

    def _replace_attention(self) -> None:
        attend = without_owning(self._attention, SlotAttention.__call__)
        name = f"duoactor_slots_{next(_names)}"
        AttentionInterface.register(name, attend)
        self.model.set_attn_implementation(name)
        if self.config._attn_implementation != name:
            raise self._refusal("its attention cannot be replaced")

    def _refusal(self, why: str) -> ModelError:
        """``why``: a sentence's part that names what cannot run."""
        try:
            describe(self.config)
            undescribed = ""
        except ModelError as error:
            undescribed = f", and {error}"
        return ModelError(
            f"model {self.info.model_id} ({type(self.model).__name__}) does not attend in the plain way that slots of "
            f"a KV pool allow: {why}{undescribed} (config.json); use a model of the Llama, Qwen, Mistral, Gemma or Phi "
            "families, or another that docs/families.md names"
        )

    @torch.inference_mode()
    def forward(self, batch: FlatBatch, select: Sequence[int] | None = None) -> Tensor:
        rows = len(batch.tokens if select is None else select)
        if self._fixed:
            batch = batch.padded(-len(batch.tokens) % WHOLE, self.pool.slots)
            select = None if select is None else [*select, *[select[-1]] * (-rows % WHOLE)]
        self._attention.begin(batch)
        ids, places = (torch.tensor([part], device=self.device) for part in (batch.tokens, batch.positions))
        with FixedRows() if self._fixed else nullcontext():
            out = self.model(
                input_ids=ids,
                position_ids=places,
                logits_to_keep=0 if select is None else torch.tensor(select, dtype=torch.int64, device=self.device),
                **self._options,
            )
        logits: Tensor = out.logits[0, :rows].float()
        return logits

    def trunk(self) -> Trunk:
        """See :class:`actors.engines.engine.Engine`: it has none to share."""
        raise self._headless()

    def tap(self, layers: Sequence[int]) -> None:
        raise self._headless()

    @property
    def tapped(self) -> Tensor:
        raise self._headless()

    def _headless(self) -> ModelError:
        return ModelError(
            f"a draft head reads targets that docs/families.md calls fused, and {self.info.model_id} is none; choose "
            "a draft model, by --draft, or --draft none"
        )

    def pick(self, *forward: object) -> None:
        """See :class:`actors.engines.engine.Engine`: it cannot choose tokens."""
