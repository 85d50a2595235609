"""The generic engine: runs any Hugging Face causal language model with transformers' own model code.

It needs three hooks into transformers: a cache with an ``update`` that writes keys and values into the given slots, an
attention function registered under a name of our own, which attends to each segment's part of the pool, and
``logits_to_keep``. Recurrent layers are handled by :mod:`actors.engines.generic.recurrence`.
"""

from __future__ import annotations

import inspect
import itertools
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import AttentionInterface

from actors.engines.cache.pool import KVPool, KVShape, attention_layers
from actors.engines.decoder.torch.attention import PoolAttention, Stretch
from actors.engines.decoder.torch.branches import View, view
from actors.engines.engine import PerRow, Trunk
from actors.engines.flat_batch import SPAN, FlatBatch, Segment
from actors.engines.generic.falcon import adopt_falcon
from actors.engines.generic.reading import read_bytes
from actors.engines.generic.recurrence import (
    RECURRENT_LAYERS,
    GenericRecurrence,
    GenericState,
    StateCache,
    recurrent_layers,
)
from actors.engines.generic.rotary import choose_by_request
from actors.engines.measuring.bandwidth import memory_bandwidth
from actors.engines.weights.draft_vocabulary import draft_vocabulary
from actors.engines.weights.huge_pages import HugePages
from actors.engines.weights.packed import pack_linears
from actors.engines.weights.panels import quickest_linear
from actors.engines.weights.rows import FixedRows
from actors.models import ModelInfo
from protocols.errors import ModelError
from protocols.messages import Reading

# Rows that an exact forward on a CPU is filled up to a multiple of: torch computes what is left behind the last whole
# vector by other code, with other bits (a softmax over four experts).
WHOLE = 16
PROBE = 24  # tokens on which a model is compared with itself before and after its attention is replaced
NORMS = ("norm", "final_layernorm", "embedding_norm", "ln_f", "final_norm")  # what lies behind the last layer
_PLAIN_LAYERS = {"full_attention", "sliding_attention", "moe", "mlp"}
_names = itertools.count()


class SlotCache(StateCache):
    """A KV cache for transformers: it writes into the slots of the forward, and returns only the new keys and values,
    since the attention function reads the pool."""

    def __init__(self, pool: KVPool, layers: Sequence[int]) -> None:
        """``layers``: indices of the attending layers, in the pool's order."""
        super().__init__()
        self.pool = pool
        self.places = {layer: place for place, layer in enumerate(layers)}
        self.slots: Tensor | None = None

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        self.pool.write(self.places[layer_idx], self.slots, key_states[0], value_states[0])  # type: ignore[arg-type]
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def get_max_cache_shape(self, layer_idx: int = 0) -> int:
        return self.pool.slots


RECURRENT_SINCE = (5, 21)  # before, its models looked into a cache's layers by themselves


def _version(name: str) -> tuple[int, ...]:
    """The first two numbers."""
    return tuple(int(part) for part in name.split(".")[:2])


