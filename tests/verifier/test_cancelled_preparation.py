"""A request that is cancelled while its prompt is prepared, which then fails."""

import asyncio
import gc

from protocols.errors import RequestError
from protocols.messages import Cancel, ChatTurn, FailureCode, Generate, Status, StatusReport
from tests.world.clock import run
from tests.world.cluster import Cluster


class Held:
    """Jobs that end when a test says so."""

    overlaps = True

    def __init__(self) -> None:
        self.begun: list[asyncio.Future] = []

    def start(self, job) -> asyncio.Future:
        self.begun.append(asyncio.get_running_loop().create_future())
        return self.begun[-1]

    def close(self) -> None: ...


def test_what_nobody_asks_for_any_more_fails_without_a_word():
    async def main() -> None:
        complaints: list[dict[str, object]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        held = Held()
        async with Cluster(tokenizing=held) as cluster:
            caller = await cluster.caller()
            caller.send(Generate("r", messages=(ChatTurn("user", "hi" * 10_000),)))
            caller.send(Cancel("r"))
            caller.send(Status("s"))
            await caller.until(lambda message: isinstance(message, StatusReport))
            held.begun.pop().set_exception(RequestError(FailureCode.BAD_REQUEST, "it breaks the template"))
            await asyncio.sleep(1.0)
            gc.collect()
        assert not complaints

    gc.collect()  # coroutines that earlier tests left would end in this loop, and their failures be told here
    run(main())
