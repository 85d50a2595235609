import pytest
import torch

from actors.engines.cache.pool import KVPool, KVShape, RegionAllocator
from protocols.errors import PoolFull

SHAPE = KVShape.alike(layers=2, kv_heads=3, width=4)


def filled(slots: int = 12) -> KVPool:
    """Slot s holds s in layer 0 and 100 + s in layer 1; values are negative."""
    pool = KVPool(SHAPE, slots, torch.float32, "cpu")
    for layer in range(2):
        rows = (torch.arange(slots) + 100.0 * layer).view(1, -1, 1).expand(3, slots, 4)
        pool.keys[layer][:], pool.values[layer][:] = rows, -rows
    pool.positions[:] = range(1000, 1000 + slots)
    return pool


def held(pool: KVPool, layer: int = 0) -> list[int]:
    keys, values = pool.view(layer, 0, pool.slots)
    assert torch.equal(keys, -values) and (keys == keys[:1, :, :1]).all()
    return keys[0, :, 0].int().tolist()


def test_a_view_is_the_pool_itself():
    pool = filled()
    keys, _ = pool.view(0, 4, 3)
    assert keys.shape == (3, 3, 4) and keys.data_ptr() == pool.keys[0][:, 4].data_ptr()


@pytest.mark.parametrize("shift", [1, -1, 3, -3])
def test_copying_onto_overlapping_slots_reads_everything_first(shift):
    pool = filled()
    source = list(range(4, 8))
    pool.copy(source, [s + shift for s in source])
    expected = list(range(12))
    for s in source:
        expected[s + shift] = s
    assert held(pool) == expected and held(pool, 1) == [100 + s for s in expected]
    assert pool.positions.tolist() == [1000 + s for s in expected]


def test_swapping_two_slots_and_copying_nothing():
    pool = filled()
    pool.copy([], [])
    pool.copy([2, 9], [9, 2])
    assert held(pool) == [0, 1, 9, 3, 4, 5, 6, 7, 8, 2, 10, 11]


def test_a_row_of_slots_is_duplicated_with_its_positions():
    pool = filled()
    pool.duplicate(2, 7, 4)
    expected = [*range(7), 2, 3, 4, 5, 11]
    assert held(pool) == expected and held(pool, 1) == [100 + s for s in expected]
    assert pool.positions.tolist() == [1000 + s for s in expected]


def test_the_pool_takes_what_it_says():
    pool = KVPool(SHAPE, 10, torch.bfloat16, "meta")
    assert pool.slots * pool.slot_bytes == 2 * 2 * 3 * 4 * 10 * 2


def test_regions_never_overlap_and_the_first_gap_that_fits_is_taken():
    allocator = RegionAllocator(100)
    a, b, c = allocator.alloc(30), allocator.alloc(20), allocator.alloc(40)
    assert (a, b, c) == (0, 30, 50) and allocator.used == 90
    allocator.free(b)
    assert allocator.used == 70
    assert allocator.alloc(10) == 30
    assert allocator.alloc(10) == 40 and allocator.alloc(10) == 90
    assert allocator.used == 100


def test_a_full_pool_says_what_is_needed_and_has_room_again_afterwards():
    allocator = RegionAllocator(64)
    whole = allocator.alloc(64)
    with pytest.raises(PoolFull, match="needs 1 KV slots in a row and the pool has 64"):
        allocator.alloc(1)
    allocator.free(whole)
    assert allocator.used == 0 and allocator.alloc(64) == 0


def test_room_in_pieces_is_not_room_in_a_row():
    allocator = RegionAllocator(60)
    bases = [allocator.alloc(20) for _ in range(3)]
    allocator.free(bases[0])
    allocator.free(bases[2])
    with pytest.raises(PoolFull):
        allocator.alloc(40)
    allocator.free(bases[1])
    assert allocator.alloc(60) == 0


def test_a_pools_spare_slots_are_not_counted_and_gathering_is_a_view_by_data():
    pool = KVPool(SHAPE, 10, torch.float32, "cpu", spare=5)
    assert pool.slots == 10 and pool.keys[0].shape == (3, 15, 4)
    pool.parts[0].normal_()
    for found, expected in zip(pool.gather(1, torch.arange(2, 7)), pool.view(1, 2, 5), strict=True):
        assert torch.equal(found, expected)
