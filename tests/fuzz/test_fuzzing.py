"""What the fuzzer does for hours, for a moment: every decoder takes its seeds, and what chance makes of them."""

import random

from decoders import targets

MUTATIONS = 150


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


def test_every_decoder_gives_a_value_or_its_own_error(tmp_path):
    for name, target in targets(tmp_path).items():
        chance = random.Random(name)
        for seed in target.seeds:
            assert target.decode(seed) is not None or name in ("frames", "key"), f"{name} takes its own seed"
        for _ in range(MUTATIONS):
            target.decode(mutated(chance.choice(list(target.seeds)), chance))
