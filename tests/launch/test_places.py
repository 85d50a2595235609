"""Files that hold where verifiers are."""

from __future__ import annotations

import asyncio
from pathlib import Path

from duoactor.client.connection import resolve
from duoactor.launch.host import Places


class Verifier:
    """Where one is, as Ray tells it: once that is another address than the one given."""

    def __init__(self) -> None:
        self.moves: asyncio.Queue[str] = asyncio.Queue()
        self.known: list[str] = []

    async def find(self, but: str) -> str:
        self.known.append(but)
        return await self.moves.get()


async def until(condition) -> None:
    while not condition():
        await asyncio.sleep(0.01)


async def test_a_file_holds_the_address_of_each_verifier_wherever_that_is(tmp_path: Path):
    one, two = Verifier(), Verifier()
    async with Places(str(tmp_path), [one.find, two.find]) as places:
        first, second = places.addresses
        assert resolve(first) == resolve(second) == ""
        one.moves.put_nowait("tcp://here:1")
        await until(lambda: resolve(first) == "tcp://here:1")
        one.moves.put_nowait("tcp://there:2")
        await until(lambda: resolve(first) == "tcp://there:2")
        assert resolve(second) == ""
        await until(lambda: one.known == ["", "tcp://here:1", "tcp://there:2"])
