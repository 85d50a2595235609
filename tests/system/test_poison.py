"""A request that makes the verifier fail ends alone; only what is not one request's fault ends the verifier."""

import asyncio

import pytest

from actors.verifier import scheduler
from protocols.messages import Chunk, Failed, FailureCode, Generate, Sampling, Status, StatusReport
from tests.world.caller import Caller, tokens_of
from tests.world.clock import run
from tests.world.cluster import Cluster
from tests.world.models import ToyCodec, ToyLanguage, ToyTarget

POISON = 13
PROMPT, POISONED = (5, 9, 33), (POISON, 9, 33)
LANGUAGE = ToyLanguage()
SAMPLING = Sampling(max_tokens=40)


async def failure(caller, rid: str) -> Failed:
    return await caller.until(lambda m: isinstance(m, Failed) and m.rid == rid)


@pytest.mark.parametrize("method", ["vanilla", "sps", "tree"])
def test_a_request_whose_round_fails_is_told_so_and_the_others_of_its_batch_are_whole(method):
    async def go():
        cluster = Cluster(language=LANGUAGE)
        cluster.target.poison = POISON
        async with cluster:
            cluster.start_drafter()
            await cluster.connected("d1")
            caller = await cluster.caller()
            for rid, prompt in (("a", PROMPT), ("bad", POISONED), ("b", (6, 7, 8))):
                caller.send(Generate(rid, prompt, sampling=SAMPLING, method=method))
            other = await cluster.caller()
            streams = asyncio.create_task(caller_collect(caller, "a", "b"))
            good = await other.generate((2, 3, 4), SAMPLING, method)
            streams, failed = await streams
            await asyncio.sleep(0.1)
            assert cluster.target.kv_used == 0
            return streams, failed, good

    streams, failed, good = run(go())
    assert failed.code is FailureCode.INTERNAL and "the toy target broke" in failed.detail
    assert tokens_of(streams["a"]) == LANGUAGE.continuation(PROMPT, SAMPLING)
    assert tokens_of(streams["b"]) == LANGUAGE.continuation((6, 7, 8), SAMPLING)
    assert tokens_of(good) == LANGUAGE.continuation((2, 3, 4), SAMPLING)


async def caller_collect(caller, *rids):
    """The chunks of those requests, and the failure of another."""
    chunks = {rid: [] for rid in rids}
    failed = None
    while failed is None or any(not c or c[-1].finish_reason is None for c in chunks.values()):
        message = await caller.next()
        if isinstance(message, Chunk) and message.rid in chunks:
            chunks[message.rid].append(message)
        elif isinstance(message, Failed):
            failed = message
    return chunks, failed


def test_a_prompt_on_which_the_tokenizer_fails_ends_that_request_only():
    class Codec(ToyCodec):
        def encode(self, text, special_tokens=True, context=0):
            if text == "poison":
                raise RuntimeError("the toy tokenizer broke, as asked")
            return super().encode(text, special_tokens)

    async def go():
        async with Cluster(language=LANGUAGE, codec=Codec()) as cluster:
            caller = await cluster.caller()
            caller.send(Generate("bad", "poison", sampling=SAMPLING))  # a short text: if it is served, that ends
            failed = await failure(caller, "bad")
            return failed, await caller.generate(PROMPT, SAMPLING, "vanilla")

    failed, good = run(go())
    assert failed.code is FailureCode.INTERNAL and "the toy tokenizer broke" in failed.detail
    assert tokens_of(good) == LANGUAGE.continuation(PROMPT, SAMPLING)


@pytest.mark.parametrize("step", ["prepare", "grow", "learn"])
def test_an_error_in_our_own_code_about_one_requests_drafts_ends_no_request(step, monkeypatch):
    from actors.verifier.sources.lookup import Lookup

    right = getattr(Lookup, step)

    def wrong(self, asked, *args):
        (stream,) = asked if isinstance(asked, list) else [asked]
        if stream.text.committed[0] == POISON:
            raise ZeroDivisionError("division by zero")
        return right(self, asked, *args)

    monkeypatch.setattr(Lookup, step, wrong)

    async def go():
        async with Cluster(language=LANGUAGE) as cluster:
            callers = [await cluster.caller() for _ in range(2)]
            asked = [one.generate(p, SAMPLING, "auto") for one, p in zip(callers, (POISONED, PROMPT), strict=True)]
            return [tokens_of(chunks) for chunks in await asyncio.gather(*asked)]

    assert run(go()) == [LANGUAGE.continuation(prompt, SAMPLING) for prompt in (POISONED, PROMPT)]


def test_a_target_that_fails_on_every_request_ends_the_verifier():
    async def go():
        cluster = Cluster(language=LANGUAGE)
        cluster.target.broken = True
        cluster.start_verifier()
        caller = Caller(cluster.network, "c")
        await caller.hello()
        for rid in "abcd":
            caller.send(Generate(rid, PROMPT, sampling=SAMPLING, method="vanilla"))
        with pytest.raises(RuntimeError, match="toy target broke"):
            await cluster.tasks["verifier"]

    run(go())


