"""One plan carried out on virtual time: the real actors and clients on a simulated network, and what is wrong then."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

import checks
from clocked_network import ClockedNetwork
from cluster import ADDRESS
from hostile import Hostile
from hosts import FORWARD_S, ROW_S, Host, LateCompute, SimulatedDraft, SimulatedTarget
from memory_network import Faults
from plans import FEW_ROOMS, FIRST, HOSTS, SECOND, Plan, Stream, Trouble
from readers import ClientHost, Told
from reproducible import reproducible
from timed import HeldInbox, TimedCompute, TimedInlineCompute

from actors.controller.loop import Controller
from actors.cost import CostModel
from actors.drafter.loop import Drafter
from actors.replay.clock import Process, run
from actors.settings import VerifierSettings
from actors.verifier.drafters.inline import InlineDraft
from actors.verifier.loop import Verifier
from duoactor import AsyncClient
from fakes import INFO, ToyCodec, ToyLanguage
from protocols.errors import DuoactorError
from protocols.messages import Goodbye, Hello, Role

STREAMS_END_S = 900.0  # after the last trouble: in lock-step with a slow drafter each token takes some seconds
# After the last stream: lost clients are given up after 10 s, a lease whose Close was lost after 20, and a drafter that
# said it would compute for a minute, as hostile ones do, after that.
IDLE_S = 75.0
RAVE_S, RAVE = 0.02, 10  # a hostile peer says so many messages every so often
LOOK_S = 0.37  # no part of the heartbeats' half second, or each look would find one under way
HALT_S = 30.0
SLOW_US = 100_000.0  # of a step: no draft comes in time
ADDRESSES = {FIRST: ADDRESS, SECOND: "memory://second"}
INCARNATIONS = {FIRST: "v", SECOND: "w"}
SILENT_S = 2.0  # a verifier or a client that is not heard for so long may be taken for gone
SMALL = replace(INFO, max_context=240)  # which a hostile client asks to be filled


@dataclass(frozen=True)
class Result:
    problems: tuple[str, ...]
    digest: str  # of every message
    messages: int
    tokens: int
    seconds: float  # virtual


def simulate(plan: Plan, log: Callable[[str], None] | None = None) -> Result:
    """The same plan gives the same result, message by message."""
    with reproducible(plan.seed):
        return run(World(plan, log).run())


class World:
    def __init__(self, plan: Plan, log: Callable[[str], None] | None) -> None:
        self.plan = plan
        self.chance = random.Random(plan.seed)
        self.language = ToyLanguage(plan.eos_rate)
        self.network = ClockedNetwork(plan.seed, log)
        self.told = [Told(stream) for stream in plan.streams]
        self.addresses = [ADDRESSES[name] for name in plan.verifiers]
        self.verifiers: dict[str, Verifier] = {}
        self.targets: dict[str, SimulatedTarget] = {}
        self.drafts: dict[str, SimulatedDraft] = {}
        self.drafters: dict[str, Drafter] = {}
        self.clients = {
            name: ClientHost(
                self.network, name, [told for told in self.told if told.stream.host == name], self.addresses
            )
            for name in HOSTS
        }
        self.hosts = {name: client.host for name, client in self.clients.items()}
        self.hosts |= {name: Host(name, self.network, self._verifier) for name in plan.verifiers}
        self.hosts |= {draft.name: Host(draft.name, self.network, self._drafter) for draft in plan.drafts}
        if plan.controller:
            self.hosts["controller"] = Host("controller", self.network, self._controller)
        self.hostile = 0

    # --- actors ------------------------------------------------------------------------------------------------------

    async def _verifier(self, host: Host) -> None:
        listener = self.network.listen(address := ADDRESSES[host.name])
        listener.inbox = inbox = HeldInbox()
        self.targets[host.name] = target = SimulatedTarget(self.language, self.plan.slots, self.chance)
        target.info, target.mixes_prompts = SMALL, self.plan.mixes_prompts
        kinds = {"inline": TimedInlineCompute(target, inbox), "thread": TimedCompute(target)}
        self.verifiers[host.name] = verifier = Verifier(
            VerifierSettings(bind=address),
            target,
            ToyCodec(),
            CostModel({rows: 1e6 * (FORWARD_S + rows * ROW_S) for rows in (1, 8, 16)}),
            listener,
            kinds.get(self.plan.compute) or LateCompute(target),
            f"{INCARNATIONS[host.name]}{host.starts}",
            timer=lambda: target.spent_s,
            inline=self._inline(),
        )
        await verifier.run(host.stop)

    def _inline(self) -> InlineDraft | None:
        draft = self.plan.inline_draft
        if draft is None:
            return None
        model = SimulatedDraft(self.language, draft, Process())
        model.fails = draft.rooms == FEW_ROOMS and draft.skill == 0
        return InlineDraft(model, {1: draft.step_us}, INFO.vocab_size, INFO.eos_token_ids, lambda: model.spent_s)

    async def _drafter(self, host: Host) -> None:
        plan = next(draft for draft in self.plan.drafts if draft.name == host.name)
        model = self.drafts[host.name] = SimulatedDraft(self.language, plan, host.process)
        size, digest = INFO.vocab_size, INFO.tokenizer_digest
        hello = Hello(
            Role.DRAFTER, host.name, f"{host.name}-{host.starts}", "toy", size, digest, INFO.max_context,
            step_us=plan.step_us,
        )  # fmt: skip
        drafter = self.drafters[host.name] = Drafter(
            model,
            self.network.host(host.name),
            ADDRESSES[plan.verifier],
            hello,
            {1: plan.step_us},
            clock=host.process.clock,
            timer=lambda: model.spent_s,
        )
        await drafter.run(host.stop)

    async def _controller(self, host: Host) -> None:
        hello = Hello(Role.CONTROLLER, "controller", f"controller-{host.starts}")
        await Controller(self.network.host(host.name), ADDRESS, hello).run(host.stop)

    # --- trouble -----------------------------------------------------------------------------------------------------

    async def _trouble(self, trouble: Trouble) -> None:
        await asyncio.sleep(trouble.at)
        network, name, seconds = self.network, trouble.who, trouble.seconds
        host = self.hosts.get(name)
        match trouble.what:
            case "hostile":
                await self._hostile(name, seconds)
            case "swap" | "drain":
                await self._operate(trouble)
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
        elif (draft := self.drafts.get(name)) is not None:
            draft.fails = broken

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

    async def _operate(self, trouble: Trouble) -> None:
        beside = next((draft.verifier for draft in self.plan.drafts if draft.name == trouble.who), "")
        names = [draft.name for draft in self.plan.drafts_at(beside)]
        with contextlib.suppress(DuoactorError):
            async with AsyncClient(self.addresses, network=self.network.host("operator"), timeout=3.0) as client:
                if trouble.what == "drain":
                    await client.drain(trouble.who)
                elif names:
                    await client.swap(trouble.who, names[(names.index(trouble.who) + 1) % len(names)])

    # --- the course of it --------------------------------------------------------------------------------------------

    async def run(self) -> Result:
        loop = asyncio.get_running_loop()
        rates = self.plan.rates
        self.network.faults = Faults(rates.drop, rates.duplicate, rates.reorder, rates.delay)
        for host in self.hosts.values():
            host.start()
        await asyncio.gather(*map(self._trouble, self.plan.troubles))
        self.network.faults = Faults()
        for host in self.hosts.values():
            host.start()
        problems = await self._finished(self.told)
        problems = problems or await self._at_rest()
        problems = problems or await self._as_before()
        problems += await self._stopped()
        problems += [defect for host in self.hosts.values() for defect in host.defects]
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
        problems: list[str] = []
        for number, name in enumerate(self.plan.verifiers, 4):
            stream = Stream(0.0, f"c{number}", (5, 9, 33), 100, "sps", 0.0, 1, 0, ignore_eos=True)
            client = ClientHost(self.network, stream.host, [told := Told(stream)], [ADDRESSES[name]])
            self.hosts[stream.host] = client.host
            client.host.start()
            problems += await self._finished([told])
            drafters = self.verifiers[name].state.drafters.by_peer.values()
            useful = drafters and all(draft.skill and draft.step_us < SLOW_US for draft in self.plan.drafts_at(name))
            if useful and not problems and not any(drafter.accepted for drafter in drafters):
                problems = [f"no draft is accepted any more at {name}"]
        return problems

    async def _stopped(self) -> list[str]:
        """All stop in order, the verifiers last."""
        order = sorted(self.hosts.values(), key=lambda host: host.name in self.plan.verifiers)
        for host in order:
            host.halt()
            if host.task is not None:
                await asyncio.wait([host.task], timeout=HALT_S)
        return [f"{host.name} does not stop" for host in order if host.task is not None and not host.task.done()]
