"""What models take, and the processes that actors run in: started, killed, frozen and restarted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from protocols.errors import DuoactorError
from tests.simulation.clocked_network import ClockedNetwork
from tests.simulation.plans import Draft
from tests.world.clock import Process
from tests.world.models import Broken, Costs, ToyDraft, ToyLanguage, Watch

CHUNK = 32  # tokens of a prompt
COSTS = Costs(forward=23_000, row=2_300, prompt_row=2_300, code=0)  # slow: a stream outlives troubles of seconds
JITTER = 0.3
RESTART_S = 1.0  # a supervisor starts an actor that ended by itself


class Processor(Watch):
    """A process that drafts, whichever weights it has loaded."""

    fails = False

    def spend(self, took_us: float, code_us: float = 0.0) -> None:
        if self.fails:
            raise Broken
        super().spend(took_us, code_us)


def simulated_draft(language: ToyLanguage, draft: Draft, processor: Processor) -> ToyDraft:
    costs = Costs(step=draft.step_us, leaf=0.15 * draft.step_us, read=draft.step_us / CHUNK)
    return ToyDraft(language, draft.skill, rooms=draft.rooms, costs=costs, watch=processor)


class Host:
    """A process by its name. ``begin`` makes its main coroutine; it is called again at every start."""

    def __init__(self, name: str, network: ClockedNetwork, begin: Callable[[Host], Coroutine[Any, Any, None]]) -> None:
        self.name, self.network, self.begin = name, network, begin
        self.process = Process()
        self.stop = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self.wanted = True  # nobody has stopped or killed it
        self.defects: list[str] = []
        self.starts = 0

    def start(self) -> None:
        self.wanted = True
        if self.task is not None and not self.task.done():
            return  # it is started again when it has ended
        self.process, self.stop = Process(), asyncio.Event()
        self.starts += 1
        self.task = self.process.run(self.begin(self))
        self.task.add_done_callback(self._ended)

    def freeze(self, seconds: float) -> None:
        self.process.compute(seconds)

    def kill(self) -> None:
        """As SIGKILL: it says nothing any more."""
        self.wanted = False
        self.network.kill(self.name)
        if self.task is not None:
            self.process.free_at = 0.0
            self.task.cancel()

    def halt(self) -> None:
        """As SIGTERM."""
        self.wanted = False
        self.stop.set()

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, (DuoactorError, Broken)):
            self.defects.append(f"{self.name} ended with {error!r}")
        if self.wanted:  # a supervisor would start it again
            asyncio.get_running_loop().call_later(RESTART_S, lambda: self.wanted and self.start())
