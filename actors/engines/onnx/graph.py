"""The fused decoder's forward as one ONNX graph.

The pool is read where it lies: it comes in as blocks of slots (see :class:`actors.engines.onnx.pool.BlockPool`), and
what is joined to the new rows' own part are scores, never keys or values.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from torch import Tensor

from actors.engines.fused.weights import Layer, Matrix, Shape, Weights
from actors.engines.onnx.pool import BLOCK

CONTRIB = "com.microsoft"  # ONNX Runtime's own operations
OPSET = 18
IR = 10
EMBEDDED, PLACES, COSINES, SINES, MASK, PARTS, KEEP = (
    "embedded", "places", "cosines", "sines", "mask", "parts", "keep")  # fmt: skip
LOGITS, NEW_KEYS, NEW_VALUES = "logits", "new_keys", "new_values"


def past(layer: int) -> tuple[str, str]:
    """The names of a layer's keys and values among the inputs."""
    return f"keys_{layer}", f"values_{layer}"


def quantised(weight: NDArray[np.float32], vnni: bool) -> tuple[NDArray[Any], NDArray[np.float32], NDArray[Any]]:
    """8-bit weights ``(in, out)``, and for each output its scale and its zero."""
    scales = np.maximum(np.abs(weight).max(axis=1) / np.float32(127), np.float32(1e-8))
    table = np.rint(weight.T / scales)
    if vnni:
        return table.astype(np.int8), scales, np.zeros(len(scales), dtype=np.int8)
    return (table + 128).astype(np.uint8), scales, np.full(len(scales), 128, dtype=np.uint8)


def build(weights: Weights, int8: bool, vnni: bool) -> ModelProto:
    """The graph of a decoder over a pool in blocks of ``BLOCK`` slots.

    Inputs: ``embedded`` float32 ``(1, rows, hidden)``; ``places`` int64 ``(1, rows)`` into ``cosines`` and ``sines``
    ``(positions, width / 2)``; ``mask`` float32 ``(group * rows, slots + rows)``, 0 or -inf, for the slots of the
    blocks and then for the rows themselves, once for each query head that shares a key head; ``parts`` int64, those
    two sizes; ``keep`` int64, the rows whose logits are wanted; for each layer keys ``(blocks, kv_heads, width,
    BLOCK)`` and values ``(blocks, kv_heads, BLOCK, width)``.

    Outputs: ``logits`` ``(1, kept, vocabulary)``; ``new_keys`` and ``new_values`` ``(1, layers * kv_heads, rows,
    width)``.

    ``vnni``: signed weights. Without VNNI the kernels of ONNX Runtime for them add pairs of products in 16 bits, which
    overflow (the bundled draft's likeliest token changed in 16 of 100 places); for unsigned ones, as fast, they do not.
    """
    return _Builder(weights.shape, int8, vnni).model(weights)


