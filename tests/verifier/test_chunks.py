"""What clients are told when: short rounds share a chunk, and nothing that is committed is kept for long."""

import asyncio
import itertools

from actors.verifier.chunks import CHUNK_S, MAX_CHUNK_S, Chunks
from protocols.messages import Chunk, Failed, Generate, Sampling
from tests.world.caller import Caller, tokens_of
from tests.world.clock import run
from tests.world.cluster import Cluster
from tests.world.fakes import ToyLanguage

PROMPT = (5, 9, 33)
LANGUAGE = ToyLanguage()
FORWARD_S = 0.002
SAMPLING = Sampling(max_tokens=200)


async def told(caller: Caller, **fields) -> list[tuple[float, Chunk]]:
    """The chunks of an answer with the times at which they came."""
    clock = asyncio.get_running_loop().time
    caller.send(Generate("r", PROMPT, sampling=SAMPLING, method="vanilla", **fields))
    chunks: list[tuple[float, Chunk]] = []
    while not chunks or chunks[-1][1].finish_reason is None:
        message = await caller.next()
        if isinstance(message, Chunk) and message.token_ids:
            chunks.append((clock(), message))
    return chunks


def answered(forward_s: float, **fields) -> list[tuple[float, Chunk]]:
    async def go():
        async with Cluster(language=LANGUAGE, forward_s=forward_s, chunk_s=CHUNK_S) as cluster:
            return await told(await cluster.caller(), **fields)

    return run(go())


def test_short_rounds_share_a_chunk_and_the_text_is_the_same():
    chunks = answered(FORWARD_S)
    assert tokens_of([chunk for _, chunk in chunks]) == LANGUAGE.continuation(PROMPT, SAMPLING)
    assert len(chunks) < 200 * FORWARD_S / CHUNK_S * 1.3
    assert all(len(c.pieces) == len(c.accepted) == len(c.token_ids) for _, c in chunks)


def test_no_chunk_waits_longer_than_a_screen_takes():
    times = [at for at, _ in answered(FORWARD_S)]
    assert max(b - a for a, b in itertools.pairwise(times)) <= CHUNK_S + 1e-9


def test_the_first_token_and_the_last_wait_for_nothing():
    chunks = answered(FORWARD_S)
    assert len(chunks[0][1].token_ids) == 1
    took = chunks[-1][0] - chunks[0][0]
    assert abs(took - (SAMPLING.max_tokens - 1) * FORWARD_S) < FORWARD_S


def test_rounds_that_are_longer_than_that_have_a_chunk_each():
    assert all(len(chunk.token_ids) == 1 for _, chunk in answered(2 * CHUNK_S))


def test_who_asks_for_a_trace_is_told_of_each_round():
    chunks = [chunk for _, chunk in answered(FORWARD_S, trace=True)]
    assert len(chunks) == SAMPLING.max_tokens
    assert all(chunk.trace is not None for chunk in chunks[1:])


def test_a_client_has_all_that_was_committed_when_its_request_fails():
    """A deadline in the middle of what the next chunk would have told."""

    async def go():
        async with Cluster(language=LANGUAGE, forward_s=FORWARD_S, chunk_s=CHUNK_S) as cluster:
            caller = await cluster.caller()
            caller.send(Generate("r", PROMPT, sampling=SAMPLING, method="vanilla", deadline_ms=100.0))
            await caller.until(lambda m: isinstance(m, Failed))
            counters = cluster.verifier.state.counters
            return [m for m in caller.seen if isinstance(m, Chunk)], counters["generation_tokens"]

    chunks, counted = run(go())
    tokens = tokens_of(chunks)
    assert tokens == LANGUAGE.continuation(PROMPT, SAMPLING)[: len(tokens)]
    assert len(tokens) >= 0.1 / FORWARD_S - 3
    assert counted == len(tokens)


def test_where_telling_many_takes_long_they_are_told_more_rarely_but_not_too_rarely():
    chunks = Chunks()
    assert chunks.interval_s(1) == chunks.interval_s(64) == CHUNK_S
    for _ in range(100):
        chunks.observe(16, 16 * 100.0)
    assert chunks.interval_s(8) == CHUNK_S
    assert CHUNK_S < chunks.interval_s(20) < chunks.interval_s(28) < chunks.interval_s(64) == MAX_CHUNK_S
    assert chunks.forwards(64, 4000.0) == 10 and chunks.forwards(64, 1e6) == 1
