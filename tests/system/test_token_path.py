"""What must not hold up running streams: long prompts, floods of messages, long forwards."""

import asyncio
import itertools

from actors.verifier.compute import InlineCompute
from actors.verifier.inbox import MAX_HANDLED
from actors.verifier.sources.lookup import Whole
from actors.verifier.sources.source import SLICE
from protocols import wire
from protocols.messages import Cancel, Chunk, Generate, Sampling, Status, StatusReport
from tests.world.caller import tokens_of
from tests.world.clock import run
from tests.world.cluster import Cluster
from tests.world.models import ToyLanguage
from tests.world.streams import toy_stream

LANGUAGE = ToyLanguage()
PROMPT = (5, 9, 33)
SAMPLING = Sampling(max_tokens=40)
LONG_TEXT = "".join(chr(63 + 2 + i % 60) for i in range(3000))


class Held:
    """A thread that begins its jobs when a test says so."""

    def __init__(self) -> None:
        self.jobs = []

    def start(self, job):
        future = asyncio.get_running_loop().create_future()
        self.jobs.append((future, job))
        return future

    def release(self) -> None:
        for future, job in self.jobs:
            future.set_result(job())
        self.jobs.clear()

    def close(self) -> None: ...


async def states(caller) -> dict[str, str]:
    caller.send(Status("s"))
    report = await caller.until(lambda m: isinstance(m, StatusReport))
    return {request.rid: request.state for request in report.requests}


def test_a_long_prompt_is_tokenized_beside_the_streams_that_run():
    held = Held()

    async def go():
        async with Cluster(language=LANGUAGE, tokenizing=held) as cluster:
            caller = await cluster.caller()
            caller.send(Generate("long", LONG_TEXT, sampling=SAMPLING, method="pld"))
            short = await caller.generate(PROMPT, SAMPLING, "vanilla")
            assert await states(caller) == {"long": "queued"} and len(held.jobs) == 1
            held.release()
            return short, (await caller.collect("long"))["long"]

    short, long = run(go())
    assert tokens_of(short) == LANGUAGE.continuation(PROMPT, SAMPLING)
    assert tokens_of(long) == LANGUAGE.continuation([ord(c) - 63 for c in LONG_TEXT], SAMPLING)


def test_a_request_that_is_cancelled_or_asked_for_again_while_it_is_tokenized_is_forgotten():
    held = Held()

    async def go():
        async with Cluster(language=LANGUAGE, tokenizing=held) as cluster:
            caller, other = await cluster.caller(), await cluster.caller()
            for rid in ("cancelled", "twice", "twice"):
                caller.send(Generate(rid, LONG_TEXT, sampling=SAMPLING, method="vanilla"))
            other.send(Generate("orphan", LONG_TEXT, sampling=SAMPLING, method="vanilla"))
            caller.send(Cancel("cancelled"))
            await states(caller)
            cluster.network.kill(other.name)
            await asyncio.sleep(11.0)
            assert await states(caller) == {"twice": "queued"} and len(held.jobs) == 4
            held.release()
            chunks = (await caller.collect("twice"))["twice"]
            assert not cluster.verifier.state.requests
            return chunks, caller.seen

    chunks, seen = run(go())
    assert len(tokens_of(chunks)) == 40
    assert {m.rid for m in seen if isinstance(m, Chunk)} == {"twice"}


def test_a_flood_of_messages_leaves_the_other_tasks_their_turns():
    async def go():
        async with Cluster(language=LANGUAGE) as cluster:
            caller = await cluster.caller()
            counters = cluster.verifier.state.counters
            flood = 20 * MAX_HANDLED
            for _ in range(flood):
                caller.link.send([wire.HEADER, b"\xc1"])
            seen = [0]
            while seen[-1] < flood:
                await asyncio.sleep(0)
                seen.append(counters["malformed"])
            return [after - before for before, after in itertools.pairwise(seen)]

    assert max(run(go())) <= 2 * (MAX_HANDLED + 1)


def test_a_verifier_that_computed_for_long_does_not_take_its_peers_for_dead():
    class Blocking(InlineCompute):
        """The forward keeps the event loop, and so everybody in this test, for so long."""

        seconds = 30.0

        def start(self, job):
            def slow():
                asyncio.get_running_loop().now += self.seconds
                return job()

            return super().start(slow)

    async def go():
        async with Cluster(language=LANGUAGE, compute=Blocking()) as cluster:
            cluster.start_drafter("d1")
            await cluster.connected("d1")
            caller = await cluster.caller()
            chunks = await caller.generate(PROMPT, Sampling(max_tokens=20), "pearl")
            return chunks, cluster.verifier.state.totals.of_drafter("d1")

    chunks, drafts = run(go())
    assert chunks[-1].stats.drafters == ("d1",) and chunks[-1].stats.accepted_tokens > 0
    assert sum(one.tokens for one in drafts) > 0


def test_a_peer_whose_heartbeats_lie_unread_behind_a_flood_is_alive():
    async def go():
        async with Cluster(language=LANGUAGE) as cluster:
            cluster.start_drafter("d1")
            await cluster.connected("d1")
            verifier = cluster.verifier
            drafter = verifier.state.drafters.named("d1")
            drafter.last_seen = drafter.silent_until = drafter.last_seen - 3.0  # its heartbeats are there, and unread
            verifier.peers.expire(0.0, read_all=False)
            assert verifier.state.drafters.named("d1") is drafter
            verifier.peers.expire(0.0, read_all=True)
            assert verifier.state.drafters.named("d1") is None

    run(go())


def test_a_controller_that_is_silent_is_gone_from_the_status():
    async def go():
        async with Cluster(language=LANGUAGE) as cluster:
            cluster.start_controller()
            await asyncio.sleep(1.0)
            assert cluster.verifier.state.controller is not None
            await cluster.kill("controller")
            await asyncio.sleep(4.0)
            assert cluster.verifier.state.controller is None

    run(go())


def test_a_text_is_read_for_retrieval_in_slices():
    read = []

    class Session:
        def extend(self, tokens):
            read.append(len(tokens))

        def propose(self, budget):
            raise AssertionError("not asked before the whole text was read")

    class Proposer:
        def open(self, prompt):
            read.append(len(prompt))
            return Session()

    source = Whole("pld", lambda stream: Proposer())
    stream = toy_stream(list(range(3 * SLICE + 5)))
    for _ in range(4):
        source.prepare(stream)
    assert read == [SLICE, SLICE, SLICE, 5]
