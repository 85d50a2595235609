"""Blocks of quantised weights as ggml stores them: what each kind's bytes mean.

Layouts: ggml-common.h of https://github.com/ggml-org/ggml. A block covers ``elements`` consecutive weights of a row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

IQ4_VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
FP4_VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
_SHIFTS: Bytes = np.array([0, 4], np.uint8)
_NAMES = """
F32 F16 Q4_0 Q4_1 Q4_2 Q4_3 Q5_0 Q5_1 Q8_0 Q8_1 Q2_K Q3_K Q4_K Q5_K Q6_K Q8_K IQ2_XXS IQ2_XS IQ3_XXS IQ1_S IQ4_NL
IQ3_S IQ2_S IQ4_XS I8 I16 I32 I64 F64 IQ1_M BF16 Q4_0_4_4 Q4_0_4_8 Q4_0_8_8 TQ1_0 TQ2_0 IQ4_NL_4_4 IQ4_NL_4_8
IQ4_NL_8_8 MXFP4 NVFP4 Q1_0
"""
NAMES = _NAMES.split()


def kind_name(number: int) -> str:
    """ggml's name of the type with that number."""
    return NAMES[number] if number < len(NAMES) else f"number {number}"


@dataclass(frozen=True, slots=True)
class BlockKind:
    """How a type lies in memory."""

    name: str
    elements: int  # weights in a block
    bytes: int  # of a block
    values: Callable[[Bytes], Floats]  # (blocks, bytes) -> (blocks, elements)

    def bytes_of(self, count: int) -> int:
        """Bytes of a number of weights, a multiple of ``elements``."""
        return count // self.elements * self.bytes

    @property
    def bits(self) -> float:
        """Bits a weight takes."""
        return 8 * self.bytes / self.elements

    def dequantise(self, rows: Bytes) -> Floats:
        """float32 ``(rows, weights)`` of the bytes ``(rows, bytes of a row)``."""
        count = len(rows)
        blocks = np.ascontiguousarray(rows).reshape(-1, self.bytes)
        return self.values(blocks).reshape(count, -1)


def _view(part: Bytes, kind: str) -> NDArray[Any]:
    return np.ascontiguousarray(part).view(kind)


def _halves(part: Bytes) -> Floats:
    """float16 numbers ``(blocks, n)``."""
    return _view(part, "<f2").astype(np.float32)


def nibbles(part: Bytes) -> Bytes:
    """``(blocks, 2n)``: all low nibbles, then all high ones."""
    return np.concatenate([part & 15, part >> 4], 1)


def fifth_bits(part: Bytes) -> NDArray[Any]:
    """Bit i of 32 is the fifth of weight i, here as 0 or 16."""
    return np.unpackbits(part, axis=1, bitorder="little") << 4


def _float32(blocks: Bytes) -> Floats:
    return blocks.view("<f4").astype(np.float32)


def _float16(blocks: Bytes) -> Floats:
    return _halves(blocks)


def _bfloat16(blocks: Bytes) -> Floats:
    wide: Floats = (blocks.view("<u2").astype(np.uint32) << 16).view(np.float32)
    return wide


def _q4_0(blocks: Bytes) -> Floats:
    return _halves(blocks[:, :2]) * (nibbles(blocks[:, 2:]).astype(np.float32) - 8)


def _q4_1(blocks: Bytes) -> Floats:
    return _halves(blocks[:, :2]) * nibbles(blocks[:, 4:]).astype(np.float32) + _halves(blocks[:, 2:4])


def _q5_0(blocks: Bytes) -> Floats:
    whole: Bytes = nibbles(blocks[:, 6:]) | fifth_bits(blocks[:, 2:6])
    return _halves(blocks[:, :2]) * (whole.astype(np.float32) - np.float32(16))


def _q5_1(blocks: Bytes) -> Floats:
    whole: Bytes = nibbles(blocks[:, 8:]) | fifth_bits(blocks[:, 4:8])
    return _halves(blocks[:, :2]) * whole.astype(np.float32) + _halves(blocks[:, 2:4])


def _q8_0(blocks: Bytes) -> Floats:
    return _halves(blocks[:, :2]) * _view(blocks[:, 2:], "i1").astype(np.float32)


def _by_groups(scales: Floats, whole: NDArray[Any]) -> Floats:
    """Every group of a block's weights times its scale; scales ``(blocks, groups)``."""
    grouped = whole.astype(np.float32).reshape(len(whole), scales.shape[1], -1)
    return (scales[:, :, None] * grouped).reshape(len(whole), -1)


def _crumbs(part: Bytes) -> NDArray[Any]:
    """2 bits each of ``(blocks, 64)`` in the order of the weights: each 32 bytes hold four groups of 32."""
    split = part.reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None]
    return (split & 3).reshape(len(part), -1)


def _q2_k(blocks: Bytes) -> Floats:
    scales, step, least = blocks[:, :16], _halves(blocks[:, 80:82]), _halves(blocks[:, 82:84])
    minima: Floats = np.repeat(least * (scales >> 4), 16, 1)
    return _by_groups(step * (scales & 15), _crumbs(blocks[:, 16:80])) - minima


