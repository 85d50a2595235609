"""Shared noise: the Gumbel variable ``G(seed, position, token)`` that target and draft both add to their logits.

``argmax(logits / T + G)`` is a sample of ``softmax(logits / T)`` (Gumbel, 1954); the noise is a hash of
``(seed, position, token)`` instead of a generator's state. So target and draft see the same noise and tend to pick the
same token (Gumbel coupling; Daliri, Musco, Suresh, arXiv 2408.07978), and a resumed request goes on with it.

    k0, k1 = the two halves of splitmix64's output function over (seed, position)
    h      = mix(token * GOLDEN + k0, k1) >> 1                                            31 bits, per token
    u      = (float32(h) + 0.5) * 2**-31, at most 1 - 2**-24
    G      = -log(-log1p(-u))                                                             within [-2.9, 22.2]

``mix`` is murmur3's 32-bit finaliser with better constants (lowbias32: Wellons, "Prospecting for hash functions",
2018), with the second key folded in between its two multiplications. Everything before ``u`` is integer arithmetic
modulo 2**32 and so gives the same bits everywhere; the logarithms may differ between devices in the last place.

Here are the keys, and the noise of single tokens, which cost a microsecond each;
:mod:`actors.engines.sampling.noise` has that of tensors.
"""

from __future__ import annotations

import math

Keys = tuple[int, int]

GOLDEN, MUL1, MUL2 = 0x9E3779B1, 0x7FEB352D, 0x846CA68B
BELOW_ONE = 1.0 - 2.0**-24
_M32, _M64 = (1 << 32) - 1, (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15  # splitmix64's increment: 2**64 / golden ratio


def _mix64(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _M64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _M64
    return z ^ (z >> 31)


def keys(seed: int, position: int) -> Keys:
    """The two unsigned 32-bit keys of a text position; ``seed`` counts modulo 2**64."""
    z = _mix64((_mix64((seed + _STEP) & _M64) + (position + 1) * _STEP) & _M64)
    return z >> 32, z & 0xFFFFFFFF


def gumbel_at(keyed: Keys, token: int) -> float:
    """Standard Gumbel noise of one token, to the last places of float32."""
    x = (token * GOLDEN + keyed[0]) & _M32
    x = ((x ^ (x >> 16)) * MUL1) & _M32
    x = (((x ^ (x >> 15)) ^ keyed[1]) * MUL2) & _M32
    u = (((x ^ (x >> 16)) >> 1) + 0.5) * 2.0**-31
    return -math.log(-math.log1p(-min(u, BELOW_ONE)))
