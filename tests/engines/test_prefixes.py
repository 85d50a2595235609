"""The prefix cache's book-keeping, without a model."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.engines.cache.pool import RegionAllocator
from actors.engines.cache.prefix_index import PrefixIndex
from actors.engines.cache.prefixes import PrefixCache
from protocols.errors import PoolFull

CHUNK = 4


def text(*chunks: int, rest: int = 1) -> tuple[int, ...]:
    """Chunks of equal tokens, and ``rest`` tokens of no whole chunk behind them."""
    return tuple(token for chunk in chunks for token in [chunk] * CHUNK) + (99,) * rest


def cache_of(slots: int) -> PrefixCache:
    return PrefixCache(RegionAllocator(slots), CHUNK)


def served(cache: PrefixCache, prompt, size=0, salt=""):
    """Open a request, compute its prompt, and end it; what it took over."""
    region = cache.open(size or len(prompt) + 8, prompt, salt)
    copied = cache.take(region)
    cache.computed(region, len(prompt))
    cache.close(region)
    return region, copied


def test_the_next_turn_grows_the_region_of_the_last_one_and_copies_nothing():
    cache = cache_of(100)
    first, _ = served(cache, text(1, 2))
    assert (cache.cached, first.base) == (2 * CHUNK, 0)
    region = cache.open(40, text(1, 2, 3, 4), "")
    assert (region.base, region.ready, region.reused) == (0, 2 * CHUNK, 2 * CHUNK)
    assert cache.take(region) is None and cache.cached == 0 and cache.allocator.used == 40


def test_the_next_turn_begins_behind_the_last_answer_where_that_is_shared():
    cache = cache_of(100)
    region = cache.open(40, text(1, 2), "")
    cache.computed(region, 9)
    cache.close(region, text(1, 2) + (99,) * 3 + (7,) * 5)
    following = cache.open(60, text(1, 2) + (99,) * 3 + (7,) * 9, "")
    assert (following.base, following.reused) == (0, 4 * CHUNK)


class Mark:
    """A salt with the hash of all others."""

    def __hash__(self) -> int:
        return 1


def test_a_text_that_is_found_by_its_hash_alone_is_not_taken_for_another():
    cache = cache_of(100)
    served(cache, text(1, 2), salt=Mark())
    assert served(cache, text(1, 2), salt=Mark())[1] is None


def test_texts_made_so_that_all_hashes_are_equal_are_only_not_found(monkeypatch):
    monkeypatch.setattr(PrefixIndex, "_marks", lambda self, mark, tokens: [7] * (len(tokens) // CHUNK))
    cache = cache_of(100)
    for prompt in (text(1, 2), text(1, 3), text(4, 4, 4), text(1, 2)):
        served(cache, prompt)
    cache.open(100, text(5), "")  # everything else is given up
    assert not cache.kept


def test_many_chats_have_one_system_prompt_in_common():
    cache = cache_of(4000)
    for chat in range(100):
        served(cache, text(1, 2, 3, 100 + chat))
    region = cache.open(40, text(1, 2, 3, 7), "")
    assert cache.take(region)[1] == 3 * CHUNK and len(cache.kept) == 100


def test_a_prefix_that_another_needs_too_is_copied():
    cache = cache_of(100)
    running = cache.open(20, text(1, 2, 3), "")
    cache.computed(running, 13)
    fork = cache.open(20, text(1, 2, 7), "")
    assert cache.take(fork) == (running.base, 2 * CHUNK) and fork.reused == 2 * CHUNK
    assert fork.base != running.base


def test_of_requests_that_come_together_the_second_takes_what_the_first_has_computed_meanwhile():
    cache = cache_of(100)
    one, two = (cache.open(20, text(1, 2, 3), "") for _ in range(2))
    assert cache.take(one) is None
    cache.computed(one, 13)
    assert cache.take(two) == (one.base, 3 * CHUNK)


def test_only_whole_chunks_before_the_last_token_are_taken_over():
    cache = cache_of(100)
    served(cache, text(1, 2, rest=3))
    for prompt, count in ((text(1, 2, rest=3), 2), (text(1, 2, rest=0), 1), (text(1, rest=2), 1), (text(2, 1), 0)):
        region = cache.open(20, prompt, "")
        copied = cache.take(region)
        assert (copied[1] if copied else region.reused) == count * CHUNK
        cache.close(region)


def test_what_was_not_computed_yet_is_not_taken_over():
    cache = cache_of(100)
    running = cache.open(20, text(1, 2, 3), "")
    cache.computed(running, 6)
    other = cache.open(20, text(1, 2, 3), "")
    assert cache.take(other) == (running.base, CHUNK)


def test_requests_of_different_salts_have_nothing_in_common():
    cache = cache_of(100)
    served(cache, text(1, 2), salt="a")
    _, copied = served(cache, text(1, 2), salt="b")
    assert copied is None and cache.cached == 4 * CHUNK
    assert cache.open(20, text(1, 2), "b").reused == 2 * CHUNK


def test_a_prompt_that_is_the_beginning_of_another_is_kept_once():
    cache = cache_of(200)
    served(cache, text(1, 2, 3))
    for prompt in (text(1, 2), text(1, 2, 3), text(1, 2, 3, 4)):
        served(cache, prompt)
    assert [len(region.text) for region in cache.kept] == [4 * CHUNK]


def test_what_was_used_longest_ago_is_given_up_first():
    cache = cache_of(7 * CHUNK)
    for chunk in (1, 2, 3):
        served(cache, text(chunk), size=2 * CHUNK)
    cache.close(cache.open(2 * CHUNK, text(1, 1), ""))  # used again
    cache.open(6 * CHUNK, text(9), "")
    assert [region.text[0] for region in cache.kept] in ([1], [])
    assert cache.allocator.used <= 7 * CHUNK


def test_a_request_that_must_wait_anyway_costs_no_cached_prompt():
    cache = cache_of(10 * CHUNK)
    served(cache, text(1), size=3 * CHUNK)
    cache.open(6 * CHUNK, text(2), "")
    with pytest.raises(PoolFull, match="needs 20 KV slots"):
        cache.open(5 * CHUNK, text(3), "")
    assert len(cache.kept) == 1


def test_the_region_that_a_request_will_copy_from_is_not_given_up_before():
    cache = cache_of(5 * CHUNK)
    served(cache, text(1), size=2 * CHUNK)
    served(cache, text(2), size=2 * CHUNK)
    reader = cache.open(3 * CHUNK, text(1, 1), "")  # the second region is in the way of growing
    assert reader.base != 0
    assert cache.open(CHUNK, text(rest=3), "").base == CHUNK
    assert [region.text[0] for region in cache.kept] == [1] and cache.take(reader) == (0, CHUNK)
    assert not cache.kept  # it holds nothing that the reader has not


def test_a_request_that_fits_only_where_its_prefix_lies_computes_it_again():
    cache = cache_of(4 * CHUNK)
    first = cache.open(2 * CHUNK, text(rest=3), "")
    served(cache, text(1), size=2 * CHUNK)
    cache.open(CHUNK, text(rest=3), "")  # is in the way of growing
    cache.close(first)
    region = cache.open(3 * CHUNK, text(1, 1), "")
    assert region.base == 0 and cache.take(region) is None and region.ready == 0


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["open", "open", "prefill", "prefill", "decode", "close"]),
            st.lists(st.integers(0, 1), max_size=5),
            st.integers(0, 5),
            st.sampled_from(["", "a"]),
        ),
        max_size=60,
    ),
    st.integers(20, 120),
    st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_whatever_comes_every_slot_holds_what_its_text_says_and_has_one_writer(events, slots, shares):
    """A pool of text positions stands for keys and values: what a request reads must be what it would have computed."""
    cache = cache_of(slots)
    memory: list[object] = [None] * slots
    requests = []  # (region, prompt, salt, done, prompt and answer)
    for event, chunks, number, salt in events:
        if event == "open":
            prompt = text(*chunks, rest=1 + number % 3)
            try:
                region = cache.open(len(prompt) + number, prompt, salt)
            except PoolFull:
                held = sum(region.size for region, *_ in requests)
                assert held > 0 or len(prompt) + number > slots, "a pool without requests has room"
            else:
                requests.append([region, prompt, salt, 0, ()])
            for start, to, count in cache.take_moves():
                memory[to : to + count] = memory[start : start + count]
        elif requests:
            request = requests[number % len(requests)]
            region, prompt, salt, done, _ = request
            if event == "prefill" and done < len(prompt):
                if done == 0:
                    if (copied := cache.take(region)) is not None:
                        base, count = copied
                        memory[region.base : region.base + count] = memory[base : base + count]
                    done = region.ready
                    assert [memory[region.base + p] for p in range(done)] == [
                        (salt, prompt[: p + 1]) for p in range(done)
                    ]
                end = min(done // CHUNK * CHUNK + CHUNK, len(prompt))
                for position in range(done, end):
                    memory[region.base + position] = (salt, prompt[: position + 1])
                cache.computed(region, end)
                request[3] = end
            elif event == "decode" and done == len(prompt):
                answer = min(number, region.size - len(prompt))
                whole = prompt + (number % 2,) * answer
                for position in range(len(prompt), region.size):
                    known = position < len(whole)
                    memory[region.base + position] = (salt, whole[: position + 1]) if known else "drafted"
                request[4] = whole
            elif event == "close":
                requests.remove(request)
                cache.close(region, whole if shares and (whole := request[4]) else ())
        regions = sorted([*cache.kept, *cache.open_regions], key=lambda region: region.base)
        assert all(one.base + one.size <= two.base for one, two in itertools.pairwise(regions))
        assert [(region.base, region.size) for region in regions] == cache.allocator.regions
        assert cache.cached + sum(region.size for region, *_ in requests) == cache.allocator.used <= slots
        assert {id(region) for region, *_ in requests} == {id(region) for region in cache.open_regions}
        assert all(region.readers == sum(other.source is region for other in regions) for region in regions)
        for region in cache.kept:
            assert region.size == region.ready == len(region.text) > 0
    for region, *_ in requests:
        cache.close(region)
    assert cache.cached == cache.allocator.used
    assert cache.open(slots, text(9), "").base == 0 and not cache.kept
