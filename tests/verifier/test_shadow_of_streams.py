"""What a second drafter would have drafted for a stream is asked of its past, and costs the stream nothing."""

from __future__ import annotations

import asyncio
from unittest.mock import patch

import pytest

from actors.cost import CostModel
from actors.verifier.drafters import DrafterPeer
from actors.verifier.pool import STAY_ROUNDS
from actors.verifier.shadow import LIMIT_S, PLAN
from actors.verifier.standing import Standings
from actors.verifier.waits import DrafterPace
from protocols.messages import (
    Cancel,
    Chunk,
    Close,
    Decline,
    Done,
    DrainActor,
    Generate,
    Grow,
    Hello,
    Open,
    Resync,
    Role,
    Sampling,
    Swap,
    Verdict,
)
from tests.world.caller import DrafterByHand, tokens_of
from tests.world.clock import run
from tests.world.cluster import Cluster
from tests.world.fakes import INFO, ToyDraft, ToyLanguage

PROMPT = (5, 9, 33)
LANGUAGE = ToyLanguage()
LONG = Sampling(max_tokens=700)


class Other(DrafterByHand):
    async def joins(self) -> Open:
        """Once it is known; the lease on the past of a stream that it is offered then."""
        await self.hello(model_id="another", step_us=100.0)
        self.beating = asyncio.create_task(self.beat())
        opened = await self.until(lambda m: isinstance(m, Open))
        assert opened.plan == PLAN
        return opened

    async def closed(self) -> Close:
        return await self.until(lambda m: isinstance(m, Close))

    def leave(self) -> None:
        self.beating.cancel()


def as_calibrated(cluster: Cluster) -> None:
    """Forwards that take no time on the clock that measures them say nothing of the target."""
    cluster.verifier.state.cost.observe = lambda *round_, **of: None


class Story:
    """A stream that ``present`` drafts for, and that another drafter is asked about."""

    async def __aenter__(self) -> Story:
        self.cluster = Cluster(language=LANGUAGE, forward_s=0.02)
        await self.cluster.__aenter__()
        as_calibrated(self.cluster)
        self.cluster.start_drafter("present", skill=0.5)
        await self.cluster.connected("present")
        self.caller = await self.cluster.caller()
        self.caller.send(Generate("r", PROMPT, sampling=LONG, method="sps"))
        await self.caller.until(lambda m: isinstance(m, Chunk) and m.offset > 120)
        self.other = Other(self.cluster.network, "other")
        self.opened = await self.other.joins()
        return self

    async def __aexit__(self, *exc) -> None:
        self.other.leave()
        await self.cluster.__aexit__(*exc)

    @property
    def shadows(self):
        return self.cluster.verifier.leases.shadows

    @property
    def holder(self) -> str:
        (request,) = self.cluster.verifier.state.requests
        return request.status().drafter

    async def answer(self, right: bool) -> None:
        """For every place, until the shadow is over."""
        truth = [*PROMPT, *LANGUAGE.continuation(PROMPT, LONG)]
        message: Open | Verdict | Close = self.opened
        while not isinstance(message, Close):
            base = len(message.prefix) if isinstance(message, Open) else message.base_len + len(message.tokens)
            token = truth[base] if right else (truth[base] + 1) % INFO.vocab_size
            self.other.send(Grow("r", message.epoch, base, (-1,), (token,), (-0.1,), complete=True))
            message = await self.other.until(lambda m: isinstance(m, (Verdict, Close)))

    async def ends(self) -> None:
        """The text is whole, and nothing is left of it."""
        chunks = [m for m in self.caller.seen if isinstance(m, Chunk)]
        if chunks[-1].finish_reason is None:
            chunks += (await self.caller.collect("r"))["r"]
        assert tokens_of(chunks) == LANGUAGE.continuation(PROMPT, LONG)
        assert self.shadows.running is None


def test_the_stream_moves_to_a_drafter_that_would_have_been_right_and_none_of_its_guesses_was_verified():
    async def go():
        async with Story() as story:
            credit = story.cluster.verifier.state.drafters.named("other")
            assert story.holder == "present"
            (request,) = story.cluster.verifier.state.requests
            assert len(story.opened.prefix) < len(request.spec.committed)
            await story.answer(right=True)
            assert credit.drafted == 0 and credit.dropped == 0
            told = credit.status(None)
            assert told.asked == 1 and 0 < told.compared == told.right > told.others_right > 0
            lease = await story.other.until(lambda m: isinstance(m, Open))
            assert lease.epoch > story.opened.epoch and len(lease.prefix) > len(story.opened.prefix)
            assert story.holder == "other" and story.shadows.running is None
            story.caller.send(Swap("s", "other", "present"))
            await story.ends()

    run(go())


def test_the_stream_stays_where_the_other_would_have_been_wrong_and_it_is_asked_after_twice_as_many_rounds():
    async def go():
        async with Story() as story:
            (request,) = story.cluster.verifier.state.requests
            asked = request.spec.round
            await story.answer(right=False)
            assert story.holder == "present"
            again = await story.other.until(lambda m: isinstance(m, Open))
            assert again.plan == PLAN and request.spec.round >= 2 * asked
            await story.ends()

    run(go())


def test_a_shadow_ends_with_its_stream():
    async def go():
        async with Story() as story:
            story.caller.send(Cancel("r"))
            assert (await story.other.closed()).epoch == story.opened.epoch
            assert story.shadows.running is None and not story.cluster.verifier.state.requests

    run(go())


