"""Requests that are cancelled while their prompts are prepared."""

import asyncio
import gc
from collections.abc import Callable

from protocols.errors import RequestError
from protocols.messages import Cancel, ChatTurn, Failed, FailureCode, Generate, Status, StatusReport
from tests.world.clock import run
from tests.world.cluster import Cluster


class Held:
    """Jobs that end when a test says so."""

    overlaps = True

    def __init__(self) -> None:
        self.begun: list[asyncio.Future] = []
        self.jobs: list[Callable[[], object]] = []

    def start(self, job) -> asyncio.Future:
        self.jobs.append(job)
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


def test_what_was_cancelled_is_not_prepared_and_counts_until_its_turn_comes():
    async def main() -> None:
        held = Held()
        async with Cluster(tokenizing=held, max_queued_requests=2) as cluster:
            caller = await cluster.caller()

            async def ask(*rids: str) -> None:
                for rid in rids:
                    caller.send(Generate(rid, messages=(ChatTurn("user", "hi" * 10_000),)))
                    caller.send(Cancel(rid))
                caller.send(Status("s"))
                await caller.until(lambda message: isinstance(message, StatusReport))

            await ask("a", "b", "c", "d")
            failed = {message.rid: message.code for message in caller.seen if isinstance(message, Failed)}
            assert failed == dict.fromkeys(("c", "d"), FailureCode.OVERLOADED)
            assert [job() for job in held.jobs] == [None, None], "nobody wants them"
            for done in held.begun:
                done.set_result(None)
            await asyncio.sleep(0)
            await ask("e")
            assert len(held.jobs) == 3

    run(main())
