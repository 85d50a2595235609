"""Shared noise: the reason why drafts cannot change the text.

The target's token at a position is argmax(logits / T + G), where the Gumbel noise G is a hash of (seed, position,
token). That argmax is an exact sample of softmax(logits / T). The drafter adds the same noise to its own logits, so
both tend to choose the same token. A draft is accepted if and only if it is the target's token.
"""

import numpy as np

_M64, _STEP = (1 << 64) - 1, 0x9E3779B97F4A7C15


def _mix64(z: int) -> int:  # splitmix64's output function
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _M64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _M64
    return z ^ (z >> 31)


def gumbel(seed: int, position: int, size: int) -> np.ndarray:
    """The noise of every token id below ``size`` at one position of the text."""
    z = _mix64((_mix64((seed + _STEP) & _M64) + (position + 1) * _STEP) & _M64)
    x = np.arange(size, dtype=np.uint32) * np.uint32(0x9E3779B1) + np.uint32(z >> 32)
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> np.uint32(15)) ^ np.uint32(z & 0xFFFFFFFF)) * np.uint32(0x846CA68B)
    x ^= x >> np.uint32(16)
    u = ((x >> np.uint32(1)).astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-31)
    return -np.log(-np.log1p(-np.minimum(u, np.float32(1.0 - 2.0**-24))))


def scores(logits: np.ndarray, temperature: float, seed: int, position: int) -> np.ndarray:
    """The token at ``position`` is the argmax of these."""
    if temperature == 0:
        return logits
    return logits / np.float32(temperature) + gumbel(seed, position, len(logits))
