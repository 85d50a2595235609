"""A draft can only cost time: whatever a source raises, or says that is no number, it is dropped and texts go on."""

import asyncio
import logging
import math
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from actors.datastore import Datastore, Meta
from actors.methods import STRATEGIES
from actors.verifier.sources.bits import TEXT
from actors.verifier.sources.head import HeadSource
from actors.verifier.sources.lookup import Library
from actors.verifier.sources.memory import Memory
from actors.verifier.sources.source import Source
from protocols import wire
from protocols.errors import ModelError, RefusedError
from protocols.messages import (
    Decline,
    DraftStats,
    Generate,
    Grow,
    Heartbeat,
    Hello,
    Open,
    Resync,
    Role,
    Sampling,
    Status,
    StatusReport,
)
from tests.verifier.test_inline_promotion import LANGUAGE, School
from tests.world.caller import ADDRESS, tokens_of
from tests.world.clock import run
from tests.world.cluster import Cluster
from tests.world.inline_drafts import FORWARD_S, PROMPT, STEP_US, Counting, cluster
from tests.world.models import EOS, INFO, VOCAB, ToyDraft

LONG = Sampling(max_tokens=50, ignore_eos=True)
HOT = Sampling(max_tokens=40, temperature=1.0, seed=3)
NO_PROBABILITIES = [math.nan, math.inf, -math.inf, -1.0, 3e38, float(2**63)]
NO_TOKENS = [-1, -(2**63)]
NO_LOGS = [math.nan, math.inf, -math.inf, 1.0, 3e38]


class Unsound(Counting):
    """From a step on it says what is neither a probability nor a token."""

    wrong, first = {"probs": (math.nan,) * 3}, 5

    def expand(self, leaves):
        found = super().expand(leaves)
        return [replace(one, **self.wrong) for one in found] if self.steps > self.first else found


def unsound(field, value, first=5):
    model = Unsound(LANGUAGE)
    model.wrong, model.first = {field: (value,) * 3}, first
    return model


WRONG = [("probs", value) for value in NO_PROBABILITIES] + [("tokens", value) for value in NO_TOKENS]


async def texts(system, samplings=(LONG, HOT)):
    """The texts of as many streams at once; then of another."""
    callers = [await system.caller() for _ in samplings]
    asked = [one.generate(PROMPT, sampling) for one, sampling in zip(callers, samplings, strict=True)]
    chunks = [*await asyncio.gather(*asked), await callers[0].generate(PROMPT, samplings[0])]
    assert [tokens_of(one) for one in chunks] == [LANGUAGE.continuation(PROMPT, s) for s in (*samplings, samplings[0])]
    return chunks


async def report(system) -> StatusReport:
    caller = await system.caller()
    caller.send(Status("s"))
    return await caller.until(lambda m: isinstance(m, StatusReport))


# --- models ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [0, 5])
@pytest.mark.parametrize(("field", "value"), WRONG)
def test_a_draft_between_forwards_that_says_what_is_no_number_drafts_no_more(field, value, first, caplog):
    model = unsound(field, value, first)

    async def story():
        async with cluster(model) as system:
            await texts(system)
            return await report(system)

    told = run(story()).inline
    assert "drafts no more: the draft model gives token" in told.trouble and "use another draft model" in told.trouble
    assert model.steps == first + 1, "it is not asked again"
    assert sum(one.levelno >= logging.ERROR for one in caplog.records) == 1
    assert not any(one.exc_info for one in caplog.records)


@pytest.mark.parametrize(("field", "value"), WRONG)
def test_a_head_that_says_what_is_no_number_drafts_no_more(field, value):
    class Head(Unsound):
        def follow(self, handle, source): ...

    model = Head(LANGUAGE)
    model.wrong = {field: (value,) * 3}
    head = HeadSource(model, STEP_US, VOCAB, frozenset({EOS}))

    async def story():
        async with Cluster(forward_s=FORWARD_S, inline=head, language=LANGUAGE) as system:
            await texts(system)
            return await report(system)

    assert "drafts no more" in run(story()).inline.trouble


def test_weights_of_a_learner_that_are_no_numbers_draft_until_others_are_promoted():
    bad, good = unsound("probs", math.nan, 0), Counting(LANGUAGE)

    async def story():
        async with School(Counting(LANGUAGE), bad=bad, good=good) as system:
            promote = await system.learner()
            promote(1, "bad")
            await system.version(1)
            await texts(system)
            told = await report(system)
            promote(2, "good")
            await system.version(2)
            await texts(system)
            return told, await report(system)

    told, after = run(story())
    assert "drafts no more" in told.inline.trouble and bad.steps == 1
    assert not after.inline.trouble and good.steps > 3


