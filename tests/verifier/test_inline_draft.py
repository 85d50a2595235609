"""A verifier that drafts itself between forwards: the text stays the target's own, and no draft is in its way."""

import asyncio
from dataclasses import replace

import pytest

from actors.models import MAX_FAILURES
from actors.verifier.price import GUESSED
from protocols.errors import CannotDraft
from protocols.messages import Sampling
from tests.world.caller import tokens_of
from tests.world.clock import run
from tests.world.cluster import Cluster
from tests.world.inline_drafts import FORWARD_S, LONG, PROMPT, Counting, Unread, cluster, inline, one_stream
from tests.world.models import INFO, VOCAB, ToyDraft, ToyLanguage


class Failing(Counting):
    """Every step fails."""

    def expand(self, leaves):
        self.steps += 1
        raise RuntimeError("the toy draft broke, as asked")


class Illiterate(Unread):
    def prefill(self, handle, limit):
        raise RuntimeError("the toy draft cannot read, as asked")


class Clumsy(Counting):
    def release(self, handle, slots):
        raise RuntimeError("the toy draft loses slots, as asked")


class Wrong(Counting):
    """It never names the target's token."""

    def expand(self, leaves):
        return [
            replace(one, tokens=tuple(2 + (t + 20) % (VOCAB - 2) for t in one.tokens)) for one in super().expand(leaves)
        ]


class Outgrown(ToyDraft):
    """It can mirror forty tokens."""

    def commit(self, handle, tokens, slots):
        if len(self.contexts[handle][0]) + len(tokens) > 40:
            raise CannotDraft("too long")
        super().commit(handle, tokens, slots)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_text_is_the_targets_own_in_fewer_rounds(temperature):
    language = ToyLanguage(eos_rate=0.01)
    for seed in range(3):
        sampling = Sampling(temperature=temperature, seed=seed, max_tokens=150)
        chunks = run(one_stream(cluster(ToyDraft(language)), sampling))
        text = language.continuation(PROMPT, sampling)
        assert tokens_of(chunks) == text
        stats = chunks[-1].stats
        assert stats.rounds < 0.7 * len(text) + GUESSED  # the first rounds show what they take without drafts
        assert stats.drafters == ()


def test_streams_that_join_and_are_cancelled_have_their_texts_and_share_draft_steps():
    model = Counting()
    lengths = [30, 60, 90, 120, 90]

    async def story():
        system = cluster(model)
        async with system:
            callers = [await system.caller() for _ in lengths]
            sampling = [Sampling(max_tokens=n, seed=n, temperature=n % 4 / 4, ignore_eos=True) for n in lengths]
            asked = [asyncio.ensure_future(c.generate(PROMPT, s)) for c, s in zip(callers, sampling, strict=True)]
            given_up = await system.caller()
            leaving = asyncio.ensure_future(given_up.generate(PROMPT, LONG))
            await asyncio.sleep(20 * FORWARD_S)
            leaving.cancel()
            given_up.link.close()
            texts = [tokens_of(await one) for one in asked]
            assert texts == [model.language.continuation(PROMPT, s) for s in sampling]
        assert model.steps < sum(lengths)

    run(story())


def test_a_first_token_waits_for_no_draft_of_the_second():
    events = []

    class Told(ToyDraft):
        def open(self, *arguments):
            events.append("draft")
            return super().open(*arguments)

    async def story():
        async with cluster(Told()) as system:
            caller, send = await system.caller(), system.verifier.listener.send
            system.verifier.listener.send = lambda peer, frames: events.append("chunk") or send(peer, frames)
            await caller.generate(PROMPT, LONG)

    run(story())
    assert events[0] == "chunk" and "draft" in events


def test_a_trace_tells_when_a_round_waited_for_its_own_drafts():
    async def story():
        async with cluster(ToyDraft()) as system:
            caller = await system.caller()
            return await caller.generate(PROMPT, LONG, "auto", trace=True)

    waited = [chunk.trace.stats for chunk in run(story()) if chunk.trace is not None and chunk.trace.stats.wait_us]
    assert waited
    for round_ in waited:
        assert 0 < round_.wait_us <= round_.started_us
        assert round_.drafting.forwards


def test_slots_of_what_was_drafted_in_vain_come_back():
    model = ToyDraft(skill=0.5, scratch_slots=8)  # it asserts that no more are taken
    chunks = run(one_stream(cluster(model)))
    assert tokens_of(chunks) == model.language.continuation(PROMPT, LONG)


