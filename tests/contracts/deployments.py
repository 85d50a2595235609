"""Deployments in virtual time, with the real actors and models that take what real ones were measured to take.

Nothing here knows a formula of a policy: requests go over the wire, and tokens per second are counted at the client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from actors.verifier.compute import InlineCompute
from protocols.messages import Chunk, Failed, Generate, Goodbye, Message, Sampling
from tests.world.actors import controller, timed_drafter, timed_verifier
from tests.world.caller import ADDRESS, Caller
from tests.world.clock import Process, run
from tests.world.compute import VirtualThread
from tests.world.models import INFO, Costs, Texts, ToyDraft, ToyTarget, Watch
from tests.world.network import MemoryNetwork

INFO = replace(INFO, vocab_size=4096)
MESSAGE_S = 1e-4  # between verifier and drafter
# µs: docs/experiments/policy.md, "Retrieval and draft model, weighed and read together"
GPU = Costs(forward=20_000, row=90, prompt_row=20, step=2_500, leaf=300, read=50)
CPU_486M = Costs(forward=14_700, row=690, stream=300, prompt_row=650, step=80, leaf=9.3, read=10)
CPU_91M = Costs(forward=3_500, row=170, stream=100, prompt_row=160, step=80, leaf=9.3, read=10)

# both measured on two cores, of which a drafter has one; docs/experiments/many-streams.md, "A drafter's core"
CPU_SHARED = Costs(forward=62_300, row=7_700, prompt_row=5_000, lent=0.58, code=1_000, step=320, leaf=60, read=30)
# as a 486M target takes them there: rows beyond the eighth cost more than those before it
BENDS = ((1, 60e3), (4, 79e3), (8, 117e3), (16, 227e3), (32, 436e3), (64, 838e3))


@dataclass(frozen=True)
class Deployment:
    costs: Costs
    skill: float = 0.65  # agreement of the draft with the target
    thread: bool = False  # forwards run beside the event loop
    drafter: bool = False  # a process of its own
    inline: bool = False  # the verifier drafts between forwards
    streams: int = 1
    requests: int = 12  # requests of each method
    prompt: tuple[int, int] = (32, 128)  # tokens, least and most
    answer: tuple[int, int] = (300, 300)


@dataclass
class Load:
    """One method's requests, taken by ``streams`` callers one after another."""

    method: str
    numbers: list[int]
    tokens: int = 0
    begun: float = 0.0
    seconds: float = 0.0
    left: Iterator[int] = field(init=False)

    def __post_init__(self) -> None:
        self.left = iter(self.numbers)

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


def rates(deployment: Deployment, temperature: float, seed: int = 0) -> dict[str, float]:
    """Tokens per second of ``vanilla`` and ``auto``, which one verifier serves in turns."""
    return run(_rates(deployment, temperature, seed))


async def _rates(deployment: Deployment, temperature: float, seed: int) -> dict[str, float]:
    costs, language = deployment.costs, Texts(vocab=INFO.vocab_size)
    network = MemoryNetwork(seconds={"drafter": MESSAGE_S})
    process, thread, stop = Process(), VirtualThread(), asyncio.Event()
    where = thread if deployment.thread else process
    watch = Watch(where, seed, costs.jitter)
    target = ToyTarget(language, 1 << 20, 31, INFO, mixes_prompts=True, chunk=256, costs=costs, watch=watch)
    draft = ToyDraft(language, deployment.skill, 256, INFO, costs=costs, watch=watch)
    verifier = timed_verifier(
        target,
        network.listen(ADDRESS),
        thread if deployment.thread else InlineCompute(),
        costs,
        watch,
        process.clock,
        draft if deployment.inline else None,
    )
    actors = [process.run(verifier.run(stop)), asyncio.create_task(controller(network.host("controller")).run(stop))]
    if deployment.drafter:
        apart = Process()
        counted = Watch(apart, seed + 1, costs.jitter)
        model = ToyDraft(language, deployment.skill, 256, INFO, costs=costs, watch=counted)
        drafter = timed_drafter("drafter", model, network.host("drafter"), costs, counted, apart.clock)
        actors.append(apart.run(drafter.run(stop)))
    caller = Caller(network, "client")
    await caller.hello()
    beating = asyncio.create_task(caller.beat())
    await asyncio.sleep(0.1)
    loads = {"vanilla": Load("vanilla", []), "auto": Load("auto", [])}
    together = 4 * deployment.streams
    for first in range(0, deployment.requests, together):
        for name, total in loads.items():
            if name == "vanilla" and deployment.streams == 1 and first % (3 * together):
                continue  # its rounds hardly differ
            part = Load(name, [*range(first, min(first + together, deployment.requests))])
            await _serve(caller, deployment, part, temperature)
            total.tokens += part.tokens
            total.seconds += part.seconds
    assert all(not actor.done() for actor in actors), [actor for actor in actors if actor.done()]
    beating.cancel()
    caller.send(Goodbye())
    stop.set()
    await asyncio.gather(*actors)
    return {name: load.rate for name, load in loads.items()}


async def _serve(caller: Caller, deployment: Deployment, load: Load, temperature: float) -> None:
    """Seconds until there are fewer requests than streams, so that no stream's end counts."""
    loop, lengths = asyncio.get_running_loop(), {}
    begun, counting = loop.time(), True

    def ask() -> bool:
        number = next(load.left, None)
        if number is None:
            return False
        low, high = deployment.answer
        lengths[rid := f"{load.method}-{number}"] = low + 37 * number % (high - low + 1)
        least, most = deployment.prompt
        prompt = Texts(vocab=INFO.vocab_size).prompt(number, least + 53 * number % (most - least + 1), temperature)
        sampling = Sampling(max_tokens=lengths[rid], temperature=temperature, seed=number, ignore_eos=True)
        caller.send(Generate(rid, prompt, sampling=sampling, method=load.method))
        return True

    active = sum(ask() for _ in range(deployment.streams))
    while active:
        message: Message = await caller.next()
        caller.seen.clear()
        assert not isinstance(message, Failed), message
        if not isinstance(message, Chunk):
            continue
        if counting:
            load.tokens += len(message.token_ids)
            load.seconds = loop.time() - begun
        if message.finish_reason is not None and not ask():
            active -= 1
            counting = False


DEPLOYMENTS = {
    "gpu": Deployment(GPU, skill=0.75, thread=True, drafter=True, requests=8),
    "486M": Deployment(CPU_486M, inline=True),
    "91M": Deployment(replace(CPU_91M, lent=0.7), inline=True, drafter=True),
    "eight streams": Deployment(CPU_91M, inline=True, streams=8, requests=96, prompt=(32, 400), answer=(40, 160)),
    "eight streams beside a drafter": Deployment(
        CPU_SHARED,
        skill=0.55,
        thread=True,
        inline=True,
        drafter=True,
        streams=8,
        requests=48,
        prompt=(20, 80),
        answer=(64, 64),
    ),
    "four streams beside a drafter": Deployment(
        replace(CPU_SHARED, curve=BENDS),
        skill=0.55,
        thread=True,
        inline=True,
        drafter=True,
        streams=4,
        requests=32,
        prompt=(20, 80),
        answer=(64, 64),
    ),
    "four streams": Deployment(
        replace(CPU_SHARED, curve=BENDS, lent=1.0),
        skill=0.55,
        inline=True,
        streams=4,
        requests=32,
        prompt=(20, 80),
        answer=(64, 64),
    ),
}