@pytest.mark.parametrize(("field", "value"), WRONG)
def test_a_drafter_whose_model_says_what_is_no_number_declines_and_then_ends_with_one_sentence(field, value):
    async def story():
        async with Cluster(language=LANGUAGE, forward_s=FORWARD_S) as system:
            system.start_drafter("d1", model=unsound(field, value))
            await system.connected("d1")
            await texts(system)
            await texts(system)
            with pytest.raises(ModelError, match=r"the draft model gives token .* use another draft model"):
                await system.tasks["d1"]
            del system.tasks["d1"]

    run(story())


def test_a_drafter_goes_on_with_texts_for_which_its_model_says_numbers():
    class Sometimes(ToyDraft):
        def expand(self, leaves):
            found = super().expand(leaves)
            whose = [self.contexts[leaf.handle][0][0] for leaf in leaves]
            return [replace(one, probs=(math.nan,) * 3) if w == 7 else one for one, w in zip(found, whose, strict=True)]

    async def story():
        async with Cluster(language=LANGUAGE, forward_s=FORWARD_S) as system:
            system.start_drafter("d1", model=Sometimes(LANGUAGE))
            await system.connected("d1")
            one, other = await system.caller(), await system.caller()
            long, short = (msgspec.structs.replace(LONG, max_tokens=count) for count in (300, 4))
            good = asyncio.ensure_future(one.generate(PROMPT, long, "sps"))
            for _ in range(5):
                assert tokens_of(await other.generate((7, 8), short, "sps")) == LANGUAGE.continuation((7, 8), short)
            chunks = await good
            assert tokens_of(chunks) == LANGUAGE.continuation(PROMPT, long)
            assert not system.tasks["d1"].done()
            return chunks[-1].stats

    assert run(story()).accepted_tokens > 10


