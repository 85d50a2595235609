"""A request's slots grow with its text, wherever there is room: nothing is lost, and no bit changes."""

import random

import pytest
import torch

from actors.engines.cache.kv_cache import CHUNK, TRASH, full_request
from actors.engines.cache.pool import RegionAllocator
from actors.engines.cache.prefixes import PrefixCache
from actors.engines.decoder.cpu.engine import CompiledEngine
from actors.engines.targets.selfcheck import ROWS
from actors.engines.targets.target import Target
from actors.models import Window
from protocols.errors import PoolFull
from protocols.messages import Sampling
from tests.engines.test_target import some_prompt
from tests.engines.tiny import info, make

FLOOR = 8


class Slots:
    """What lies in the slots of a pool, under a cache whose requests write their own number and position."""

    def __init__(self, slots: int) -> None:
        self.held: list[object] = [None] * slots
        allocator = RegionAllocator(slots)
        allocator.alloc(FLOOR)
        self.cache = PrefixCache(allocator, 16)

    def write(self, region) -> None:
        self.settle()
        for position in range(region.size):
            self.held[region.base + position] = (id(region), position)

    def settle(self) -> None:
        for source, target, count in self.cache.take_moves():
            self.held[target : target + count] = self.held[source : source + count]

    def check(self, regions) -> None:
        self.settle()
        ends = [FLOOR]
        for region in sorted([*regions, *self.cache.kept], key=lambda r: r.base):
            assert region.base >= ends[-1]
            ends.append(region.base + region.size)
        assert ends[-1] <= len(self.held)
        for region, size in regions.items():
            assert self.held[region.base : region.base + size] == [(id(region), p) for p in range(size)]


@pytest.mark.parametrize("seed", range(12))
def test_whatever_grows_moves_and_ends_each_request_keeps_what_it_has(seed):
    rng = random.Random(seed)
    slots = Slots(512)
    regions = {}
    for step in range(300):
        try:
            if not regions or rng.random() < 0.3:
                prompt = [step] * rng.randrange(1, 40)
                region = slots.cache.open(len(prompt) + rng.randrange(8, 80), prompt)
                slots.write(region)
                regions[region] = region.size
            elif rng.random() < 0.6:
                region = rng.choice(list(regions))
                slots.cache.grow(region, region.size + rng.randrange(1, 100))
                slots.check(regions)
                slots.write(region)
                regions[region] = region.size
            else:
                region = rng.choice(list(regions))
                slots.cache.computed(region, len(region.text))
                del regions[region]
                slots.cache.close(region)
        except PoolFull:
            taken = sum(regions.values())
            assert taken + 180 > 512 - FLOOR  # 180: more than anybody asks for
        slots.check(regions)


def test_a_region_that_cannot_grow_changes_nothing():
    slots = Slots(100)
    first, second = slots.cache.open(40, [1]), slots.cache.open(40, [2])
    for region in (first, second):
        slots.write(region)
    with pytest.raises(PoolFull, match="20 KV slots more and the pool has 12 free"):
        slots.cache.grow(first, 60)
    slots.check({first: 40, second: 40})
    slots.cache.grow(first, 52)
    slots.check({first: 40, second: 40})


def target_of(slots: int) -> Target:
    torch.set_num_threads(1)
    model = make("llama")
    return Target(CompiledEngine(model, info(model), slots), rows_agree=ROWS)


def written(target: Target, prompts, tokens: int) -> list[list[int]]:
    """What all of them write together."""
    handles = [target.open(prompt, Sampling(max_tokens=300, temperature=1.0, seed=3)) for prompt in prompts]
    texts = []
    for handle in handles:
        while (outcome := target.prefill(handle)) is None:
            pass
        texts.append(list(outcome.tokens))
    while len(texts[0]) < tokens:
        for handle in handles:
            target.reserve(handle)
        for text, outcome in zip(texts, target.verify([Window(handle) for handle in handles]), strict=True):
            text += outcome.tokens
    for handle in handles:
        target.close(handle)
    return texts


def test_a_text_whose_slots_moved_goes_on_with_the_same_tokens():
    prompts = [some_prompt(60, seed=i) for i in range(3)]
    whole = full_request(512)
    roomy, tight = target_of(TRASH + 4 * whole), target_of(TRASH + 3 * 512)
    moved = []
    take = tight._kv._prefixes.take_moves
    tight._kv._prefixes.take_moves = lambda: moved.extend(found := take()) or found
    assert written(tight, prompts, 298) == written(roomy, prompts, 298)
    assert moved


def test_a_request_takes_what_its_text_needs_and_not_what_it_may():
    target = target_of(TRASH + 2 * full_request(512))
    handles = [target.open(some_prompt(20, seed=i), Sampling(max_tokens=480)) for i in range(2)]
    assert target.kv_used < len(handles) * full_request(512)
    for handle in handles:
        target.close(handle)
    assert target.kv_used == 0


def test_room_that_is_refused_can_be_had_when_another_ends():
    target = target_of(TRASH + 2 * 448)
    prompts = [some_prompt(60, seed=i) for i in range(2)]
    one, other = (target.open(prompt, Sampling(max_tokens=440)) for prompt in prompts)
    for handle in (one, other):
        while target.prefill(handle) is None:
            pass
    with pytest.raises(PoolFull):
        for _ in range(440):
            for handle in (one, other):
                target.reserve(handle)
            target.verify([Window(one), Window(other)])
    target.close(other)
    target.reserve(one)
    assert target.verify([Window(one)])[0].tokens


def test_a_chunk_is_reserved_ahead_so_that_growing_is_rare():
    target = target_of(8192)
    handle = target.open(some_prompt(10), Sampling(max_tokens=500))
    target.prefill(handle)
    used = target.kv_used
    for _ in range(CHUNK):
        target.reserve(handle)
        target.verify([Window(handle)])
    assert target.kv_used == used
