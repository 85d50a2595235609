"""Models that take time and can fail, and the processes that actors run in: started, killed, frozen and restarted."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from actors.models import Expansion, Leaf, Outcome, Window
from protocols.errors import DuoactorError
from protocols.messages import Sampling
from tests.simulation.clocked_network import ClockedNetwork
from tests.simulation.plans import Draft
from tests.world.desk import Reader
from tests.world.models import ToyLanguage, ToyTarget
from tests.world.timed import Process, TimedCompute

PREFILL_CHUNK = 32
FORWARD_S, ROW_S = 0.02, 0.002  # slow, so that a stream of a second lives through troubles of seconds
RESTART_S = 1.0  # a supervisor starts an actor that ended by itself


class Broken(RuntimeError):
    """A forward failed, as the plan has it."""


class SimulatedTarget(ToyTarget):
    def __init__(self, language: ToyLanguage, slots: int, chance: random.Random) -> None:
        super().__init__(language, slots)
        self.chance = chance
        self.spent_s = self.owed_s = 0.0
        self.unread: dict[int, int] = {}  # tokens of a prompt that no forward has seen

    def open(self, prompt: Sequence[int], sampling: Sampling, generated: Sequence[int] = (), *rest: Any) -> int:
        handle = super().open(prompt, sampling, generated, *rest)
        self.unread[handle] = len(prompt) + len(generated)
        return handle

    def prefill(self, handle: int, limit: int | None = None) -> Outcome | None:
        rows = min(limit or PREFILL_CHUNK, self.unread[handle])
        self._spend(rows)
        if self.broken:
            raise Broken
        self.unread[handle] -= rows
        return None if self.unread[handle] > 0 else super().prefill(handle)

    def verify(self, windows: Sequence[Window]) -> list[Outcome]:
        self.batches.clear()
        self._spend(sum(1 + len(window.tokens) for window in windows))
        if self.broken:
            raise Broken
        return super().verify(windows)

    def verify_beside(self, windows: Sequence[Window], handle: int, limit: int) -> tuple[list[Outcome], Outcome | None]:
        rows = min(limit, self.unread[handle])
        self.batches.clear()
        self._spend(sum(1 + len(window.tokens) for window in windows) + rows)
        if self.broken:
            raise Broken
        outcomes = super().verify(windows)
        self.unread[handle] -= rows
        return outcomes, None if self.unread[handle] > 0 else super().prefill(handle)

    def close(self, handle: int) -> None:
        super().close(handle)
        del self.unread[handle]

    def _spend(self, rows: int) -> None:
        took = (FORWARD_S + ROW_S * rows) * self.chance.uniform(0.8, 1.5)
        self.spent_s += took
        self.owed_s += took


class LateCompute(TimedCompute):
    """As :class:`TimedCompute`, but the forward happens at the end of its time."""

    def start(self, job: Callable[[], object]) -> asyncio.Future:
        loop = asyncio.get_running_loop()
        future = loop.create_future()

        def run() -> None:
            if not future.cancelled():
                future.set_result(job())
                self.target.owed_s = 0.0

        loop.call_later(FORWARD_S, run)
        return future


@dataclass(slots=True)
class Processor:
    """Of a process that drafts, whichever weights it has loaded."""

    process: Process
    spent_s: float = 0.0
    fails: bool = False


class SimulatedDraft(Reader):
    def __init__(self, language: ToyLanguage, draft: Draft, processor: Processor) -> None:
        super().__init__(language, draft.skill, rooms=draft.rooms)
        self.draft, self.processor = draft, processor
        self.step_s = draft.step_us / 1e6

    def with_skill(self, skill: float) -> SimulatedDraft:
        """Other weights on the same processor."""
        return SimulatedDraft(self.language, msgspec.structs.replace(self.draft, skill=skill), self.processor)

    def expand(self, leaves: Sequence[Leaf]) -> list[Expansion]:
        self.batches.clear()
        self._spend(self.step_s * (1 + 0.15 * (len(leaves) - 1)))
        return super().expand(leaves)

    def prefill(self, handle: int, limit: int) -> None:
        self._spend(self.step_s * min(limit, self.missing(handle)) / 32)
        super().prefill(handle, limit)

    def _spend(self, seconds: float) -> None:
        if self.processor.fails:
            raise Broken
        self.processor.spent_s += seconds
        self.processor.process.compute(seconds)


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