def test_a_shadow_that_says_nothing_ends_after_a_while_and_is_none_again_for_as_long():
    async def go():
        async with Story() as story:
            began = story.cluster.verifier.clock()
            await story.other.closed()
            took = story.cluster.verifier.clock() - began
            assert LIMIT_S - 1 < took < LIMIT_S + 1
            peer = story.cluster.verifier.state.drafters.named("other")
            assert peer.shadow_after - story.cluster.verifier.clock() > LIMIT_S - 1
            await story.ends()

    run(go())


async def _declines(story: Story) -> None:
    story.other.send(Decline("r", story.opened.epoch))


async def _misses_a_message(story: Story) -> None:
    story.other.send(Resync("r", story.opened.epoch, len(story.opened.prefix)))


async def _is_drained(story: Story) -> None:
    story.caller.send(DrainActor("d", "other"))
    await story.caller.until(lambda m: isinstance(m, Done))


async def _takes_over(story: Story) -> None:
    story.caller.send(Swap("s", "present", "other"))
    await story.caller.until(lambda m: isinstance(m, Done))


async def _stands_alone(story: Story) -> None:
    await story.cluster.kill("present")


@pytest.mark.parametrize("happens", [_declines, _misses_a_message, _is_drained, _takes_over, _stands_alone])
def test_a_shadow_is_over_when_its_drafter(happens):
    async def go():
        async with Story() as story:
            await happens(story)
            assert (await story.other.closed()).epoch == story.opened.epoch
            assert story.shadows.running is None
            if happens is _takes_over:
                lease = await story.other.until(lambda m: isinstance(m, Open))
                assert lease.epoch > story.opened.epoch
            if story.holder == "other":
                story.caller.send(DrainActor("d2", "other"))
            await story.ends()

    run(go())


def test_a_drafter_that_dies_as_a_shadow_leaves_nothing_behind():
    async def go():
        async with Story() as story:
            story.cluster.network.kill("other")
            await asyncio.sleep(LIMIT_S)
            assert story.shadows.running is None and story.holder == "present"
            await story.ends()

    run(go())


def test_what_a_shadow_had_answered_when_it_was_broken_off_is_told_and_one_that_said_nothing_was_not_asked():
    async def go():
        async with Story() as story:
            drafters, base = story.cluster.verifier.state.drafters, len(story.opened.prefix)
            assert drafters.named("other").status(None).asked == 0
            story.other.send(Grow("r", story.opened.epoch, base, (-1,), (0,), (-0.1,), complete=True))
            await story.other.until(lambda m: isinstance(m, Verdict))
            story.other.send(Decline("r", story.opened.epoch))
            await story.other.closed()
            told = drafters.named("other").status(None)
            assert (told.asked, told.compared) == (1, 1)
            await story.ends()

    run(go())


def test_a_shadow_gives_its_room_up_for_a_stream():
    async def go():
        async with Story() as story:
            story.caller.send(Generate("second", PROMPT, sampling=Sampling(max_tokens=20), method="pearl"))
            closed = await story.other.closed()
            opened = await story.other.until(lambda m: isinstance(m, Open))
            assert closed.epoch == story.opened.epoch and opened.rid == "second"

    run(go())


def test_each_question_lets_a_drafter_say_one_thing_that_is_not_charged_to_it():
    hello = Hello(Role.DRAFTER, "d", "1")
    drafter = DrafterPeer(b"d", hello, DrafterPace(CostModel({1: 100.0})), 0.0, "d", Standings())
    drafter.ask()
    assert [drafter.answers(), drafter.answers()] == [True, False]


@pytest.mark.parametrize("twin", [False, True], ids=["alone", "beside one like it"])
def test_nothing_is_asked_where_one_drafter_is(twin):
    async def go():
        async with Cluster(language=LANGUAGE, forward_s=0.02) as cluster:
            cluster.start_drafter("one", skill=0.5)
            await cluster.connected("one")
            caller = await cluster.caller()
            caller.send(Generate("r", PROMPT, sampling=Sampling(max_tokens=300), method="sps"))
            await caller.until(lambda m: isinstance(m, Chunk) and m.offset > 20)
            if twin:
                cluster.start_drafter("two", skill=0.9)
                await cluster.connected("two")
            chunks = (await caller.collect("r"))["r"]
            assert chunks[-1].stats.rounds > 2 * STAY_ROUNDS
            assert cluster.verifier.state.epoch == 1

    with patch.object(DrafterPace, "measured", lambda pace, steps: None):  # both are as quick as they said
        run(go())


def test_a_draft_model_answers_as_it_would_have_drafted():
    async def go():
        async with Cluster(language=LANGUAGE, forward_s=0.02) as cluster:
            as_calibrated(cluster)
            cluster.start_drafter("present", skill=0.4)
            await cluster.connected("present")
            caller = await cluster.caller()
            caller.send(Generate("r", PROMPT, sampling=LONG, method="sps"))
            await caller.until(lambda m: isinstance(m, Chunk) and m.offset > 120)
            cluster.start_drafter("better", model=ToyDraft(LANGUAGE, 0.9), model_id="another")
            chunks = [m for m in caller.seen if isinstance(m, Chunk)] + (await caller.collect("r"))["r"]
            assert tokens_of(chunks) == LANGUAGE.continuation(PROMPT, LONG)
            return chunks[-1].stats

    assert run(go()).drafters == ("present", "better")
