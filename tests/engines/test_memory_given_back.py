"""The memory of texts: as much as a person would expect, and given back to the system once nobody needs it."""

import ctypes
import mmap
from pathlib import Path

import pytest
import torch

from actors.engines.cache.pool import BLOCK, KVPool, KVShape, RegionAllocator
from actors.engines.cache.prefixes import PrefixCache
from actors.engines.decoder.cpu.engine import CompiledEngine
from actors.engines.targets.selfcheck import ROWS
from actors.engines.targets.target import Target
from protocols.messages import Sampling
from tests.engines.test_target import some_prompt
from tests.engines.tiny import info, make

SLOTS = 8192
KEPT = 1 << 20  # bytes
BITS, MANY = 1 << 16, 500  # bytes of an allocation, and how many
LIBC = ctypes.CDLL(None)
LIBC.malloc.restype, LIBC.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def resident() -> int:
    """Bytes of memory that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def resident_of(tensor: torch.Tensor) -> int:
    """Bytes of a tensor's memory that are in RAM: other parts of the process may give memory back at any time."""
    page = mmap.PAGESIZE
    first, size = tensor.data_ptr() // page * page, tensor.numel() * tensor.element_size()
    pages = (ctypes.c_ubyte * (-(-(tensor.data_ptr() - first + size) // page)))()
    assert LIBC.mincore(ctypes.c_void_p(first), ctypes.c_size_t(len(pages) * page), pages) == 0
    return sum(bits & 1 for bits in pages) * page


def answer(target: Target, prompt: list[int]) -> tuple[list[int], int]:
    """A text, and how many of its prompt's tokens were not computed."""
    handle = target.open(prompt, Sampling(max_tokens=4, ignore_eos=True))
    while (outcome := target.prefill(handle)) is None:
        pass
    target.close(handle)
    return [*prompt, *outcome.tokens], outcome.reused


def test_slots_that_are_given_back_take_no_memory_and_their_neighbours_keep_theirs():
    pool = KVPool(KVShape.alike(layers=2, kv_heads=2, width=64), SLOTS, torch.float32, "cpu")
    for part in pool.parts:
        part.fill_(1.0)
    full = sum(map(resident_of, pool.parts))
    assert full >= pool.slots * pool.slot_bytes
    pool.give_back(1024, 6144)
    assert full - sum(map(resident_of, pool.parts)) > 0.9 * 6144 * pool.slot_bytes
    for layer in range(2):
        for held in (pool.keys[layer], pool.values[layer]):
            assert held[:, :1024].all() and held[:, 1024 + 6144 :].all() and not held[:, 1024 : 1024 + 6144].any()


def test_slots_that_two_pages_share_with_others_stay():
    pool = KVPool(KVShape.alike(layers=1, kv_heads=1, width=64), SLOTS, torch.float32, "cpu")
    pool.parts[0].fill_(1.0)
    pool.give_back(17, 5)  # 16 slots are a page
    assert pool.parts[0].all()


def test_slots_are_given_back_once_and_again_only_after_another_text_has_had_them():
    allocator = RegionAllocator(10 * BLOCK + 5)
    assert allocator.give_back() == []
    first, second = allocator.alloc(2 * BLOCK), allocator.alloc(3 * BLOCK + 1)
    assert allocator.give_back() == []
    allocator.free(first)
    assert allocator.give_back() == [(0, 2 * BLOCK)]
    assert allocator.give_back() == []
    allocator.resize(second, 8 * BLOCK + 5)
    allocator.free(second)
    allocator.alloc(BLOCK)
    assert allocator.give_back() == [(2 * BLOCK, 8 * BLOCK + 5)]


def test_texts_that_moved_leave_slots_to_give_back():
    allocator = RegionAllocator(8 * BLOCK)
    first, second = allocator.alloc(2 * BLOCK), allocator.alloc(2 * BLOCK)
    allocator.free(first)
    allocator.arrange({second: 6 * BLOCK})
    assert allocator.give_back() == [(0, 4 * BLOCK)]


def test_kept_texts_take_no_more_than_they_may_and_the_latest_stays_whatever_it_takes():
    cache = PrefixCache(RegionAllocator(1000), 4, most=40)
    for number in range(20):
        text = (number,) * 12
        region = cache.open(16, text)
        cache.computed(region, 12)
        cache.close(region)
        assert cache.cached <= 40
    assert len(cache.kept) == 3
    region = cache.open(100, (77,) * 80)
    cache.computed(region, 80)
    cache.close(region)
    assert list(cache.kept) == [region]
    again = cache.open(120, (77,) * 100)
    assert again.reused == 80


def test_many_requests_leave_no_more_than_their_share_and_a_chat_goes_on_from_the_cache():
    model = make("llama")
    target = Target(CompiledEngine(model, info(model), SLOTS), rows_agree=ROWS, kept=KEPT)
    pool = target.engine.pool
    assert pool.slots * pool.slot_bytes > 2 * KEPT
    most = 0
    for number in range(KEPT // (64 * pool.slot_bytes) + 20):
        text, _ = answer(target, some_prompt(100, seed=number))
        most = max(most, target.kv_cached * pool.slot_bytes)
    assert KEPT / 2 < most <= KEPT
    _, reused = answer(target, [*text, *some_prompt(20, seed=99)])
    assert reused >= 96


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_a_text_is_the_same_in_memory_that_was_given_back(family):
    model = make(family)
    target = Target(CompiledEngine(model, info(model), SLOTS), kept=0)
    first, _ = answer(target, some_prompt(300))
    answer(target, some_prompt(80, seed=1))
    chunks = [LIBC.malloc(BITS) for _ in range(MANY)]
    for chunk in chunks:
        ctypes.memset(chunk, 1, BITS)
    used = resident()
    for chunk in chunks[:-1]:  # the last one holds the heap's end
        LIBC.free(ctypes.c_void_p(chunk))
    target.give_back()
    assert used - resident() > 0.9 * MANY * BITS  # what a start or a request freed
    LIBC.free(ctypes.c_void_p(chunks[-1]))
    again, _ = answer(target, some_prompt(300))
    assert again == first
