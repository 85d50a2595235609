"""A whole system in one process: verifier, drafters, controller and clients on the in-memory network."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from unittest.mock import patch

from actors.controller.loop import Controller
from actors.cost import CostModel
from actors.drafter.loop import Drafter
from actors.settings import VerifierSettings
from actors.verifier.compute import InlineCompute
from actors.verifier.context import Equipment
from actors.verifier.loop import Verifier
from actors.verifier.sources.lookup import Library
from protocols.messages import (
    Goodbye,
    Hello,
    Role,
)
from tests.world.actors import drafter_line
from tests.world.caller import ADDRESS, Caller
from tests.world.models import INFO, ToyCodec, ToyDraft, ToyLanguage, ToyTarget
from tests.world.network import MemoryNetwork

COST = {1: 1000.0, 8: 1200.0, 16: 1500.0}  # microseconds by rows


class PacedCompute(InlineCompute):
    """Each job begins so many seconds after it was asked for."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def start(self, job):
        async def run():
            await asyncio.sleep(self.seconds)
            return await super(PacedCompute, self).start(job)

        return asyncio.ensure_future(run())


class Cluster:
    def __init__(
        self,
        network: MemoryNetwork | None = None,
        language: ToyLanguage | None = None,
        sources: Library | None = None,
        forward_s: float = 0.0,
        compute=None,
        tokenizing=None,
        target=None,
        codec=None,
        request_log=None,
        inline=None,
        lent=None,
        address: str = ADDRESS,
        chunk_s: float = -1.0,
        steps: int = 1,
        **settings,
    ) -> None:
        """``lent``: what rounds take with the CPUs of drafters that rest. ``chunk_s``: how long a chunk waits for the
        next round; as it is set, each round has one of its own, also where rounds take no time. ``steps``: forwards in
        a row where no drafts are verified."""
        self.patches = [
            patch("actors.verifier.outbox.CHUNK_S", chunk_s),
            patch("actors.verifier.outbox.MAX_CHUNK_S", chunk_s),
            patch("actors.verifier.scheduler.chunk_forwards", lambda *_: steps),
        ]
        self.compute = compute or (PacedCompute(forward_s) if forward_s else InlineCompute())
        self.tokenizing = tokenizing
        self.sources = sources
        self.request_log = request_log
        self.inline = inline
        self.lent = lent
        self.timer: Callable[[], float] = lambda: 0.0
        self.network = network or MemoryNetwork()
        self.language = language or ToyLanguage()
        self.settings = VerifierSettings(bind=address, **settings)
        self.target = target or ToyTarget(self.language)
        self.codec = codec or ToyCodec()
        self.tasks: dict[str, asyncio.Task] = {}
        self.stops: dict[str, asyncio.Event] = {}
        self.starts = itertools.count()
        self.verifier: Verifier | None = None

    async def __aenter__(self) -> Cluster:
        for patched in self.patches:
            patched.start()
        self.start_verifier()
        return self

    async def __aexit__(self, *exc) -> None:
        for patched in self.patches:
            patched.stop()
        for stop in self.stops.values():
            stop.set()
        await asyncio.sleep(0)  # what was cancelled ends
        for name, task in self.tasks.items():
            if name not in self.killed:
                await task

    @property
    def killed(self) -> set[str]:
        return {name for name, task in self.tasks.items() if task.cancelled()}

    def _spawn(self, name: str, actor) -> None:
        self.stops[name] = asyncio.Event()
        self.tasks[name] = asyncio.create_task(actor.run(self.stops[name]))

    def start_verifier(self) -> Verifier:
        equipment = Equipment(
            self.target,
            self.codec,
            CostModel(COST, lent=self.lent),
            self.compute,
            self.tokenizing or InlineCompute(),
            self.sources or Library(),
            self.inline,
            self.request_log,
            timer=self.timer,
            incarnation=f"v{next(self.starts)}",
        )
        self.verifier = Verifier(self.settings, equipment, self.network.listen(self.settings.bind))
        self._spawn("verifier", self.verifier)
        return self.verifier

    def crash_verifier(self) -> None:
        """As ``kill -9``: it says nothing to anybody."""
        self.verifier.listener.send = lambda peer, frames: True
        self.tasks["verifier"].cancel()

    def start_drafter(
        self, name: str = "d1", skill: float = 0.8, model=None, load=None, timer=lambda: 0.0, **hello
    ) -> Drafter:
        fields = {
            "role": Role.DRAFTER,
            "actor_id": name,
            "incarnation": f"{name}-{next(self.starts)}",
            "model_id": "toy-draft",
            "vocab_size": INFO.vocab_size,
            "tokenizer_digest": INFO.tokenizer_digest,
            "max_context": INFO.max_context,
            "step_us": 100.0,
            "loads": load is not None,
        }
        drafter = Drafter(
            model or ToyDraft(self.language, skill),
            drafter_line(self.network.host(name), Hello(**{**fields, **hello})),
            {1: 100.0},
            timer=timer,
            load=load,
        )
        self._spawn(name, drafter)
        return drafter

    def start_controller(self) -> Controller:
        hello = Hello(Role.CONTROLLER, "controller", "c")
        controller = Controller(self.network.host("controller"), ADDRESS, hello)
        self._spawn("controller", controller)
        return controller

    async def kill(self, name: str) -> None:
        """As ``kill -9``: no goodbye; the network forgets the host."""
        self.network.kill(name)
        self.tasks[name].cancel()
        await asyncio.gather(self.tasks[name], return_exceptions=True)

    async def caller(self, name: str = "") -> Caller:
        caller = Caller(self.network, name)
        await caller.hello()
        beating = asyncio.create_task(caller.beat())
        self.tasks[f"beat-{caller.name}"] = beating
        self.stops[f"beat-{caller.name}"] = _Leaving(caller, beating)
        return caller

    async def connected(self, *names: str) -> None:
        """Until the verifier knows these drafters."""
        while any(self.verifier.state.drafters.named(name) is None for name in names):
            await asyncio.sleep(0.01)


class _Leaving:
    def __init__(self, caller: Caller, beating: asyncio.Task) -> None:
        self.caller, self.beating = caller, beating

    def set(self) -> None:
        self.caller.send(Goodbye())
        self.beating.cancel()
