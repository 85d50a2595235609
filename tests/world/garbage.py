"""Frames that are no message, made of those of one."""

from __future__ import annotations

import random
from collections.abc import Sequence

HUGE = (b"\xdd", b"\xdf", b"\xdb", b"\xc6")  # array, map, string and bytes that claim to be as long as the next says


def mutated(seed: bytes, chance: random.Random) -> bytes:
    data = bytearray(seed)
    for _ in range(chance.choice((1, 1, 2, 8))):
        at = chance.randrange(len(data) + 1)
        match chance.randrange(3):
            case 0:
                data[at : at + 1] = chance.randbytes(1)
            case 1:
                del data[at : at + chance.randrange(1, 9)]
            case _:
                data[at:at] = chance.randbytes(chance.randrange(1, 5))
    return bytes(data)


def garbled(frames: Sequence[bytes], chance: random.Random) -> list[bytes]:
    """What becomes of a message's two frames: bits changed, an end cut off, huge counts, more or fewer frames."""
    header, body = frames
    at = chance.randrange(len(body))
    match chance.randrange(8):
        case 0 | 1:
            return [header, mutated(body, chance)]
        case 2:
            return [header, body[:at] + bytes([body[at] ^ 1 << chance.randrange(8)]) + body[at + 1 :]]
        case 3:
            return [header, body[:at]]
        case 4:
            return [header, body[:at] + chance.choice(HUGE) + chance.choice((b"\xff", b"\x00")) * 4 + body[at:]]
        case 5:
            return [header, b"\x91" * chance.randrange(2000)]  # arrays in arrays
        case 6:
            return [chance.randbytes(chance.randrange(100)) for _ in range(chance.randrange(1, 6))]
        case _:
            others = [[header], [body, header], [b"", header, body], [*frames, body], [header, body] * 50]
            return chance.choice([*others, [b"duoactor/9", body], [mutated(header, chance), body]])