@pytest.mark.parametrize(
    "model",
    [
        Failing(),
        Illiterate(),
        Clumsy(),
        Outgrown(),
        ToyDraft(rooms=0),
        ToyDraft(info=replace(INFO, vocab_size=80)),
        ToyDraft(skill=0.0),
    ],
    ids=[
        "fails",
        "cannot read",
        "fails when it should forget",
        "outgrown",
        "no room",
        "knows more tokens",
        "always wrong",
    ],
)
def test_a_draft_that_is_of_no_use_costs_no_token(model):
    chunks = run(one_stream(cluster(model)))
    assert tokens_of(chunks) == model.language.continuation(PROMPT, LONG)


def test_a_model_that_fails_again_and_again_is_asked_no_more():
    model = Failing()

    async def story():
        system = cluster(model)
        async with system:
            caller = await system.caller()
            for _ in range(2 * MAX_FAILURES):
                await caller.generate(PROMPT, Sampling(max_tokens=10, ignore_eos=True))

    run(story())
    assert model.steps == MAX_FAILURES


def test_what_may_have_ended_a_verifier_is_not_drafted_for():
    model = Counting()

    async def story():
        async with cluster(model) as system:
            caller = await system.caller()
            return await caller.generate(PROMPT, Sampling(max_tokens=10, ignore_eos=True), attempt=2)

    assert len(tokens_of(run(story()))) == 10
    assert model.steps == 0


def test_guesses_that_fail_for_one_request_are_given_up_and_all_texts_are_whole():
    model = ToyDraft()

    def broken():
        raise RuntimeError("its text broke, as asked")

    async def story():
        async with cluster(model) as system:
            callers = [await system.caller() for _ in range(2)]
            asked = [asyncio.ensure_future(caller.generate(PROMPT, LONG)) for caller in callers]
            await asyncio.sleep(5 * FORWARD_S)
            text = system.verifier.sources["text"]
            grow, first = text.grow, next(iter(system.verifier.state.requests))
            text.grow = lambda streams, allowance: broken() if first in streams else grow(streams, allowance)
            texts = [tokens_of(one) for one in await asyncio.gather(*asked)]
            assert "text" not in {source.name for source in system.verifier.sources}
            return texts

    assert run(story()) == [model.language.continuation(PROMPT, LONG)] * 2


def test_drafts_that_never_come_true_are_hardly_made():
    model = Wrong()
    sampling = Sampling(max_tokens=600, ignore_eos=True)
    chunks = run(one_stream(cluster(model), sampling))
    assert model.steps < 0.5 * chunks[-1].stats.rounds


def test_a_step_that_costs_more_than_it_brings_is_not_made():
    model = Counting(skill=0.9)
    dear = inline(model, takes_us=5000.0, step_us={1: 5000.0})
    chunks = run(one_stream(Cluster(forward_s=FORWARD_S, inline=dear, language=model.language)))
    stats = chunks[-1].stats
    assert stats.rounds == LONG.max_tokens - 1 - stats.accepted_tokens  # a retrieved token may be right
    assert stats.accepted_tokens < 3 and model.steps <= 1


@pytest.mark.parametrize(("answer", "reads"), [(400, True), (8, False)])
def test_a_long_text_is_read_where_the_answer_is_long_enough_to_repay_it(answer, reads):
    model = Unread()
    prompt = tuple(2 + i % 50 for i in range(600))

    async def story():
        async with cluster(model) as system:
            caller = await system.caller()
            await caller.generate(prompt, Sampling(max_tokens=answer, ignore_eos=True))

    run(story())
    assert (model.tokens_read > 0) is reads


def test_a_text_that_is_not_worth_reading_is_not_asked_about():
    draft, asked = inline(Unread()), []
    grow = draft.grow
    draft.grow = lambda streams, allowance: (asked.append(len(streams)), grow(streams, allowance))
    prompt = tuple(2 + i % 50 for i in range(600))
    run(one_stream(cluster(draft.model, inline=draft), Sampling(max_tokens=8, ignore_eos=True), prompt=prompt))
    assert asked == []


def test_the_next_turn_of_a_chat_is_not_read_again():
    model = ToyDraft()
    opened = []

    def open_(prefix, prompt_len, sampling):
        opened.append(len(prefix))
        return ToyDraft.open(model, prefix, prompt_len, sampling)

    model.open = open_

    async def story():
        system = cluster(model)
        async with system:
            caller = await system.caller()
            first = tokens_of(await caller.generate(PROMPT, LONG))
            await caller.generate((*PROMPT, *first, 7, 8), Sampling(max_tokens=20, ignore_eos=True))

    run(story())
    assert max(opened) < LONG.max_tokens