def test_requests_that_fail_one_by_one_do_not_end_a_verifier_that_works():
    async def go():
        cluster = Cluster(language=LANGUAGE)
        cluster.target.poison = POISON
        async with cluster:
            caller = await cluster.caller()
            for turn in range(6):
                caller.send(Generate(f"bad{turn}", POISONED, sampling=SAMPLING, method="vanilla"))
                await failure(caller, f"bad{turn}")
            caller.send(Status("s"))
            return await caller.until(lambda m: isinstance(m, StatusReport))

    report = run(go())
    assert report.counters["failed_requests"] == 6 and report.target.kv_used == 0


def test_a_request_with_which_the_verifier_ended_five_times_is_not_tried_again_and_with_four_it_is():
    async def go():
        async with Cluster(language=LANGUAGE) as cluster:
            caller = await cluster.caller()
            caller.send(Generate("chance", PROMPT, sampling=SAMPLING, attempt=4))
            tried = await caller.collect("chance")
            caller.send(Generate("r", PROMPT, sampling=SAMPLING, attempt=5))
            return tried["chance"], await failure(caller, "r")

    tried, failed = run(go())
    assert tokens_of(tried) == LANGUAGE.continuation(PROMPT, SAMPLING)
    assert failed.code is FailureCode.INTERNAL and "ended 5 times" in failed.detail


def test_suspects_are_computed_one_at_a_time_and_alone_until_they_have_got_on():
    sampling = Sampling(max_tokens=60)

    async def go():
        async with Cluster(language=LANGUAGE) as cluster:
            caller = await cluster.caller()
            caller.send(Generate("innocent", (2, 3, 4), sampling=sampling, method="vanilla"))
            for rid in ("first", "second"):
                caller.send(Generate(rid, PROMPT, sampling=sampling, method="vanilla", attempt=2))
            streams = await caller.collect("innocent", "first", "second")
            return streams, caller.seen, cluster.target.batches

    streams, seen, batches = run(go())
    assert all(streams[rid][0].token_ids == () for rid in ("first", "second")), "they are told that they have begun"
    for rid in ("first", "second"):
        assert tokens_of(streams[rid]) == LANGUAGE.continuation(PROMPT, sampling)
    order = [(m.rid, m.offset) for m in seen if isinstance(m, Chunk)]
    assert order.index(("second", 0)) > order.index(("first", 14))
    innocent, first, second = 1, 2, 3  # handles
    together = [b for b in batches if len(b) > 1]
    alone = sum(b == [first] for b in batches)
    assert alone == 15, "the sixteenth token settles it; the first was the prefill's"
    assert sum(b == [second] for b in batches) >= 15 and any(set(b) == {innocent, first} for b in together)


def test_streams_whose_verifier_died_once_go_on_together():
    async def go():
        async with Cluster(language=LANGUAGE) as cluster:
            caller = await cluster.caller()
            for rid in ("first", "second"):
                caller.send(Generate(rid, PROMPT, sampling=SAMPLING, method="vanilla", attempt=1))
            return await caller.collect("first", "second"), cluster.target.batches

    streams, batches = run(go())
    for chunks in streams.values():
        assert chunks[0].token_ids == (), "each client knows that its request may be the cause, should this end too"
        assert tokens_of(chunks) == LANGUAGE.continuation(PROMPT, SAMPLING)
    assert sum(len(batch) == 2 for batch in batches) > SAMPLING.max_tokens // 2


def test_a_request_whose_prompt_only_waits_is_not_taken_for_a_cause():
    """Its client counts an end of the verifier from the empty chunk on; the prompts before it may take long."""

    async def go():
        async with Cluster(language=LANGUAGE) as cluster:
            caller = await cluster.caller()
            for rid, length in (("long", 400), ("next", 3)):
                caller.send(Generate(rid, tuple(range(2, 5)) * length, sampling=SAMPLING, method="vanilla", attempt=1))
            await caller.collect("long", "next")
            return [(m.rid, len(m.token_ids)) for m in caller.seen if isinstance(m, Chunk)]

    seen = run(go())
    assert seen.index(("next", 0)) > seen.index(("long", 1)) > seen.index(("long", 0))


def test_no_forward_has_more_rows_than_there_may_be(monkeypatch):
    monkeypatch.setattr(scheduler, "MAX_ROWS", 6)
    rows = []

    class Counting(ToyTarget):
        def verify(self, windows):
            rows.append(sum(1 + len(window.tokens) for window in windows))
            return super().verify(windows)

    async def go():
        cluster = Cluster(language=LANGUAGE)
        cluster.target = Counting(LANGUAGE)
        async with cluster:
            cluster.start_drafter(skill=1.0)
            await cluster.connected("d1")
            caller = await cluster.caller()
            for i in range(9):
                caller.send(Generate(f"r{i}", (i + 2, 5, 9), sampling=SAMPLING, method="tree"))
            return await caller.collect(*(f"r{i}" for i in range(9)))

    streams = run(go())
    assert max(rows) == 6
    for i in range(9):
        assert tokens_of(streams[f"r{i}"]) == LANGUAGE.continuation((i + 2, 5, 9), SAMPLING)


@pytest.mark.parametrize("field", ["num_speculative_tokens", "sequences"])
@pytest.mark.parametrize("value", [-5, 10**9])
def test_a_draft_length_that_cannot_work_is_refused_with_a_sentence(field, value):
    async def go():
        async with Cluster(language=LANGUAGE) as cluster:
            caller = await cluster.caller()
            caller.send(Generate("r", PROMPT, **{field: value}))
            return await failure(caller, "r")

    failed = run(go())
    assert failed.code is FailureCode.BAD_REQUEST and field in failed.detail
