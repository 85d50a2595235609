"""The Llama family in ONNX Runtime: one call a forward, for drafters on a CPU (``pip install 'duoactor[onnx]'``)."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from actors.engines.engine import Segment
from actors.engines.fused.weights import Weights, supports, take_weights
from actors.engines.interface import ModelInfo
from actors.engines.onnx.pool import BLOCK, BlockPool
from protocols.errors import ConfigError, ModelError

PACKAGES = ("onnx", "onnxruntime")  # one builds the graph, one runs it
TURNS = 2048  # positions of the first rotation table; it doubles as texts grow
LARGEST = 2_000_000_000  # bytes of weights that a graph can hold
ADDED = np.array([-np.inf, 0], dtype=np.float32)  # to the scores of what is hidden and of what is visible


def require() -> None:
    """ConfigError that says what to install, if something is missing."""
    if any(importlib.util.find_spec(name) is None for name in PACKAGES):
        raise ConfigError("the ONNX engine is not installed; run: pip install 'duoactor[onnx]'")


def has_vnni() -> bool:
    """Whether this processor is known to add 8-bit products in 32 bits."""
    try:
        return "vnni" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False


class OnnxEngine:
    """See :class:`actors.engines.engine.Engine`. For drafts: a row's bits may depend on the rows beside it."""

    best = None

    def __init__(self, model: nn.Module, info: ModelInfo, slots: int, int8: bool = False, threads: int = 1) -> None:
        """Takes the weights out of a float32 ``transformers`` model on the CPU; the model is spent.

        ConfigError if packages are missing, ModelError if this engine cannot compute the model.
        """
        require()
        if not supports(model.config):
            raise ModelError(f"the ONNX engine does not know the family of model {info.model_id}; use engine auto")
        parameter = next(model.parameters())
        self.device, self.dtype = parameter.device, parameter.dtype
        if self.device.type != "cpu" or self.dtype != torch.float32:
            raise ModelError("the ONNX engine computes float32 or int8 on a CPU; choose those, or engine auto")
        self.info = info
        weights = take_weights(model)
        shape = weights.shape
        if weights.count() * (1 if int8 else 4) > LARGEST:
            raise ModelError(f"model {info.model_id} is too large for an ONNX graph (2 GB); use engine auto")
        self.pool = BlockPool(shape.layers, shape.kv_heads, shape.width, slots)
        self._session = _session(weights, int8, threads)
        self._embedding: NDArray[np.float32] = weights.embedding.numpy()
        self._group = shape.heads // shape.kv_heads
        self._past = [(f"keys_{i}", f"values_{i}") for i in range(shape.layers)]
        self._weights = weights
        weights.spend()
        self._turn(TURNS)

    def _turn(self, positions: int) -> None:
        turns: NDArray[np.complex64] = self._weights.turns(positions).numpy()
        self._cosines, self._sines = np.ascontiguousarray(turns.real), np.ascontiguousarray(turns.imag)

    def forward(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        slots: Sequence[int],
        segments: Sequence[Segment],
        select: Sequence[int] | None = None,
    ) -> Tensor:
        rows = len(tokens)
        where, places = np.asarray(slots), np.asarray(positions)
        self.pool.positions[where] = places
        last = max(positions)
        if last >= len(self._cosines):
            self._turn(1 << last.bit_length())
        blocks = [range(s.base // BLOCK, -(-(s.base + s.span) // BLOCK)) for s in segments]
        # one text is looked at where it lies; the blocks of several are brought together
        read = slice(blocks[0].start, blocks[0].stop) if len(blocks) == 1 else np.concatenate(blocks)
        seen = BLOCK * sum(map(len, blocks))
        mask = visible_to(where, segments, seen)
        if self._group > 1:
            mask = np.tile(mask, (self._group, 1))
        feeds: dict[str, NDArray[Any]] = {
            "embedded": self._embedding.take(tokens, 0)[None],
            "places": places[None],
            "cosines": self._cosines,
            "sines": self._sines,
            "mask": mask,
            "parts": np.array((seen, rows)),
            "keep": np.arange(rows) if select is None else np.asarray(select),
        }
        pool = self.pool
        for (key, value), keys, values in zip(self._past, pool.keys, pool.values, strict=True):
            feeds[key], feeds[value] = keys[read], values[read]
        logits, keys, values = self._session.run(("logits", "new_keys", "new_values"), feeds)
        new = (len(self._past), -1, rows, keys.shape[-1])
        pool.write(where, keys.reshape(new), values.reshape(new))
        return torch.from_numpy(logits[0])


def visible_to(where: NDArray[np.int64], segments: Sequence[Segment], seen: int) -> NDArray[np.float32]:
    """What is added to the scores ``(rows, seen + rows)``: 0 or -inf, for the blocks of every segment and then for
    the rows themselves. Their slots are hidden in the pool, which holds what was there before."""
    first = segments[0]
    if first.span == seen:  # one text from edge to edge of its blocks, as drafters ask
        old = ADDED.take(first.visible.view(np.uint8))
        own = where - first.base
        new = old[:, own]
        old[:, own] = -np.inf
        return np.concatenate([old, new], axis=1)
    rows = len(where)
    mask = np.full((rows, seen + rows), -np.inf, dtype=np.float32)
    row = block = 0
    for segment in segments:
        end, start = row + segment.rows, block * BLOCK + segment.base % BLOCK
        own = where[row:end] - segment.base
        old = mask[row:end, start : start + segment.span]
        old[segment.visible] = 0
        mask[row:end, seen + row : seen + end] = old[:, own]
        old[:, own] = -np.inf
        row, block = end, block + -(-(segment.base % BLOCK + segment.span) // BLOCK)
    return mask


def _session(weights: Weights, int8: bool, threads: int) -> Any:
    import onnxruntime

    from actors.engines.onnx.graph import build

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    graph = build(weights, int8, has_vnni()).SerializeToString()
    return onnxruntime.InferenceSession(graph, options, ["CPUExecutionProvider"])
