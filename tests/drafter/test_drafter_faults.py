"""What a drafter meets that nobody wished for: it goes on with whatever it can go on with."""

from dataclasses import replace

import pytest

from actors.models import MAX_FAILURES
from protocols.errors import CannotDraft
from protocols.messages import Decline, Grow, Plan, Resync
from tests.world.desk import Reader, played
from tests.world.models import INFO

SHORT = (5, 6, 7)
OTHER = (9, 8, 7)
LONG = tuple(2 + i % 50 for i in range(1000))


# --- leases that cannot be had ---------------------------------------------------------------------------------------


def test_a_request_without_room_goes_on_alone_and_the_others_are_served():
    async def story(desk):
        desk.open("a", SHORT)
        desk.open("b", OTHER, epoch=2)
        await desk.settle()
        assert desk.drafted("a") and not desk.drafted("b")
        assert desk.take(Decline) == [Decline("b", 2, lasting=False)]
        desk.verdict("b", 3, 4, epoch=2)
        await desk.settle()
        assert not desk.take(Resync), "an Open that was declined is not asked for again"

    played(story, Reader(rooms=1))


@pytest.mark.parametrize("prefix", [(), (5, 63), tuple(range(2, 40))], ids=["empty", "unknown id", "too long"])
def test_a_text_that_the_draft_cannot_mirror_costs_only_its_own_drafts(prefix):
    class Small(Reader):
        def open(self, prefix, prompt_len, sampling):
            if max(prefix) >= self.info.vocab_size or len(prefix) > self.info.max_context:
                raise CannotDraft("no")
            return super().open(prefix, prompt_len, sampling)

    async def story(desk):
        desk.open("bad", prefix)  # the first, since those who come first could hurt those behind them
        desk.open("good", SHORT, epoch=2)
        await desk.settle()
        assert desk.drafted("good")
        assert not desk.running.done() and list(desk.drafter.leases) == ["good"]
        assert desk.take(Decline) == [Decline("bad", 1, lasting=True)]

    played(story, Small(info=replace(INFO, vocab_size=60, max_context=32)))


def test_an_epoch_that_was_declined_is_accepted_from_the_next_verifier():
    """Seed 7145 of the simulation: its first leases had the numbers that the one before had used."""

    async def story(desk):
        desk.model.broken.add(SHORT[0])
        desk.open("a", SHORT)
        await desk.settle()
        assert desk.take(Decline)
        desk.model.broken.clear()
        desk.forget()
        await desk.settle()
        desk.open("b", SHORT)
        await desk.settle()
        assert list(desk.drafter.leases) == ["b"] and desk.drafted("b")

    played(story)


def test_a_text_that_outgrows_the_draft_ends_that_lease_only():
    class Small(Reader):
        def commit(self, handle, tokens, slots):
            if 50 in tokens:
                raise CannotDraft("no")
            super().commit(handle, tokens, slots)

    async def story(desk):
        desk.open("a", SHORT)
        desk.open("b", OTHER, epoch=2)
        await desk.settle()
        desk.verdict("a", 3, 50)
        desk.verdict("b", 3, 40, epoch=2)
        await desk.settle()
        desk.verdict("a", 4, 40)
        await desk.settle()
        assert list(desk.drafter.leases) == ["b"] and not desk.take(Resync)
        assert desk.take(Decline) == [Decline("a", 1, lasting=True)]

    played(story, Small())


def test_nothing_is_drafted_beyond_the_drafts_context():
    async def story(desk):
        desk.open("a", SHORT, plan=Plan("pearl", 20))
        await desk.settle()
        grown = desk.take(Grow)
        assert sum(len(grow.tokens) for grow in grown) == 5 and grown[-1].complete

    played(story, Reader(info=replace(INFO, max_context=8)))


def test_candidates_that_the_target_does_not_know_are_not_drafted():
    async def story(desk):
        for number, method in enumerate(("pearl", "duodecoding", "tree"), 1):
            desk.open(method, (5, 6, number), epoch=number, plan=Plan(method, 6))
        await desk.settle()
        tokens = [token for grow in desk.take(Grow) for token in grow.tokens]
        assert tokens and max(tokens) < 30

    played(story, vocab_size=30)


# --- forwards that fail ----------------------------------------------------------------------------------------------


def test_a_request_whose_forward_fails_loses_its_drafter_and_the_others_keep_it():
    async def story(desk):
        desk.model.broken.add(13)
        for epoch, rid in enumerate("abc", 1):
            desk.open(rid, (13 if rid == "b" else 5, 6, 7), epoch=epoch)
        await desk.settle()
        assert desk.drafted("a") and desk.drafted("c") and not desk.running.done()
        assert list(desk.drafter.leases) == ["a", "c"]
        assert desk.take(Decline) == [Decline("b", 2, lasting=True)]
        desk.verdict("b", 3, 4, epoch=2)
        await desk.settle()
        assert not desk.take(Resync)

    played(story)


def test_a_prefill_that_fails_ends_that_lease_only():
    async def story(desk):
        desk.model.broken.add(LONG[0])
        desk.open("a", SHORT)
        desk.open("long", LONG, epoch=2)
        await desk.settle()
        assert desk.drafted("a") and list(desk.drafter.leases) == ["a"]

    played(story)


def test_a_draft_model_that_fails_for_every_request_ends_the_drafter():
    async def story(desk):
        desk.model.broken.add(13)
        for epoch in range(1, MAX_FAILURES + 1):
            desk.open(f"r{epoch}", (13, 6, 7), epoch=epoch)
            await desk.settle()
        with pytest.raises(RuntimeError, match="as asked"):
            await desk.running

    played(story)


def test_bad_requests_one_by_one_do_not_end_a_drafter_that_works():
    async def story(desk):
        desk.model.broken.add(13)
        for epoch in range(1, 5 * MAX_FAILURES, 2):
            desk.open(f"bad{epoch}", (13, 6, 7), epoch=epoch)
            desk.open(f"good{epoch}", SHORT, epoch=epoch + 1)
            await desk.settle()
            assert desk.drafted(f"good{epoch}")

    played(story)


@pytest.mark.parametrize("method", ["sps", "pearl", "duodecoding", "duodecoding-lockstep", "tree", "auto", "vanilla"])
def test_a_draft_that_has_nothing_to_say_ends_its_phase(method):
    class Silent(Reader):
        def expand(self, leaves):
            return [replace(expansion, tokens=(), probs=()) for expansion in super().expand(leaves)]

    async def story(desk):
        desk.open("a", SHORT, plan=Plan(method, 6))
        await desk.settle()
        desk.verdict("a", 3, 4)
        await desk.settle()
        grown = desk.take(Grow)
        assert all(not grow.tokens for grow in grown) and grown[-1].complete and grown[-1].base_len == 4
        assert not desk.running.done()

    played(story, Silent())


# --- reports ---------------------------------------------------------------------------------------------------------
