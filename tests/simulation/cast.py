"""Who takes part: the real actors and clients as a plan has them, each begun anew whenever its process is started."""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from actors.controller.loop import Controller
from actors.cost import CostModel
from actors.drafter.loop import Drafter
from actors.settings import VerifierSettings
from actors.verifier.context import Equipment
from actors.verifier.loop import Verifier
from actors.verifier.sources.inline import InlineDraft
from protocols.messages import Hello, Role
from tests.simulation.clocked_network import ClockedNetwork
from tests.simulation.hosts import CHUNK, COSTS, JITTER, Host, Processor, simulated_draft
from tests.simulation.plans import FEW_ROOMS, FIRST, HOSTS, LEARNER, SECOND, Plan
from tests.simulation.readers import ClientHost, Told
from tests.simulation.school import School
from tests.world.actors import drafter_line
from tests.world.caller import ADDRESS
from tests.world.clock import Process
from tests.world.compute import HeldInbox, LateThread, VirtualInline, VirtualThread
from tests.world.models import INFO, ToyCodec, ToyLanguage, ToyTarget, Watch

ADDRESSES = {FIRST: ADDRESS, SECOND: "memory://second"}
INCARNATIONS = {FIRST: "v", SECOND: "w"}
SMALL = replace(INFO, max_context=240)  # a hostile client asks to fill it


class Cast:
    def __init__(self, plan: Plan, log: Callable[[str], None] | None) -> None:
        self.plan = plan
        self.chance = random.Random(plan.seed)
        self.language = ToyLanguage(plan.eos_rate)
        self.network = ClockedNetwork(plan.seed, log)
        self.told = [Told(stream) for stream in plan.streams]
        self.addresses = [ADDRESSES[name] for name in plan.verifiers]
        self.verifiers: dict[str, Verifier] = {}
        self.targets: dict[str, ToyTarget] = {}
        self.processors: dict[str, Processor] = {}  # processors of drafters
        self.drafters: dict[str, Drafter] = {}
        learning = plan.learning
        self.school = School(learning, self.language, self.network, self.chance) if learning is not None else None
        names = dict.fromkeys((*HOSTS, *(stream.host for stream in plan.streams)))
        self.clients = {name: self._client(name) for name in names}
        self.hosts = {name: client.host for name, client in self.clients.items()}
        self._adds(plan.verifiers, self._verifier)
        self._adds((draft.name for draft in plan.drafts), self._drafter)
        if plan.controller:
            self._adds(("controller",), self._controller)
        if self.school is not None:
            self._adds((LEARNER,), self.school.begin)

    def _adds(self, names: Any, begin: Callable[[Host], Coroutine[Any, Any, None]]) -> None:
        self.hosts |= {name: Host(name, self.network, begin) for name in names}

    def _client(self, name: str) -> ClientHost:
        told = [told for told in self.told if told.stream.host == name]
        return ClientHost(self.network, name, told, self.addresses)

    async def _verifier(self, host: Host) -> None:
        listener = self.network.listen(address := ADDRESSES[host.name])
        listener.inbox = inbox = HeldInbox()
        kinds = {"inline": VirtualInline(inbox), "thread": VirtualThread()}
        compute = kinds.get(self.plan.compute) or LateThread(COSTS.forward / 1e6)
        watch = Watch(compute, self.plan.seed, JITTER)
        self.targets[host.name] = target = ToyTarget(
            self.language,
            self.plan.slots,
            info=SMALL,
            mixes_prompts=self.plan.mixes_prompts,
            chunk=CHUNK,
            costs=COSTS,
            watch=watch,
        )
        equipment = Equipment(
            target,
            ToyCodec(),
            CostModel({rows: COSTS.rows(rows) for rows in (1, 8, 16)}),
            compute,
            inline=self._inline(),
            timer=watch,
            incarnation=f"{INCARNATIONS[host.name]}{host.starts}",
        )
        self.verifiers[host.name] = verifier = Verifier(VerifierSettings(bind=address), equipment, listener)
        await verifier.run(host.stop)

    def _inline(self) -> InlineDraft | None:
        draft = self.plan.inline_draft
        if draft is None:
            return None
        processor = Processor(Process())
        processor.fails = draft.rooms == FEW_ROOMS and draft.skill == 0
        model = simulated_draft(self.language, draft, processor)
        return InlineDraft(
            model,
            {1: draft.step_us},
            INFO.vocab_size,
            INFO.eos_token_ids,
            processor,
            self.school.loader(model) if self.school is not None else None,
        )

    async def _drafter(self, host: Host) -> None:
        plan = next(draft for draft in self.plan.drafts if draft.name == host.name)
        self.processors[host.name] = processor = Processor(host.process)
        model = simulated_draft(self.language, plan, processor)
        size, digest = INFO.vocab_size, INFO.tokenizer_digest
        hello = Hello(
            Role.DRAFTER, host.name, f"{host.name}-{host.starts}", "toy", size, digest, INFO.max_context,
            step_us=plan.step_us, loads=self.school is not None,
        )  # fmt: skip
        drafter = self.drafters[host.name] = Drafter(
            model,
            drafter_line(self.network.host(host.name), hello, ADDRESSES[plan.verifier], host.process.clock),
            {1: plan.step_us},
            timer=processor,
            load=self.school.loader(model) if self.school is not None else None,
        )
        await drafter.run(host.stop)

    async def _controller(self, host: Host) -> None:
        hello = Hello(Role.CONTROLLER, "controller", f"controller-{host.starts}")
        await Controller(self.network.host(host.name), ADDRESS, hello).run(host.stop)
