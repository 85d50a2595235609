"""What the chaos makes of what it saw: it finds texts that differ, that end early, and that are lost."""

from __future__ import annotations

import asyncio
import time

import pytest

from duoactor import DuoactorError
from tests.system.chaos import Ask, Chaos, Death, Wreckage

ASKS = [Ask("one", 0.0, 1), Ask("two", 1.0, 2)]


class MadeUpServer:
    """Its text is the question's, until something of it is killed."""

    def __init__(self, harm: str) -> None:
        self.harm, self.killed = harm, asyncio.Event()

    async def kill(self) -> Death:
        self.killed.set()
        return Death("a process", time.monotonic(), time.monotonic())

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
    assert found.document(1.0)["killed"]["a process"] and found.differ and not found.good


async def test_an_answer_that_is_lost_is_found_with_its_error():
    found = await after("loss")
    assert found.lost["DuoactorError: the server is gone"] and not found.good


async def test_texts_that_outlive_every_kill_are_good_and_their_pauses_are_told():
    found = await after("")
    assert found.good and found.compared > 3 and found.pieces >= 4 * found.compared
    pauses = found.document(1.0)["pause_s"]["any"]
    assert pauses["longest"] >= pauses["99"] >= pauses["50"] > 0


def test_a_pause_is_put_down_to_what_was_away_meanwhile_and_to_the_verifier_first():
    found = Wreckage(
        deaths=[Death("drafter", 10.0, 12.0), Death("verifier", 11.0, 15.0), Death("controller", 30.0)],
        pauses=[(1.0, 2.0), (9.0, 10.5), (10.9, 15.5), (29.0, 29.9), (31.0, 31.5)],
    )
    away = found.document(40.0)["pause_s_while_away"]
    assert {what: spread["longest"] for what, spread in away.items()} == {
        "nothing": 1.0, "drafter": 1.5, "verifier": 4.6, "controller": 0.5
    }  # fmt: skip
    assert found.document(40.0)["away_s"]["verifier"]["longest"] == 4.0
    assert "| verifier | 1 | 4.0, 4.0 | 4.600, 4.60, 4.60 |" in found.table(40.0)