class TransformersEngine:
    """An :class:`actors.engines.engine.Engine`. One forward at a time; not thread-safe."""

    has_spare_cpus = False

    def use_spare_cpus(self, used: bool) -> None:
        raise NotImplementedError("it has none")

    def __init__(
        self, model: nn.Module, info: ModelInfo, slots: int, pack: bool = True, int8: bool = False, exact: bool = True
    ) -> None:
        """Changes ``model``: its attention is replaced, and on a CPU, with ``pack``, its linear layers are packed.
        ``exact``: a row must have the bits of plain decoding, on every branch of a window; drafts do not need that.
        Raises ModelError for a model that cannot run in slots."""
        self.model: Any = model
        self.info = info
        parameter = next(model.parameters())
        self.device, self.dtype = parameter.device, parameter.dtype
        config: Any = model.config
        self.config: Any = config.get_text_config()
        shape = KVShape.of(self.config)
        if shape is None:
            raise self._refusal()
        self.draft_vocabulary = draft_vocabulary(model)
        self.best: Tensor | None = None  # it only computes logits
        self.pool = KVPool(shape, slots, self.dtype, self.device, SPAN)
        self.cache = SlotCache(self.pool, attention_layers(self.config))
        self.recurrence: GenericRecurrence | None = None
        self._exact = exact
        self._fixed = exact and self.device.type == "cpu"
        self._products: Callable[[], AbstractContextManager[object]] = FixedRows if self._fixed else nullcontext
        use_experts: Any = getattr(model, "set_experts_implementation", None)
        if self._fixed and use_experts is not None:
            use_experts("eager")  # products by :class:`FixedRows`, added up in the order of the experts' numbers
        self._tapped: dict[int, Tensor] = {}  # by layer
        self._hooks: list[RemovableHandle] = []
        self._segments: Sequence[Segment] = ()
        self._views: Sequence[View] = ()
        self._attentions: dict[int, PoolAttention] = {}
        self._positions: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        # transformers passes a mask with four dimensions on unchanged
        self._four_d = torch.zeros(1, 1, 1, 1, dtype=torch.bool, device=self.device)
        takes = inspect.signature(model.forward).parameters
        self._cache_name = "cache_params" if "cache_params" in takes else "past_key_values"
        self.text_matters = choose_by_request(model, _without_owning(self, TransformersEngine.lengths))
        self._adopt()
        if pack and self.device.type == "cpu":
            kept = self.recurrence.inner if self.recurrence else ()
            pack_linears(model, partial(quickest_linear, int8=int8, pages=HugePages()), kept)

    def reading(self) -> Reading:
        """Without bits a weight, which a smaller file would not change: what is read of its blocks is dequantised."""
        beside = 0 if self.recurrence is None else self.recurrence.stream_bytes
        bandwidth = memory_bandwidth(torch.get_num_threads()) if self._fixed else 0.0
        read = read_bytes(self.model, self.config)
        return Reading(read, gigabytes=bandwidth, token_bytes=self.pool.slot_bytes, stream_bytes=beside)

    @torch.inference_mode()
    def _adopt(self) -> None:
        """Replace the model's attention by ours, and check that its logits stay the same.

        Many architectures do more than attend to a KV cache (chunked attention, latent caches, other recurrences). In
        slots they would run and give wrong logits. Raises ModelError for those.
        """
        recurrent = recurrent_layers(self.model)
        known = _PLAIN_LAYERS | RECURRENT_LAYERS if recurrent else _PLAIN_LAYERS
        if set(getattr(self.config, "layer_types", None) or ()) - known:
            raise self._refusal()
        if recurrent and _version(transformers.__version__) < RECURRENT_SINCE:
            needed = ".".join(map(str, RECURRENT_SINCE))
            raise ModelError(
                f"model {self.info.model_id} has recurrent layers, which need transformers {needed} or newer; "
                f"{transformers.__version__} is installed: pip install -U transformers"
            )
        compare = self.device.type != "meta"
        tokens = [7919 * (i + 1) % self.info.vocab_size for i in range(min(PROBE, self.pool.slots))]
        ids = torch.tensor([tokens], dtype=torch.int64, device=self.device)
        try:
            expected = self.model(input_ids=ids, use_cache=False).logits[0].float() if compare else None
            if self.cache.places:
                attend = _without_owning(self, TransformersEngine.attention)
                if not adopt_falcon(self.model, attend):
                    name = f"duoactor_slots_{next(_names)}"
                    AttentionInterface.register(name, attend)
                    self.model.set_attn_implementation(name)
                    if self.config._attn_implementation != name:
                        raise self._refusal()
            if recurrent:
                self.recurrence = GenericRecurrence(recurrent, self.config.hidden_size, self.cache)
            if expected is None:
                return
            if self.recurrence is None:
                found = self._probe(tokens, 0, len(tokens))
            else:
                found = self._probe_recurrence(self.recurrence, tokens, expected)
        except (torch.OutOfMemoryError, ModelError):
            raise
        except Exception:
            raise self._refusal() from None
        if not self._agree(found, expected):
            raise self._refusal()

    def _probe(
        self, tokens: Sequence[int], start: int, end: int, state: GenericState | None = None, prompt: bool = False
    ) -> Tensor:
        places, batch = [*range(start, end)], FlatBatch()
        visible = np.tri(end - start, end, start, dtype=np.bool_)
        segment = batch.add(0, tokens[start:end], places, places, visible)
        segment.state, segment.prompt = state, prompt
        return self.forward(batch)

    def _probe_recurrence(self, recurrence: GenericRecurrence, tokens: Sequence[int], expected: Tensor) -> Tensor:
        """The logits of ``tokens``: of the first half as a piece of a prompt, of the rest as rows of a window. Also
        finds out whether the next piece of a prompt can start from a state."""
        half = len(tokens) // 2
        state = recurrence.new()
        begun = self._probe(tokens, 0, half, state, prompt=True)
        state.keep(range(half))
        rest = self._probe(tokens, half, len(tokens), state)
        recurrence.rows_agree = bool((rest == self._probe_siblings(tokens, half, state)).all())
        recurrence.continues = self._agree(self._probe(tokens, half, len(tokens), state, prompt=True), expected[half:])
        recurrence.stream_bytes = 2 * state.bytes
        return torch.cat([begun, rest])

    def _probe_siblings(self, tokens: Sequence[int], start: int, state: GenericState) -> Tensor:
        """The logits of the tokens from ``start`` on, each but the first as one of three equal siblings."""
        rows = len(tokens) - start
        chain = [0, *range(1, 3 * rows - 3, 3)]
        parents = [-1, *(max(0, row // 3 * 3 - 2) for row in range(3 * rows - 3))]
        depths = [0, *(1 + row // 3 for row in range(3 * rows - 3))]
        count = len(parents)
        visible = np.zeros((count, start + count), dtype=np.bool_)
        visible[:, :start] = True
        for row, parent in enumerate(parents):
            visible[row, start:] = visible[parent, start:] if parent >= 0 else False
            visible[row, start + row] = True
        places, slots = [start + depth for depth in depths], [*range(start, start + count)]
        batch = FlatBatch()
        segment = batch.add(0, [tokens[place] for place in places], places, slots, visible)
        segment.state, segment.parents = state, parents
        return self.forward(batch)[chain]

    def _agree(self, found: Tensor, expected: Tensor) -> bool:
        tolerance = 0.01 if self.dtype == torch.float32 else 0.15
        return bool((found - expected).norm() <= tolerance * expected.norm())  # False if there is a NaN

    def _refusal(self) -> ModelError:
        return ModelError(
            f"model {self.info.model_id} ({type(self.model).__name__}) does not attend in the plain way that slots of "
            "a KV pool allow; use a model of the Llama, Qwen, Mistral, Gemma or Phi families, or another that "
            "docs/families.md names"
        )

    @torch.inference_mode()
    def forward(self, batch: FlatBatch, select: Sequence[int] | None = None) -> Tensor:
        rows = len(batch.tokens if select is None else select)
        if self._fixed and not (self.recurrence and batch.segments[0].prompt):  # which would be computed alone
            batch = batch.padded(-len(batch.tokens) % WHOLE, self.pool.slots)
            select = None if select is None else [*select, *[select[-1]] * (-rows % WHOLE)]
        self._positions = np.asarray(batch.positions, dtype=np.int64)
        self.pool.positions[np.asarray(batch.slots)] = self._positions
        self._segments, self._attentions = batch.segments, {}
        self._views = [view(each, SPAN) if self._exact else View(each.visible) for each in batch.segments]
        if self.recurrence is not None:
            self.recurrence.begin(batch.segments, self.device)
        self.cache.slots = torch.tensor(batch.slots, dtype=torch.int64, device=self.device)
        ids = torch.tensor([batch.tokens], dtype=torch.int64, device=self.device)
        places = torch.tensor([batch.positions], dtype=torch.int64, device=self.device)
        with self._products():
            out = self.model(
                input_ids=ids,
                position_ids=places,
                attention_mask=self._four_d,
                use_cache=True,
                **{self._cache_name: self.cache},
                logits_to_keep=0 if select is None else torch.tensor(select, dtype=torch.int64, device=self.device),
            )
        logits: Tensor = out.logits[0, :rows].float()
        return logits

    def trunk(self) -> Trunk:
        model, config = self.model, self.config
        norm = next(getattr(self._decoder, name) for name in NORMS if hasattr(self._decoder, name))
        cap = getattr(config, "final_logit_softcapping", None)

        def logits(x: Tensor) -> Tensor:
            found: Tensor = model.get_output_embeddings()(x).float() * getattr(config, "logit_scale", 1.0)
            return found if not cap else cap * torch.tanh(found / cap)

        def linear(weight: Tensor) -> PerRow:
            weight = weight.to(self.device, self.dtype)
            layer = quickest_linear(weight, None, False) if self.device.type == "cpu" else None
            return layer or (lambda x: nn.functional.linear(x, weight))

        return Trunk(
            *(config.hidden_size, len(self._decoder.layers), self.info.vocab_size, self.device, self.dtype),
            *(model.get_input_embeddings(), norm, logits, linear),
        )

    @property
    def _decoder(self) -> Any:
        """The module with the layers."""
        found = [each for each in self.model.modules() if isinstance(getattr(each, "layers", None), nn.ModuleList)]
        deepest = next((each for each in found if len(each.layers) == self.config.num_hidden_layers), None)
        if deepest is None or not any(hasattr(deepest, name) for name in NORMS):
            raise ModelError(f"model {self.info.model_id} shows no layers and no last norm, which a draft head needs")
        return deepest

    def tap(self, layers: Sequence[int]) -> None:
        """See :class:`actors.engines.engine.Engine`."""
        owner, modules = weakref.ref(self), self._decoder.layers

        def keep(layer: int, states: Tensor) -> None:
            if (engine := owner()) is not None:
                engine._tapped[layer] = states[0] if isinstance(states, tuple) else states

        for hook in self._hooks:
            hook.remove()
        self._tapped = dict.fromkeys(layers, torch.empty(0))
        self._hooks = [
            modules[layer].register_forward_pre_hook(
                lambda _, args, options, layer=layer: keep(layer, args[0] if args else options["hidden_states"]),
                with_kwargs=True,
            )
            if layer < len(modules)
            else modules[-1].register_forward_hook(lambda _, args, out, layer=layer: keep(layer, out))
            for layer in layers
        ]

    @property
    def tapped(self) -> Tensor:
        """See :class:`actors.engines.engine.Engine`."""
        return torch.cat([states[0] for states in self._tapped.values()], 1)

    def pick(self, *forward: object) -> None:
        """See :class:`actors.engines.engine.Engine`: it cannot choose tokens."""

    def attention(self, module: nn.Module, query: Tensor, *given: object, **options: Any) -> tuple[Tensor, None]:
        """The attention function that transformers calls in every layer, with query ``(1, heads, n, d)``. Returns
        ``(1, n, heads, d)``. Of ``options``, ``s_aux``: see ``sinks`` of :class:`PoolAttention`."""
        window, scale = options.get("sliding_window") or 0, options.get("scaling")
        look = self._attentions.get(window)
        if look is None:  # made once for each forward and kind of layer
            scale = query.shape[-1] ** -0.5 if scale is None else scale
            stretches, cap = self._stretches(window), options.get("softcap")
            look = PoolAttention(self.pool, stretches, query.shape[1], scale, cap)
            self._attentions[window] = look
        place = self.cache.places[module.layer_idx]  # type: ignore[index]
        out = look(place, query[0].transpose(0, 1), options.get("s_aux"))
        return out.view(1, query.shape[2], query.shape[1], -1), None

    def lengths(self) -> NDArray[np.int64]:
        """For every row of the forward under way, how long its request's text may become."""
        # the plain forward that a model is compared with has no segments
        rows = [segment.rows for segment in self._segments] or [1]
        return np.repeat([segment.text for segment in self._segments] or [0], rows)

    def _stretches(self, window: int) -> list[Stretch]:
        """The segments with additive masks, of layers that look back ``window`` tokens (0: all of them)."""
        stretches: list[Stretch] = []
        start = 0
        for segment, look in zip(self._segments, self._views, strict=True):
            visible = look.visible
            if window:
                rows = self._positions[start : start + segment.rows, None]
                slots = np.append(np.arange(segment.base, segment.base + segment.span), look.copies)
                visible = visible & (rows - self.pool.positions[slots] < window)
            host = np.where(visible, np.float32(0), np.float32(-np.inf))
            stretches.append(Stretch(segment.base, segment.span, torch.from_numpy(host).to(self.device), look.copies))
            start += segment.rows
        return stretches


def _without_owning(engine: TransformersEngine, method: Callable[..., Any]) -> Callable[..., Any]:
    """transformers keeps its arguments for ever: this does not keep the engine, its weights and its pool."""
    owner = weakref.ref(engine)

    def call(*args: Any, **kwargs: Any) -> Any:
        engine = owner()
        assert engine is not None, "the engine outlives its model"
        return method(engine, *args, **kwargs)

    return call
