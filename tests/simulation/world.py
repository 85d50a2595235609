"""One plan carried out on virtual time: what troubles the actors, and what is wrong when it is over."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from unittest.mock import patch

from actors.verifier.state import TTL_MS
from duoactor import AsyncClient
from protocols.errors import DuoactorError, RequestError
from protocols.messages import Goodbye, Role
from tests.simulation import checks, nonsense
from tests.simulation.cast import ADDRESSES, Cast
from tests.simulation.plans import GATEWAYS, Plan, Stream, Trouble
from tests.simulation.readers import ClientHost, Told
from tests.simulation.reproducible import reproducible
from tests.simulation.school import classroom
from tests.world.clock import run
from tests.world.hostile import Hostile
from tests.world.network import Faults

STREAMS_END_S = 900.0  # after the last trouble: in lock-step with a slow drafter each token takes some seconds
# After the last stream: lost clients are given up after 10 s, a lease whose Close was lost after 20, and a drafter that
# said it would compute for a minute, as hostile ones do, after that.
IDLE_S = 75.0
RAVE_S, RAVE = 0.02, 10  # a hostile peer says so many messages every so often
LOOK_S = 0.37  # no part of the heartbeats' half second, or each look would find one under way
HALT_S = 30.0
THINKS_S, LOOKS = 1.0, 10  # an operator's wait before going back; looks that find nothing to go back from
SLOW_US = 100_000.0  # a step so long that no draft comes in time
SILENT_S = 2.0  # a verifier or a client that is not heard for so long may be taken for gone


@dataclass(frozen=True)
class Result:
    problems: tuple[str, ...]
    digest: str  # digest of every message
    messages: int
    tokens: int
    seconds: float  # virtual


def simulate(plan: Plan, log: Callable[[str], None] | None = None) -> Result:
    """The same plan gives the same result, message by message."""
    steps = 1 + plan.seed % 4  # forwards in a row where no drafts are verified
    several = patch("actors.verifier.scheduler.chunk_forwards", lambda *_: steps)
    with reproducible(plan.seed), classroom(plan.learning), several:
        return run(World(plan, log).run())


class World(Cast):
    def __init__(self, plan: Plan, log: Callable[[str], None] | None) -> None:
        super().__init__(plan, log)
        self.hostile = 0
        self.defects: list[str] = []

    # --- trouble -----------------------------------------------------------------------------------------------------

    async def _trouble(self, trouble: Trouble) -> None:
        await asyncio.sleep(trouble.at)
        network, name, seconds = self.network, trouble.who, trouble.seconds
        host = self.hosts.get(name)
        match trouble.what:
            case "hostile" if name in GATEWAYS:
                await self._nonsense(name, seconds)
            case "hostile":
                await self._hostile(name, seconds)
            case "swap" | "drain" | "undo":
                await self._operate(trouble)
            case "interrupt" if self.school is not None:
                self.school.dies_before = name
            case _ if host is None:
                pass
            case "kill" | "stop":
                if trouble.what == "stop":
                    host.halt()
                else:
                    if (verifier := self.verifiers.get(name)) is not None:  # its last words are not heard
                        verifier.listener.send = lambda peer, frames: True
                    host.kill()
                await asyncio.sleep(seconds)
                host.start()
            case "freeze":
                host.freeze(seconds)
                await asyncio.sleep(seconds)
            case "hold":
                network.hold(name, seconds)
                await asyncio.sleep(seconds)
            case "cut":
                network.cut(name)
                await asyncio.sleep(seconds)
                network.mend(name)
            case "partition":
                network.partition(name)
                await asyncio.sleep(seconds)
                network.heal(name)
            case "break":
                self._break(name, True)
                await asyncio.sleep(seconds)
                self._break(name, False)

    def _break(self, name: str, broken: bool) -> None:
        if (target := self.targets.get(name)) is not None:
            target.broken = broken
        elif (processor := self.processors.get(name)) is not None:
            processor.fails = broken

    async def _hostile(self, role: str, seconds: float) -> None:
        self.hostile += 1
        peer = Hostile(self.network, Role(role), self.plan.seed + self.hostile)
        end = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < end:
            peer.rave(RAVE)
            await asyncio.sleep(RAVE_S)
            peer.listen()
        if self.chance.random() < 0.5:
            peer.send(Goodbye())
        self.network.kill(peer.name)

    async def _nonsense(self, name: str, seconds: float) -> None:
        """Callers of a gateway; what one says that is killed meanwhile is nobody's fault."""
        gateway = self.clients.get(name)
        if gateway is None or gateway.app is None:
            return
        app = gateway.app
        said = await nonsense.rave(app, self.chance, seconds)
        self.defects += said if gateway.app is app and gateway.host.wanted else []

    async def _operate(self, trouble: Trouble) -> None:
        beside = next((draft.verifier for draft in self.plan.drafts if draft.name == trouble.who), "")
        names = [draft.name for draft in self.plan.drafts_at(beside)]
        with contextlib.suppress(DuoactorError):
            async with AsyncClient(self.addresses, network=self.network.host("operator"), timeout=3.0) as client:
                if trouble.what == "undo":
                    await self._undo(client)
                elif trouble.what == "drain":
                    await client.drain(trouble.who)
                elif names:
                    await client.swap(trouble.who, names[(names.index(trouble.who) + 1) % len(names)])

    async def _undo(self, client: AsyncClient) -> None:
        """The operator looks which version serves, and asks a while later for it to be left; if another serves by
        then, for that one."""
        seen = 0
        for _ in range(LOOKS):
            status = await client.status()
            models = [*status.drafters, *([status.inline] if status.inline is not None else [])]
            seen = max((one.version for one in models), default=0)
            await asyncio.sleep(self.chance.uniform(0.0, THINKS_S))
            if seen:
                break
        while seen and self.school is not None:
            self.school.asked += 1
            self.school.unwanted.add(seen)
            try:
                await client.undo(seen)
                return
            except RequestError as error:
                named = re.match(r"version (\d+) is in force", str(error))
                seen = int(named[1]) if named and int(named[1]) > seen else 0

    # --- the course of it --------------------------------------------------------------------------------------------

    async def run(self) -> Result:
        loop = asyncio.get_running_loop()
        rates = self.plan.rates
        self.network.faults = Faults(rates.drop, rates.duplicate, rates.reorder, rates.delay)
        for host in self.hosts.values():
            host.start()
        await asyncio.gather(*map(self._trouble, self.plan.troubles))
        self.network.faults = Faults()
        if self.school is not None:
            self.school.dies_before = ""
        for host in self.hosts.values():
            host.start()
        problems = await self._finished(self.told)
        problems = problems or await self._at_rest()
        problems = problems or await self._as_before()
        problems += await self._stopped()
        problems += [defect for host in self.hosts.values() for defect in host.defects] + self.defects
        if self.school is not None:
            hostile = any(trouble.what == "hostile" for trouble in self.plan.troubles)
            problems += self.school.problems(hostile)
        tokens = sum(len(told.text) for told in self.told)
        return Result(tuple(problems), self.network.digest.hexdigest(), self.network.messages, tokens, loop.time())

    async def _finished(self, told: list[Told]) -> list[str]:
        end = asyncio.get_running_loop().time() + STREAMS_END_S
        while asyncio.get_running_loop().time() < end and not all(one.settled for one in told):
            await asyncio.sleep(0.1)
        named = [(number, one.problem(self.language, self._may_fail(one))) for number, one in enumerate(told)]
        return [f"stream {number} of {told[number].stream.host}: {problem}" for number, problem in named if problem]

    def _may_fail(self, told: Told) -> bool:
        """A request fails where the target fails, and where verifiers ended twice while they worked on it. Of several
        verifiers one that is not heard has ended, as far as its client knows."""
        verifier = [trouble.what for trouble in self.plan.troubles if trouble.who in self.plan.verifiers]
        ends = verifier.count("kill") + verifier.count("stop")
        if len(self.plan.verifiers) > 1:
            reach = (told.stream.host, *self.plan.verifiers)
            ends += sum(
                trouble.what in ("freeze", "hold", "cut") and trouble.who in reach and trouble.seconds > SILENT_S
                for trouble in self.plan.troubles
            )
        return "break" in verifier or ends > 1

    async def _at_rest(self) -> list[str]:
        """Until nothing is left of the streams, or what is left."""
        end = asyncio.get_running_loop().time() + IDLE_S
        await asyncio.sleep(LOOK_S)
        while (left := checks.left(self) or checks.remembered(self)) and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(LOOK_S)
        return left

    async def _as_before(self) -> list[str]:
        """A last stream of each verifier is served as the first was, drafts included."""
        # Seen (540414): a drafter died while its verifier was frozen, which then refused the successor for as long as
        # it believed the predecessor alive; the last stream was over by then.
        await asyncio.sleep(TTL_MS / 1000)
        problems: list[str] = []
        for number, name in enumerate(self.plan.verifiers, 4):
            stream = Stream(0.0, f"c{number}", (5, 9, 33), 100, "sps", 0.0, 1, 0, ignore_eos=True)
            client = ClientHost(self.network, stream.host, [told := Told(stream)], [ADDRESSES[name]])
            self.hosts[stream.host] = client.host
            before = self._accepted(name)
            client.host.start()
            problems += await self._finished([told])
            drafters = self.verifiers[name].state.drafters.by_peer.values()
            useful = drafters and all(draft.skill and draft.step_us < SLOW_US for draft in self.plan.drafts_at(name))
            if useful and not problems and self._accepted(name) == before:
                problems = [f"no draft is accepted any more at {name}"]
        return problems

    def _accepted(self, name: str) -> int:
        """Draft tokens that a verifier has accepted so far."""
        return sum(drafts.accepted for drafts in self.verifiers[name].state.totals.drafts.values())

    async def _stopped(self) -> list[str]:
        """All stop in order, the verifiers last."""
        order = sorted(self.hosts.values(), key=lambda host: host.name in self.plan.verifiers)
        for host in order:
            host.halt()
            if host.task is not None:
                await asyncio.wait([host.task], timeout=HALT_S)
        problems = [f"{host.name} does not stop" for host in order if host.task is not None and not host.task.done()]
        return problems or checks.unclosed(self.network)
