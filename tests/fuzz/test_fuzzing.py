"""What the fuzzer does for hours, for a moment: every decoder takes its seeds, and what chance makes of them."""

import random

from tests.fuzz.decoders import targets
from tests.world.garbage import mutated

MUTATIONS = 150


def test_every_decoder_gives_a_value_or_its_own_error(tmp_path):
    for name, target in targets(tmp_path).items():
        chance = random.Random(name)
        for seed in target.seeds:
            assert target.decode(seed) is not None or name in ("frames", "key"), f"{name} takes its own seed"
        for _ in range(MUTATIONS):
            target.decode(mutated(chance.choice(list(target.seeds)), chance))
