"""Where the target may use the CPUs of drafters that rest."""

import asyncio

import pytest

from protocols.messages import Sampling
from tests.world.caller import tokens_of
from tests.world.clock import run
from tests.world.cluster import COST, Cluster
from tests.world.models import ToyTarget

PROMPTS = ((5, 9, 33), (7, 2, 40))
LONG = Sampling(max_tokens=60, ignore_eos=True)
METHODS = ["sps", "duodecoding", "tree"]


class Sharing(ToyTarget):
    """It has further CPUs, and knows which prompts were computed on them."""

    has_spare_cpus = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.used = False
        self.prompts: list[bool] = []  # for each prompt whether the further CPUs computed it too
        self.rounds_alone = 0  # forwards behind a prompt that had the further CPUs

    def use_spare_cpus(self, used: bool) -> None:
        self.used = used

    def prefill(self, handle, limit=None):
        self.prompts.append(self.used)
        return super().prefill(handle, limit)

    def verify_beside(self, windows, handle, limit):
        self.prompts.append(self.used)
        return super().verify_beside(windows, handle, limit)

    def verify(self, windows):
        self.rounds_alone += self.used
        return super().verify(windows)


def sharing(lent: bool = True, **target: bool) -> Cluster:
    return Cluster(target=Sharing(**target), lent={rows: us / 2 for rows, us in COST.items()} if lent else None)


async def texts_of(system: Cluster, method: str, *prompts: tuple[int, ...]) -> list[list[int]]:
    system.start_drafter()
    await system.connected("d1")
    callers = [await system.caller() for _ in prompts]
    answers = [c.generate(p, LONG, method) for c, p in zip(callers, prompts, strict=True)]
    return [tokens_of(chunks) for chunks in await asyncio.gather(*answers)]


@pytest.mark.parametrize("method", METHODS)
def test_a_prompt_is_computed_on_all_cpus_before_a_drafter_reads_it(method):
    async def story():
        async with sharing() as system:
            texts = await texts_of(system, method, PROMPTS[0])
            target = system.target
            assert target.prompts == [True]
            assert target.rounds_alone <= 1, "the drafter has the request as soon as its prompt is computed"
            assert system.verifier.state.counters["rounds"] < LONG.max_tokens / 2, "it drafts"
        async with Cluster() as plain:
            assert texts == await texts_of(plain, "vanilla", PROMPTS[0])

    run(story())


@pytest.mark.parametrize("method", METHODS)
def test_a_prompt_beside_a_stream_that_a_drafter_works_for_is_lent_at_once(method):
    """Its CPUs are not the target's then, so that there is nothing to wait for."""

    async def story():
        async with sharing() as system:
            system.start_drafter()
            await system.connected("d1")
            first, second = await system.caller(), await system.caller()
            running = asyncio.ensure_future(first.generate(PROMPTS[0], LONG, method))
            while not any(request.loan.works for request in system.verifier.state.requests):
                await asyncio.sleep(0)
            lent: list[str] = []
            lend = system.verifier.leases.lend

            def watched(stream, to=None):
                done = lend(stream, to)
                lent.extend([stream.status] if done else [])
                return done

            system.verifier.leases.lend = watched
            await asyncio.gather(running, second.generate(PROMPTS[1], LONG, method))
            assert system.target.prompts == [True, False]
            assert lent[0] == "prefill"

    run(story())


def test_prompts_beside_streams_of_auto_are_computed_on_all_cpus():
    """Also where a stream is lent to a drafter while others' prompts wait."""

    async def story():
        async with sharing(mixes_prompts=True) as system:
            await texts_of(system, "auto", *PROMPTS, (9, 3, 21), (8, 8, 30))
            assert system.target.prompts == [True] * 4

    run(story())


def test_a_target_without_further_cpus_lends_a_prompt_at_once():
    async def story():
        async with sharing(lent=False) as system:
            await texts_of(system, "sps", PROMPTS[0])
            assert system.target.prompts == [False] and system.target.rounds_alone == 0

    run(story())