# --- retrieval -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["tokens", "suffixes", "starts"])
@pytest.mark.parametrize("value", [-1, 2**31 - 1, 2**63 - 1, VOCAB, math.nan])
@pytest.mark.parametrize("method", ["auto", "rest"])
def test_a_datastore_that_holds_nonsense_costs_its_own_drafts(which, value, method):
    own = LANGUAGE.continuation(PROMPT, LONG)
    tokens = np.array([*PROMPT, *own] * 3, np.int64)
    order = sorted(range(len(tokens)), key=lambda at: tokens[at:].tolist())
    starts = np.searchsorted(tokens[order], np.arange(VOCAB + 2))
    arrays = {"tokens": tokens, "suffixes": np.array(order), "starts": starts}
    wrong = arrays[which].astype(np.float64 if value != value else np.int64)
    wrong[: len(wrong) if which == "tokens" else len(wrong) // 2] = value
    store = Datastore(Meta(VOCAB, "", len(tokens), 3), **{**arrays, which: wrong})

    async def story():
        async with Cluster(language=LANGUAGE, forward_s=FORWARD_S, sources=Library(store)) as system:
            caller = await system.caller()
            for _ in range(2):
                assert tokens_of(await caller.generate(PROMPT, LONG, method)) == own

    run(story())


def test_a_memory_that_holds_nonsense_costs_its_own_drafts():
    memory = Memory(1000)
    own = LANGUAGE.continuation(PROMPT, LONG)

    async def story():
        async with Cluster(language=LANGUAGE, forward_s=FORWARD_S, sources=Library(memory=memory)) as system:
            caller = await system.caller()
            assert tokens_of(await caller.generate(PROMPT, LONG)) == own
            await asyncio.sleep(0.1)
            memory.tokens[60:] = 2**31 - 1
            assert tokens_of(await caller.generate(PROMPT, LONG)) == own

    run(story())


# --- any source ------------------------------------------------------------------------------------------------------


class Odd(Source):
    name, bit = "text", TEXT

    def __init__(self, broken: str = "") -> None:
        self.broken, self.calls = broken, 0

    def __getattribute__(self, name):
        if name == object.__getattribute__(self, "broken"):
            return self._break
        return object.__getattribute__(self, name)

    def _break(self, *arguments):
        self.calls += 1
        raise ZeroDivisionError("division by zero")


@pytest.mark.parametrize("call", ["judged_as", "prepare", "grow", "learn", "end"])
def test_a_source_that_raises_is_dropped_for_good_with_one_sentence(call, caplog):
    library = Library()
    library.sources = [Odd(call)]

    async def story():
        async with Cluster(language=LANGUAGE, forward_s=FORWARD_S, sources=library) as system:
            await texts(system)
            return await report(system)

    assert run(story()).counters["dropped_sources"] == 1
    assert library.sources[0].calls == 1
    [said] = [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR]
    assert said.startswith("drafts from source text end here, and texts go on without them: it failed (ZeroDivision")


@pytest.mark.parametrize(
    ("token", "logprob"),
    [(token, -0.1) for token in (*NO_TOKENS, VOCAB, 2**63)] + [(7, value) for value in NO_LOGS],
)
def test_a_source_that_names_no_token_or_no_chance_is_dropped(token, logprob):
    class Wild(Odd):
        def grow(self, streams, allowance):
            for stream in streams:
                stream.tree.add(stream.tree.root, token, logprob, source=self.bit)

    library = Library()
    library.sources = [Wild()]

    async def story():
        async with Cluster(language=LANGUAGE, forward_s=FORWARD_S, sources=library) as system:
            await texts(system)
            return await report(system)

    assert run(story()).counters["dropped_sources"] == 1


# --- what drafters send ----------------------------------------------------------------------------------------------

NUMBERS = [math.nan, math.inf, -math.inf, -1, -1.0, 2**63, 2**64 - 1, -(2**63), 1e308, 3e38, 0, 1e-300]


def altered(value):
    """``value`` with each of its numbers, one after the other, replaced by each of ``NUMBERS``."""
    if isinstance(value, bool) or value is None or isinstance(value, (str, bytes)):
        return
    if isinstance(value, (int, float)):
        yield from NUMBERS
        return
    for at, part in enumerate(value):
        for other in altered(part):
            yield [*value[:at], other, *value[at + 1 :]]


def test_whatever_numbers_a_drafter_sends_the_texts_are_the_targets():
    """Each numeric field of each message of a drafter that holds a live lease, and of its Hello."""
    sent = 0

    async def story():
        nonlocal sent
        async with Cluster(language=LANGUAGE, forward_s=FORWARD_S) as system:
            link = system.network.host("liar").connect(ADDRESS)
            decoder = wire.Decoder(Open)
            hello = Hello(
                Role.DRAFTER, "liar", "l", "toy", VOCAB, INFO.tokenizer_digest, INFO.max_context, step_us=100.0
            )

            def raw(body):
                nonlocal sent
                sent += 1
                link.send([wire.HEADER, msgspec.msgpack.encode(body)])

            def messages(lease):
                rid, epoch, base = lease.rid, lease.epoch, len(lease.prefix)
                yield Grow(
                    *(rid, epoch, base, (-1, 0), (5, 6), (-0.1, -0.2)),
                    sequences=1, complete=True, sent_us=10.0, forwards=((5, 6),), ranks=(1, 2),
                )  # fmt: skip
                yield Resync(rid, epoch, base)
                yield DraftStats("liar", ((1, 100.0), (8, 200.0)), 0.5, 0)
                yield Heartbeat(1.0)
                yield Decline(rid, epoch)

            link.send(wire.encode(hello))
            caller = await system.caller()
            asked = asyncio.ensure_future(caller.generate(PROMPT, msgspec.structs.replace(LONG, max_tokens=400), "sps"))
            lease = None
            while lease is None:
                frames = await link.receive()
                try:
                    lease = decoder.decode(frames)
                except Exception:  # another message
                    continue
            for message in messages(lease):
                for body in altered(msgspec.msgpack.decode(wire.encode(message)[1])):
                    raw(body)
                    if sent % 20 == 0:
                        await asyncio.sleep(FORWARD_S)
            for body in altered(msgspec.msgpack.decode(wire.encode(hello)[1])):
                raw(body)
                if sent % 20 == 0:
                    await asyncio.sleep(FORWARD_S)
            chunks = await asked
            assert tokens_of(chunks) == LANGUAGE.continuation(PROMPT, msgspec.structs.replace(LONG, max_tokens=400))
            assert not system.tasks["verifier"].done()
            return (await report(system)).counters

    counters = run(story())
    assert sent > 250 and counters["malformed"] > 100
    assert not counters.get("failed_messages") and not counters.get("dropped_sources")


def test_a_message_that_our_code_cannot_handle_harms_its_sender_alone(caplog):
    async def story():
        async with Cluster(language=LANGUAGE, forward_s=FORWARD_S) as system:
            remote = system.verifier.sources["drafter"]
            system.verifier.inbox.routes[Grow] = (Role.DRAFTER, lambda *_: 1 / 0)
            system.start_drafter("d1")
            await system.connected("d1")
            await texts(system)
            with pytest.raises(RefusedError, match="failed on a message of d1"):
                await system.tasks.pop("d1")
            assert remote is system.verifier.sources["drafter"]
            caller, other = await system.caller(), await system.caller()
            system.verifier.inbox.routes[Generate] = (Role.CLIENT, lambda *_: 1 / 0)
            caller.send(Generate("bad", PROMPT))
            failed = await caller.next()
            assert failed.rid == "bad" and "its log has the details" in failed.detail
            other.send(Status("s"))
            return await other.until(lambda m: isinstance(m, StatusReport))

    assert run(story()).counters["failed_messages"] >= 2


def test_every_method_names_sources_that_the_boundary_knows():
    async def story():
        async with Cluster(language=LANGUAGE) as system:
            return {source.name for source in system.verifier.sources}

    named = {name for strategy in STRATEGIES.values() for name in strategy.sources}
    assert named - run(story()) <= {"inline", "head", "memory", "datastore", "recycling", "rest"}
