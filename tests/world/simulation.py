"""The real actors on a virtual clock, and a controller compared with every fixed setting.

Nothing here knows a formula of the controller: verifier, drafter and controller run as they are, rounds happen event
by event, and tokens per second are counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

from actors.controller.loop import Controller
from actors.drafter.loop import Drafter
from protocols.messages import Budget, DraftStats, Generate, Goodbye, Hello, Kind, Role, RoundStats, Sampling
from tests.world.actors import timed_drafter, timed_verifier
from tests.world.caller import ADDRESS, Caller
from tests.world.clock import Process, run
from tests.world.compute import HeldInbox, VirtualInline, VirtualThread
from tests.world.models import INFO, Costs, Texts, ToyDraft, ToyTarget, Watch
from tests.world.network import MemoryNetwork, only

LONGEST = 40_000  # positions
INFO = replace(INFO, max_context=LONGEST)
UNCOPIED = (0.0, 0.0)
TO_DRAFTERS = ("Open", "Close", "Verdict", "Grow", "Resync", "Decline", "DraftStats")
START = 64  # tokens of a prompt


@dataclass(frozen=True)
class World(Costs):
    """What is true now."""

    skill: float = 0.75  # how often the draft's first guess is right
    boast: float = 0.0  # by how much the draft is surer than it should be
    message: float = 100.0  # µs to or from the drafter
    lost: float = 0.0  # share of those messages


class Drafting(Process):
    """``worked``: start and seconds of every forward."""

    def __init__(self) -> None:
        super().__init__()
        self.worked: list[tuple[float, float]] = []

    def compute(self, seconds: float) -> None:
        self.worked.append((self.clock(), seconds))
        super().compute(seconds)


@dataclass(frozen=True)
class Fixed:
    """A controller that never changes its mind."""

    method: str
    gamma: int | None = None
    sequences: int | None = None
    window: int | None = None
    wait_us: float | None = None

    def observe_round(self, stats: RoundStats) -> None: ...
    def observe_draft(self, stats: DraftStats) -> None: ...
    def calibrated(self, forward_us: object) -> None: ...
    def decide(self, now_s: float = 0.0) -> list[Budget]:
        return [
            Budget(
                1,
                10_000,
                Kind(self.method),
                gamma=self.gamma,
                sequences=self.sequences,
                window=self.window,
                wait_us=self.wait_us,
            )
        ]


@dataclass
class Trace:
    """Rounds as they were published, and budgets as they came into force, each with its virtual time in seconds."""

    rounds: list[tuple[float, RoundStats]] = field(default_factory=list)
    budgets: list[tuple[float, int, Budget]] = field(default_factory=list)  # with the number of rounds before
    forwards: list[tuple[float, float]] = field(default_factory=list)  # the draft's: start and length, microseconds


class Simulation:
    def __init__(
        self,
        world: World,
        method: str,
        control: object | None = None,
        seed: int = 0,
        inline: bool = False,
        temperature: float = 0.0,
    ) -> None:
        """``inline``: the target's forward runs in the verifier's event loop, as with a small target on a CPU."""
        self.method, self.control, self.inline, self.temperature = method, control, inline, temperature
        self.text = Texts(LONGEST, UNCOPIED).text(2 + seed % 60, temperature > 0)  # text of all streams
        self.beside: list[Callable[[], Coroutine[Any, Any, None]]] = []  # what else happens, from the first scene on
        self.network = MemoryNetwork(
            seed, drop=world.lost, faulty=only(*TO_DRAFTERS), seconds={"drafter": world.message / 1e6}
        )
        self.inbox = HeldInbox()
        self.thread = VirtualInline(self.inbox) if inline else VirtualThread()
        self.process = Drafting()
        self.watches = Watch(self.thread, seed, world.jitter), Watch(self.process, seed + 1, world.jitter)
        self.target = ToyTarget(slots=1 << 24, max_window=31, info=INFO, watch=self.watches[0])
        self.draft = ToyDraft(scratch_slots=256, info=INFO, watch=self.watches[1], reads=True)
        self.become(world)
        self.trace = Trace()
        self.done = 0  # tokens of the first stream
        self.at = START  # position at which streams begin
        self.joining_at: int | None = None  # position at which further streams begin, if that is another
        self.tamper: Callable[[Drafter], None] = lambda drafter: None  # makes the drafter another than it should be
        self.gamma = 0  # length that requests ask for; 0: they leave it to the controller

    def become(self, world: World) -> None:
        self.world = self.target.costs = self.draft.costs = world
        self.target.language = self.draft.language = Texts(LONGEST, UNCOPIED, world.boast)
        self.draft.skill = world.skill

    # --- what tests call ---------------------------------------------------------------------------------------------

    def play(self, *scenes: tuple[World, int, int] | tuple[World, int, int, bool]) -> list[tuple[int, int]]:
        """Each scene is (world, tokens of the first stream, streams, whether there is a controller; there is unless it
        says so). Returns the range of rounds of every scene."""
        with patch("actors.verifier.scheduler.chunk_forwards", lambda *_: 1):  # as of a slower target
            return run(self._play(scenes))

    def rate(self, begin: int, end: int) -> float:
        """Tokens per second of all streams together over those rounds."""
        rounds = self.trace.rounds[begin:end]
        return sum(stats.committed for _, stats in rounds[1:]) / (rounds[-1][0] - rounds[0][0])

    def tokens(self, end: int) -> int:
        """Tokens of the first stream before a round."""
        return sum(stats.committed for _, stats in self.trace.rounds[:end] if stats.rid == "r0")

    def round_at(self, tokens: int) -> int:
        """The round in which the first stream has so many tokens."""
        total = 0
        for number, (_, stats) in enumerate(self.trace.rounds):
            total += stats.committed if stats.rid == "r0" else 0
            if total >= tokens:
                return number
        raise AssertionError("the simulation is too short")

    def rate_over(self, first: int, last: int) -> float:
        """Tokens per second of all streams while the first one went from its token ``first`` to ``last``."""
        return self.rate(self.round_at(first), self.round_at(last))

    # --- inside ------------------------------------------------------------------------------------------------------

    async def _play(self, scenes: Sequence[tuple[World, int, int]]) -> list[tuple[int, int]]:
        network, loop = self.network, asyncio.get_running_loop()
        listener = network.listen(ADDRESS)
        listener.inbox = self.inbox
        verifier = timed_verifier(self.target, listener, self.thread, self.world, self.watches[0])
        publish = verifier.publish

        def observed(message) -> None:
            if isinstance(message, RoundStats):
                ended = verifier.state.started + (message.started_us + message.forward_us) / 1e6
                self.trace.rounds.append((ended, message))
                self.done += message.committed if message.rid == "r0" else 0
            elif isinstance(message, Budget):
                self.trace.budgets.append((loop.time(), len(self.trace.rounds), message))
            publish(message)

        verifier.publish = observed
        drafter = timed_drafter(
            "drafter", self.draft, network.host("drafter"), self.world, self.watches[1], self.process.clock
        )
        self.tamper(drafter)
        stop = asyncio.Event()
        controlling = self._controller(stop)
        actors = [asyncio.create_task(verifier.run(stop)), self.process.run(drafter.run(stop))]
        while verifier.state.drafters.named("drafter") is None or verifier.state.controller is None:
            await asyncio.sleep(0.01)
        caller = Caller(network, "client")
        await caller.hello()
        beating = asyncio.create_task(caller.beat())
        listening = asyncio.create_task(self._listen(caller))
        await asyncio.sleep(0.3)  # a fixed budget is in force before the first round
        others = [asyncio.create_task(other()) for other in self.beside]
        streams, spans = 0, []
        for world, tokens, wanted, *controlled in scenes:
            self.become(world)
            if controlled == [False]:
                network.kill("controller")  # no goodbye
                controlling.cancel()
            elif controlling.cancelled():
                self.control = None
                controlling = self._controller(stop)
            while streams < wanted:
                at = self.at if streams == 0 or self.joining_at is None else self.joining_at
                sampling = Sampling(self.temperature, max_tokens=LONGEST - at - 64, ignore_eos=True)
                prompt = self.text.tokens[:at]
                caller.send(
                    Generate(
                        f"r{streams}", prompt, sampling=sampling, method=self.method, num_speculative_tokens=self.gamma
                    )
                )
                streams += 1
            begin = len(self.trace.rounds)
            goal = self.tokens(begin) + tokens
            while self.done < goal:
                await asyncio.sleep(0.02)
                assert all(not task.done() for task in actors), [task for task in actors if task.done()]
            spans.append((begin, len(self.trace.rounds)))
        for task in (beating, listening, *others):
            task.cancel()
        caller.send(Goodbye())  # the verifier waits for it
        stop.set()
        await asyncio.gather(*actors, *([] if controlling.cancelled() else [controlling]))
        began = verifier.state.started
        self.trace.forwards = [((at - began) * 1e6, took * 1e6) for at, took in self.process.worked]
        return spans

    def _controller(self, stop: asyncio.Event) -> asyncio.Task[None]:
        controller = Controller(self.network.host("controller"), ADDRESS, Hello(Role.CONTROLLER, "controller", "c"))
        if self.control is not None:
            controller.control = self.control
        self.control = controller.control
        return asyncio.create_task(controller.run(stop))

    async def _listen(self, caller: Caller) -> None:
        while True:
            await caller.next()
            caller.seen.clear()
