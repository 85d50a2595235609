"""What the chaos makes of what it saw: it finds texts that differ, that end early, and that are lost."""

from __future__ import annotations

import asyncio

import pytest

from duoactor import DuoactorError
from tests.system.chaos import Ask, Chaos

ASKS = [Ask("one", 0.0, 1), Ask("two", 1.0, 2)]


class MadeUpServer:
    """Its text is the question's, until something of it is killed."""

    def __init__(self, harm: str) -> None:
        self.harm, self.killed = harm, asyncio.Event()

    async def kill(self) -> str:
        self.killed.set()
        return "a process"

    async def pieces(self, ask, method):
        for piece in (ask.text, "and", "so", "on"):
            await asyncio.sleep(0.002)
            if self.killed.is_set() and piece == "so":
                if self.harm == "other text":
                    piece = "not"
                elif self.harm == "end":
                    return
                elif self.harm == "loss":
                    raise DuoactorError("the server is gone")
            yield [piece]


async def after(harm: str):
    server = MadeUpServer(harm)
    return await Chaos(server, server.kill, 0.02, 0).run(ASKS, 3, 0.2)


@pytest.mark.parametrize("harm", ["other text", "end"])
async def test_a_text_that_differs_or_ends_early_after_a_kill_is_found(harm):
    found = await after(harm)
    assert found.killed["a process"] and found.differ and not found.good


async def test_an_answer_that_is_lost_is_found_with_its_error():
    found = await after("loss")
    assert found.lost["DuoactorError: the server is gone"] and not found.good


async def test_texts_that_outlive_every_kill_are_good_and_their_pauses_are_told():
    found = await after("")
    assert found.good and found.compared > 3 and found.pieces >= 4 * found.compared
    assert found.document(1.0)["pause_ms"]["99"] >= found.document(1.0)["pause_ms"]["50"] > 0