def q3_codes(blocks: Bytes) -> tuple[NDArray[Any], NDArray[Any]]:
    """The weights of Q3_K as integers with a sign and the scales of each 16."""
    low = nibbles(blocks[:, 96:104])
    top = (blocks[:, 104:108, None] >> np.array([0, 2, 4, 6], np.uint8)) & 3  # (blocks, 4 bytes, 4 shifts)
    scales = (low | (top.transpose(0, 2, 1).reshape(len(blocks), 16) << 4)).astype(np.int32) - 32
    missing = (blocks[:, None, :32] >> np.arange(8, dtype=np.uint8)[:, None]) & 1 ^ 1
    whole = _crumbs(blocks[:, 32:96]).astype(np.int32) - 4 * missing.reshape(len(blocks), -1)
    return whole, scales


def _q3_k(blocks: Bytes) -> Floats:
    whole, scales = q3_codes(blocks)
    return _by_groups(_halves(blocks[:, 108:110]) * scales.astype(np.float32), whole)


def k_scales(part: Bytes) -> tuple[Bytes, Bytes]:
    """The scales and minima of 6 bits of Q4_K and Q5_K, each ``(blocks, 8)``, out of 12 bytes."""
    first, second, rest = part[:, :4], part[:, 4:8], part[:, 8:]
    scales = np.concatenate([first & 63, (rest & 15) | (first >> 6) << 4], 1)
    minima = np.concatenate([second & 63, (rest >> 4) | (second >> 6) << 4], 1)
    return scales, minima


def pairs(part: Bytes) -> NDArray[Any]:
    """Nibbles of ``(blocks, 128)``: each 32 bytes hold 32 weights in their low halves, then 32 in their high ones."""
    split = part.reshape(-1, 4, 1, 32) >> _SHIFTS[:, None]
    return (split & 15).reshape(len(part), -1)


def _k_values(blocks: Bytes, whole: NDArray[Any]) -> Floats:
    scales, minima = k_scales(blocks[:, 4:16])
    step, least = _halves(blocks[:, :2]), _halves(blocks[:, 2:4])
    return _by_groups(step * scales, whole) - np.repeat(least * minima, 32, 1)


def _q4_k(blocks: Bytes) -> Floats:
    return _k_values(blocks, pairs(blocks[:, 16:]))


def q5_codes(blocks: Bytes) -> NDArray[Any]:
    """The weights of Q5_K as integers."""
    high = (blocks[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None]) & 1
    codes: NDArray[Any] = pairs(blocks[:, 48:]) | high.reshape(len(blocks), -1) << 4
    return codes


def _q5_k(blocks: Bytes) -> Floats:
    return _k_values(blocks, q5_codes(blocks))


def q6_codes(blocks: Bytes) -> NDArray[Any]:
    """The weights of Q6_K as integers, 32 too much."""
    low = blocks[:, :128].reshape(-1, 2, 1, 64) >> _SHIFTS[:, None]
    codes: NDArray[Any] = (low & 15).reshape(len(blocks), -1) | _crumbs(blocks[:, 128:192]) << 4
    return codes


def _q6_k(blocks: Bytes) -> Floats:
    scales = _halves(blocks[:, 208:]) * _view(blocks[:, 192:208], "i1")
    return _by_groups(scales, q6_codes(blocks).astype(np.int32) - 32)


def _iq4_nl(blocks: Bytes) -> Floats:
    return _halves(blocks[:, :2]) * IQ4_VALUES[nibbles(blocks[:, 2:])]


def iq4_scales(blocks: Bytes) -> NDArray[np.int32]:
    """The scales of IQ4_XS's groups of 32, ``(blocks, 8)``."""
    high = _view(blocks[:, 2:4], "<u2") >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    low = (blocks[:, 4:8, None] >> _SHIFTS & 15).reshape(len(blocks), 8)
    return (low | high << 4).astype(np.int32) - 32


def _iq4_xs(blocks: Bytes) -> Floats:
    values = IQ4_VALUES[nibbles(blocks[:, 8:].reshape(-1, 16))].reshape(len(blocks), -1)
    return _by_groups(_halves(blocks[:, :2]) * iq4_scales(blocks).astype(np.float32), values)


def _mxfp4(blocks: Bytes) -> Floats:
    return np.ldexp(FP4_VALUES[nibbles(blocks[:, 1:])], blocks[:, :1].astype(np.int32) - 127)


KINDS: dict[int, BlockKind] = {
    NAMES.index(name): BlockKind(name, elements, size, values)
    for name, elements, size, values in (
        ("F32", 1, 4, _float32),
        ("F16", 1, 2, _float16),
        ("BF16", 1, 2, _bfloat16),
        ("Q4_0", 32, 18, _q4_0),
        ("Q4_1", 32, 20, _q4_1),
        ("Q5_0", 32, 22, _q5_0),
        ("Q5_1", 32, 24, _q5_1),
        ("Q8_0", 32, 34, _q8_0),
        ("Q2_K", 256, 84, _q2_k),
        ("Q3_K", 256, 110, _q3_k),
        ("Q4_K", 256, 144, _q4_k),
        ("Q5_K", 256, 176, _q5_k),
        ("Q6_K", 256, 210, _q6_k),
        ("IQ4_NL", 32, 18, _iq4_nl),
        ("IQ4_XS", 256, 136, _iq4_xs),
        ("MXFP4", 32, 17, _mxfp4),
    )
}
