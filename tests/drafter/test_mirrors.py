"""What a drafter has computed of texts, it does not compute again."""

import pytest

from tests.world.desk import Reader, played

SHORT = (5, 6, 7)
OTHER = (9, 8, 7)
LONG = tuple(2 + i % 50 for i in range(1000))


@pytest.mark.parametrize("how", ["swapped there and back", "a newer epoch", "verifier restarted", "next turn"])
def test_what_was_computed_is_not_computed_again(how):
    async def story(desk):
        desk.open("a", LONG, max_tokens=2000)
        await desk.settle()
        desk.verdict("a", len(LONG), 4, 5)
        await desk.settle()
        read = desk.model.tokens_read
        assert read >= len(LONG) - 1
        if how == "swapped there and back":
            desk.close("a")
        elif how == "verifier restarted":
            desk.forget()
            await desk.settle()
        rid = "b" if how == "next turn" else "a"
        if rid == "b":
            desk.close("a")
        desk.open(rid, (*LONG, 4, 5, 6), epoch=2)
        await desk.settle()
        assert desk.drafted(rid)
        assert desk.model.tokens_read - read <= 3

    played(story)


def test_a_kept_text_gives_way_to_a_request_that_needs_its_room():
    async def story(desk):
        desk.open("a", SHORT)
        desk.open("b", OTHER, epoch=2)
        await desk.settle()
        desk.close("a", 1)
        desk.close("b", 2)
        desk.open("c", (40, 41, 42), epoch=3)
        desk.open("d", (43, 44, 45), epoch=4)
        await desk.settle()
        assert desk.drafted("c") and set(desk.drafter.leases) == {"c", "d"}

    played(story, Reader(rooms=2))


def test_a_long_text_is_not_turned_into_a_short_one_for_a_few_tokens_in_common():
    async def story(desk):
        desk.open("a", LONG, max_tokens=10)
        await desk.settle()
        read = desk.model.tokens_read
        desk.close("a")
        desk.open("b", (*LONG[:20], 60, 61), epoch=2)
        await desk.settle()
        desk.open("a", LONG, epoch=3, max_tokens=10)
        await desk.settle()
        assert desk.model.tokens_read - read < 50

    played(story)


@pytest.mark.parametrize(("salt", "again"), [("", 0), ("theirs", len(LONG))])
def test_the_next_turn_of_a_chat_reads_only_what_is_new_unless_its_salt_is_another(salt, again):
    async def story(desk):
        desk.open("a", LONG)
        await desk.settle()
        read = desk.model.tokens_read
        desk.close("a")
        desk.open("b", (*LONG, *range(20, 60)), epoch=2, salt=salt)
        await desk.settle()
        assert 39 <= desk.model.tokens_read - read - again <= 41

    played(story)
