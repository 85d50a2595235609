"""Messages to a drafter that were lost, or come late, and what it does when it is asked to leave."""

import asyncio

from actors.drafter.loop import ASK_AFTER, GIVE_UP_AFTER, REPORT_S
from protocols.messages import Drain, Goodbye, Plan, Resync
from tests.world.desk import Reader, played

SHORT = (5, 6, 7)
OTHER = (9, 8, 7)
LONG = tuple(2 + i % 50 for i in range(1000))


# --- messages that were lost, or come late ---------------------------------------------------------------------------


def test_an_open_that_was_lost_under_a_newer_epoch_is_asked_for():
    async def story(desk):
        desk.open("a", SHORT, epoch=1)
        await desk.settle()
        desk.verdict("a", 3, 4, epoch=2)
        await desk.settle()
        assert desk.take(Resync) == [Resync("a", 2, 0)]
        desk.open("a", (*SHORT, 4), epoch=2)
        await desk.settle()
        assert desk.drafter.leases["a"].epoch == 2

    played(story)


def test_a_verdict_of_an_unknown_request_is_answered_with_a_question():
    async def story(desk):
        desk.verdict("ghost", 3, 4, epoch=7)
        await desk.settle()
        assert desk.take(Resync) == [Resync("ghost", 7, 0)]

    played(story)


def test_a_late_verdict_does_not_bring_an_old_plan_back():
    async def story(desk):
        desk.open("a", SHORT, plan=Plan("pearl", 4))
        await desk.settle()
        desk.verdict("a", 3, 4, number=2, plan=Plan("pearl", 8))
        desk.verdict("a", 2, 7, number=1, plan=Plan("vanilla", 0))
        await desk.settle()
        assert desk.drafter.leases["a"].plan == Plan("pearl", 8)

    played(story)


def test_a_lease_of_which_nothing_is_heard_is_asked_for_and_then_given_up():
    async def story(desk):
        desk.open("a", SHORT)
        await desk.settle(REPORT_S * (ASK_AFTER + 1.5))
        assert Resync("a", 1, 3) in desk.take(Resync)
        desk.open("a", SHORT)  # the verifier's answer to one who knows all there is
        await desk.settle(REPORT_S * (GIVE_UP_AFTER - 1.5))
        assert "a" in desk.drafter.leases
        await desk.settle(REPORT_S * ASK_AFTER)
        assert "a" not in desk.drafter.leases

    played(story)


def test_leases_that_come_in_one_breath_with_the_loss_of_the_old_ones_are_kept():
    async def story(desk):
        desk.open("a", SHORT)
        await desk.settle()
        desk.forget()
        await desk.settle()
        assert not desk.drafter.leases and desk.incarnations == 2
        desk.open("a", SHORT)
        desk.open("b", OTHER, epoch=2)
        await desk.settle()
        assert set(desk.drafter.leases) == {"a", "b"}

    played(story)


# --- leaving ---------------------------------------------------------------------------------------------------------


def test_a_drafter_that_leaves_takes_nothing_new_and_finishes_what_it_has():
    async def story(desk):
        desk.open("a", SHORT)
        await desk.settle()
        desk.send(Drain())
        desk.open("b", OTHER, epoch=2)
        await desk.settle()
        assert list(desk.drafter.leases) == ["a"] and not desk.running.done()
        desk.verdict("b", 3, 4, epoch=2)
        desk.verdict("a", 3, 4)
        await desk.settle()
        assert not desk.take(Resync) and desk.drafted("a")
        desk.close("a")
        await desk.running
        await desk.settle()
        assert len(desk.take(Goodbye)) == 1

    played(story)


def test_a_drafter_drained_in_mid_prefill_leaves_when_its_lease_is_closed():
    class Slow(Reader):
        def prefill(self, handle, limit):
            super().prefill(handle, min(limit, 1))

    async def story(desk):
        desk.open("a", LONG)
        for _ in range(5):
            await asyncio.sleep(0)
        assert desk.drafter.leases["a"].prefilling
        desk.send(Drain())
        desk.close("a")
        await desk.running
        assert desk.model.tokens_read < len(LONG) - 1

    played(story, Slow())