class _Builder:
    def __init__(self, shape: Shape, int8: bool, vnni: bool) -> None:
        self.shape = shape
        self.int8 = int8
        self.vnni = vnni
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []
        self.names = 0

    def model(self, weights: Weights) -> ModelProto:
        shape = self.shape
        keys: list[str] = []
        values: list[str] = []
        x, normed = EMBEDDED, self._rms(EMBEDDED, weights.layers[0].input_norm.numpy())
        followers = [layer.input_norm for layer in weights.layers[1:]] + [weights.norm]
        for index, (layer, norm) in enumerate(zip(weights.layers, followers, strict=True)):
            seen, key, value = self._attention(normed, layer, index)
            x, normed = self._add_rms(x, self._linear(seen, layer.out), layer.inner_norm)
            inner = self._linear(normed, layer.gate_up)
            gate, up = self._split(inner, 2, shape.inner, shape.inner)
            product = self._op("Mul", self._op("QuickGelu", gate, domain=CONTRIB, alpha=1.0), up)  # silu(gate) * up
            x, normed = self._add_rms(x, self._linear(product, layer.down), norm)
            keys.append(key)
            values.append(value)
        self._linear(self._op("Gather", normed, KEEP, axis=1), weights.head, to=LOGITS)
        self._op("Concat", *keys, axis=1, to=NEW_KEYS)
        self._op("Concat", *values, axis=1, to=NEW_VALUES)
        half, heads, width = shape.width // 2, shape.kv_heads, shape.width
        inputs = [
            _real(EMBEDDED, 1, "rows", shape.hidden),
            _whole(PLACES, 1, "rows"),
            _real(COSINES, "positions", half),
            _real(SINES, "positions", half),
            _real(MASK, "queries", "seen"),
            _whole(PARTS, 2),
            _whole(KEEP, "kept"),
        ]
        for index in range(shape.layers):
            key, value = past(index)
            inputs += [_real(key, "blocks", heads, width, BLOCK), _real(value, "blocks", heads, BLOCK, width)]
        new = (1, shape.layers * heads, "rows", width)
        outputs = [_real(LOGITS, 1, "kept", shape.vocabulary), _real(NEW_KEYS, *new), _real(NEW_VALUES, *new)]
        graph = helper.make_graph(self.nodes, "decoder", inputs, outputs, self.constants)
        sets = [helper.make_opsetid("", OPSET), helper.make_opsetid(CONTRIB, 1)]
        return helper.make_model(graph, opset_imports=sets, ir_version=IR)

    def _attention(self, x: str, layer: Layer, index: int) -> tuple[str, str, str]:
        """What the rows see ``(1, rows, heads * width)``, and their keys and values ``(1, kv_heads, rows, width)``.

        The queries that share a key head are the rows of one product.
        """
        shape = self.shape
        both = shape.heads + shape.kv_heads
        grouped = shape.heads > shape.kv_heads
        whole = self._reshape(self._linear(x, layer.qkv), 1, -1, both + shape.kv_heads, shape.width)
        rotated, value = self._split(self._op("Transpose", whole, perm=[0, 2, 1, 3]), 1, both, shape.kv_heads)
        if layer.query_norm is not None:
            rotated = self._rms(rotated, np.ones(shape.width, np.float32))
            rotated = self._op("Mul", rotated, self._constant(layer.query_norm.numpy()[:, None]))
        rotated = self._op("RotaryEmbedding", rotated, PLACES, COSINES, SINES, domain=CONTRIB, interleaved=1)
        query, key = self._split(rotated, 1, shape.heads, shape.kv_heads)
        if grouped:
            query = self._reshape(query, 1, shape.kv_heads, -1, shape.width)
        old_keys, old_values = past(index)
        blocks = self._product(query, old_keys, alpha=shape.width**-0.5)  # (blocks, kv_heads, queries, BLOCK)
        old = self._reshape(self._op("Transpose", blocks, perm=[1, 2, 0, 3]), 0, 0, -1)
        new = self._op("Squeeze", self._product(query, key, alpha=shape.width**-0.5, transB=1), self._integers(0))
        scores = self._op("Add", self._op("Concat", old, new, axis=2), MASK)
        old, new = self._ops("Split", 2, self._op("Softmax", scores, axis=2), PARTS, axis=2)
        blocks = self._op("Transpose", self._reshape(old, 0, 0, -1, BLOCK), perm=[2, 0, 1, 3])
        from_old = self._op("ReduceSum", self._op("MatMul", blocks, old_values), self._integers(0))
        seen = self._op("Add", from_old, self._op("MatMul", new, value))
        if grouped:
            seen = self._reshape(seen, 1, shape.heads, -1, shape.width)
        seen = self._reshape(self._op("Transpose", seen, perm=[0, 2, 1, 3]), 1, -1, shape.heads * shape.width)
        return seen, key, value

    # --- parts -------------------------------------------------------------------------------------------------------

    def _ops(self, kind: str, count: int, *inputs: str, domain: str = "", **attributes: Any) -> list[str]:
        outputs = [self._name() for _ in range(count)]
        self.nodes.append(helper.make_node(kind, inputs, outputs, domain=domain, **attributes))
        return outputs

    def _op(self, kind: str, *inputs: str, to: str = "", domain: str = "", **attributes: Any) -> str:
        output = to or self._name()
        self.nodes.append(helper.make_node(kind, inputs, [output], domain=domain, **attributes))
        return output

    def _name(self) -> str:
        self.names += 1
        return f"_{self.names}"

    def _constant(self, value: NDArray[Any] | np.generic) -> str:
        name = self._name()
        self.constants.append(numpy_helper.from_array(np.asarray(value, order="C"), name))
        return name

    def _integers(self, *numbers: int) -> str:
        return self._constant(np.array(numbers, dtype=np.int64))

    def _reshape(self, x: str, *sizes: int) -> str:
        return self._op("Reshape", x, self._integers(*sizes))

    def _split(self, x: str, axis: int, *sizes: int) -> list[str]:
        return self._ops("Split", len(sizes), x, self._integers(*sizes), axis=axis)

    def _product(self, a: str, b: str, **attributes: Any) -> str:
        return self._op("FusedMatMul", a, b, domain=CONTRIB, **attributes)

    def _rms(self, x: str, weight: NDArray[np.float32]) -> str:
        return self._op("SimplifiedLayerNormalization", x, self._constant(weight), axis=-1, epsilon=self.shape.eps)

    def _add_rms(self, x: str, more: str, weight: Tensor) -> tuple[str, str]:
        """The sum, and the sum normed."""
        normed, total = self._name(), self._name()
        self.nodes.append(
            helper.make_node(
                "SkipSimplifiedLayerNormalization",
                [x, more, self._constant(weight.numpy())],
                [normed, "", "", total],
                domain=CONTRIB,
                epsilon=self.shape.eps,
            )
        )
        return total, normed

    def _linear(self, x: str, matrix: Matrix, to: str = "") -> str:
        """int8 by products of 8-bit numbers: with AVX2 as fast as MatMulNBits for a row, and twice as fast for 8."""
        weight: NDArray[np.float32] = matrix.weight.numpy()
        bias = "" if matrix.bias is None else self._constant(matrix.bias.numpy())
        if self.int8:
            parts = [self._constant(part) for part in quantised(weight, self.vnni)]
            return self._op("DynamicQuantizeMatMul", x, *parts, bias, domain=CONTRIB, to=to)
        product = self._op("MatMul", x, self._constant(weight.T), to="" if bias else to)
        return self._op("Add", product, bias, to=to) if bias else product


def _real(name: str, *sizes: int | str) -> Any:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, sizes)


def _whole(name: str, *sizes: int | str) -> Any:
    return helper.make_tensor_value_info(name, TensorProto.INT64, sizes)
