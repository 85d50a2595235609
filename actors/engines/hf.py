"""Any Hugging Face causal language model as an engine, without model code of our own.

Three hooks into transformers do it: a cache whose ``update`` writes keys and values into the given slots, an attention
function registered under a name of our own, which looks at each segment's part of the pool, and ``logits_to_keep``.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.cache_utils import Cache

from actors.engines.attention import attend
from actors.engines.engine import Segment
from actors.engines.interface import ModelInfo
from actors.engines.linear import pack_linears
from actors.engines.pool import KVPool
from protocols.errors import ModelError

_names = itertools.count()


class SlotCache(Cache):
    """What transformers takes for a KV cache: it stores into the round's slots and hands the new keys back."""

    def __init__(self, pool: KVPool) -> None:
        super().__init__(layers=[])
        self.pool = pool
        self.slots: Tensor | None = None

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        self.pool.write(layer_idx, self.slots, key_states[0], value_states[0])  # type: ignore[arg-type]
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def get_max_cache_shape(self, layer_idx: int = 0) -> int:
        return self.pool.slots


class HFEngine:
    """See :class:`actors.engines.engine.Engine`. One forward at a time; not thread-safe."""

    def __init__(self, model: nn.Module, info: ModelInfo, slots: int, pack: bool = True, int8: bool = False) -> None:
        """Takes the model over: attention is replaced, and on a CPU its linear layers are packed."""
        self.model: Any = model
        self.info = info
        parameter = next(model.parameters())
        self.device, self.dtype = parameter.device, parameter.dtype
        config: Any = model.config
        self.config = config.get_text_config() if hasattr(config, "get_text_config") else config
        heads = self.config.num_attention_heads
        kv_heads = getattr(self.config, "num_key_value_heads", None) or heads
        width = getattr(self.config, "head_dim", None) or self.config.hidden_size // heads
        self.pool = KVPool(self.config.num_hidden_layers, kv_heads, width, slots, self.dtype, self.device)
        self.cache = SlotCache(self.pool)
        name = f"duoactor_slots_{next(_names)}"
        AttentionInterface.register(name, self._attention)
        self.model.set_attn_implementation(name)
        if self.config._attn_implementation != name:
            raise ModelError(
                f"model {info.model_id} ({type(model).__name__}) has its attention built in, so its KV cache cannot be "
                "addressed by slots; use a model of the Llama, Qwen, Mistral, Gemma or Phi families"
            )
        if pack and self.device.type == "cpu":
            pack_linears(model, int8)
        self._segments: Sequence[Segment] = ()
        self._masks: dict[tuple[int, int], Tensor] = {}
        self._positions: np.ndarray[Any, np.dtype[np.int64]] = np.zeros(0, dtype=np.int64)

    @torch.inference_mode()
    def forward(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        slots: Sequence[int],
        segments: Sequence[Segment],
        select: Sequence[int] | None = None,
    ) -> Tensor:
        keep = slice(None) if select is None else list(select)
        self._positions = np.asarray(positions, dtype=np.int64)
        self.pool.positions[np.asarray(slots)] = self._positions
        self._segments, self._masks = segments, {}
        self.cache.slots = torch.tensor(slots, dtype=torch.int64, device=self.device)
        ids = torch.tensor([list(tokens)], dtype=torch.int64, device=self.device)
        places = torch.tensor([list(positions)], dtype=torch.int64, device=self.device)
        out = self.model(
            input_ids=ids,
            position_ids=places,
            attention_mask=_FOUR_D.to(self.device),
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=0 if select is None else torch.tensor(keep, dtype=torch.int64, device=self.device),
        )
        logits: Tensor = out.logits[0].float()
        return logits

    def _attention(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        dropout: float = 0.0,
        sliding_window: int | None = None,
        softcap: float | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, None]:
        layer: int = module.layer_idx  # type: ignore[assignment]
        scale = scaling if scaling is not None else query.shape[-1] ** -0.5
        outs: list[Tensor] = []
        start = 0
        for index, segment in enumerate(self._segments):
            keys, values = self.pool.view(layer, segment.base, segment.span)
            mask = self._mask(index, start, sliding_window or 0)
            outs.append(attend(query[0, :, start : start + segment.rows], keys, values, mask, scale, softcap))
            start += segment.rows
        out = outs[0] if len(outs) == 1 else torch.cat(outs, dim=1)
        return out.transpose(0, 1).unsqueeze(0), None

    def _mask(self, index: int, start: int, window: int) -> Tensor:
        """Additive mask of a segment; made once a forward and kind of layer."""
        mask = self._masks.get((index, window))
        if mask is None:
            segment = self._segments[index]
            visible = segment.visible
            if window:
                rows = self._positions[start : start + segment.rows, None]
                slots = self.pool.positions[None, segment.base : segment.base + segment.span]
                visible = visible & (rows - slots < window)
            host = np.where(visible, np.float32(0), np.float32(-np.inf))
            mask = self._masks[index, window] = torch.from_numpy(host).to(self.device, self.dtype)
        return mask


_FOUR_D = torch.zeros(1, 1, 1, 1, dtype=torch.bool)  # transformers passes masks of four dimensions through unseen
