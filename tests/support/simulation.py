"""The real actors on a virtual clock, with models that take the time they are told to and a network that takes some.

Nothing here knows a formula of the controller: verifier, drafter and controller run as they are, rounds happen event
by event, and tokens per second are counted. Text and luck depend on the position alone, so that every setting decodes
the same stretch with the same luck, and a difference between settings is no accident.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from cluster import ADDRESS, Caller
from virtual_time import run

from actors.controller import Controller
from actors.drafter import Drafter
from actors.engines.interface import Expansion, Leaf, Outcome, Window
from actors.settings import VerifierSettings
from actors.speculation.costs import CostModel
from actors.speculation.walk import walk
from actors.verifier import Verifier
from fakes import INFO, VOCAB, ToyCodec
from protocols import wire
from protocols.memory import MemoryNetwork
from protocols.messages import Budget, DraftStats, Generate, Hello, Role, RoundStats, Sampling

LONGEST = 40_000  # positions
RUN_UP = 100  # tokens for a drafter to learn its calibration, before a fixed setting is measured
OVERHEAD_US = 150.0  # of a round, outside the forward
INFO = replace(INFO, max_context=LONGEST)


@dataclass(frozen=True)
class World:
    """What is true now. ``skill``: how often the draft's first guess is right; ``row_us``: of a forward's every row."""

    skill: float = 0.75
    step_us: float = 500.0
    width: float = 0.15  # of a step, for every further leaf
    verify_us: float = 10_000.0
    row_us: float = 100.0
    message_us: float = 100.0
    boast: float = 0.0  # by how much the draft is surer than it should be

    def verify(self, rows: int) -> float:
        return self.verify_us + self.row_us * rows

    def step(self, leaves: int) -> float:
        return self.step_us * (1 + self.width * (leaves - 1))


class Fate:
    """The text, and the draft's luck at each of its positions."""

    def __init__(self, seed: int = 0) -> None:
        chance = random.Random(seed)
        self.truth = [chance.randrange(2, VOCAB) for _ in range(LONGEST)]
        self.luck = [chance.random() for _ in range(LONGEST)]
        self.sure = [chance.uniform(-1, 1) for _ in range(LONGEST)]

    def candidates(self, position: int, right_so_far: bool, world: World) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """The draft's three guesses at a position, and what it thinks of each."""
        spread = 0.8 * min(world.skill, 1 - world.skill)
        first = min(max(world.skill + spread * self.sure[position], 0.0), 1.0)
        second = 0.5 * (1 - first) if world.skill > 0.05 else 0.02
        said = min(0.97, max(0.05, first + world.boast))
        probs = (said, 0.5 * (1 - said), 0.2 * (1 - said))
        truth = self.truth[position]
        wrong = [2 + (truth + 7 * k - 2) % (VOCAB - 2) for k in (1, 2, 3)]
        luck = self.luck[position] if right_so_far else 1.0
        if luck < first:
            return (truth, wrong[0], wrong[1]), probs
        if luck < first + second:
            return (wrong[0], truth, wrong[1]), probs
        return (wrong[0], wrong[1], wrong[2]), probs


class TimedTarget:
    max_window = 31
    info = INFO
    rows_agree = (1,)
    kv_slots = 1 << 20
    kv_used = 0

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.lengths: dict[int, int] = {}
        self.spent_s = 0.0
        self.owed_s = 0.0

    def open(
        self, prompt: Sequence[int], sampling: Sampling, generated: Sequence[int] = (), most_nodes: int = 0
    ) -> int:
        handle = len(self.lengths)
        self.lengths[handle] = len(prompt) + len(generated)
        return handle

    def prefill(self, handle: int) -> Outcome | None:
        return self._walk(Window(handle))

    def verify(self, windows: Sequence[Window]) -> list[Outcome]:
        noise = self.sim.chance.uniform(0.97, 1.03)
        took = self.sim.world.verify(sum(1 + len(w.tokens) for w in windows)) * noise / 1e6
        self.spent_s += took
        self.owed_s = took + OVERHEAD_US / 1e6
        return [self._walk(w) for w in windows]

    def _walk(self, window: Window) -> Outcome:
        length = self.lengths[window.handle]
        depths: list[int] = []
        for parent in window.parents:
            depths.append(1 + (depths[parent] if parent >= 0 else 0))
        sampled = [self.sim.fate.truth[length + depth] for depth in (0, *depths)]
        path, final = walk(window.tokens, window.parents, sampled)
        tokens = [*(window.tokens[i] for i in path), final]
        self.lengths[window.handle] += len(tokens)
        return Outcome(path, tokens, [], sampled)

    def close(self, handle: int) -> None: ...


class TimedDraft:
    scratch_slots = 256
    info = INFO

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.lengths: dict[int, int] = {}
        self.free: dict[int, list[int]] = {}
        self.right: dict[tuple[int, int], tuple[int, bool]] = {}  # slot -> (position of its token, all of it right)
        self.spent_s = 0.0
        self.owed_s = 0.0

    def open(self, prefix: Sequence[int], prompt_len: int, sampling: Sampling) -> int:
        handle = len(self.lengths)
        self.lengths[handle] = len(prefix)
        self.free[handle] = list(range(self.scratch_slots))
        return handle

    def expand(self, leaves: Sequence[Leaf]) -> list[Expansion]:
        took = self.sim.world.step(len(leaves)) * self.sim.chance.uniform(0.95, 1.1) / 1e6
        self.spent_s += took
        self.owed_s += took
        return [self._expand(leaf) for leaf in leaves]

    def _expand(self, leaf: Leaf) -> Expansion:
        fate, length = self.sim.fate, self.lengths[leaf.handle]
        if leaf.is_root:
            return Expansion(-1, *fate.candidates(length, True, self.sim.world))
        position, right = length, True
        if leaf.path:
            above, right = self.right[leaf.handle, leaf.path[-1]]
            position = above + 1
        right = right and fate.truth[position] == leaf.token
        slot = self.free[leaf.handle].pop()
        self.right[leaf.handle, slot] = (position, right)
        return Expansion(slot, *fate.candidates(position + 1, right, self.sim.world))

    def commit(self, handle: int, tokens: Sequence[int], slots: Sequence[int]) -> None:
        self.lengths[handle] += len(tokens)
        self.free[handle] += [slot for slot in slots if slot >= 0]

    def release(self, handle: int, slots: Sequence[int]) -> None:
        self.free[handle] += slots

    def close(self, handle: int) -> None: ...


class TimedDrafter(Drafter):
    """A drafter whose steps take their time on the virtual clock; messages wait meanwhile, as they really do."""

    async def _work(self) -> None:
        while True:
            self._receive()
            batch = self._decide()
            if batch:
                self._compute(batch)
                owed, self.model.owed_s = self.model.owed_s, 0.0
                await asyncio.sleep(owed)
                self._tell()
                await asyncio.sleep(0)
            else:
                self._tell()
                self._take(await self.line.next())


class TimedCompute:
    """The forward happens at its beginning, and is known of at its end."""

    def __init__(self, target: TimedTarget) -> None:
        self.target = target

    def start(self, job: Callable[[], object]) -> asyncio.Future:
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        result = job()
        owed, self.target.owed_s = self.target.owed_s, 0.0
        loop.call_later(owed, lambda: future.cancelled() or future.set_result(result))
        return future

    def close(self) -> None: ...


class SlowNetwork(MemoryNetwork):
    """Messages to and from the drafter take ``world.message_us``; an order is kept while that does not change."""

    def __init__(self, sim: Simulation) -> None:
        super().__init__()
        self.sim = sim

    def deliver(self, turn, link, action) -> None:
        if link.host != "drafter":
            action()
            return
        asyncio.get_running_loop().call_later(self.sim.world.message_us / 1e6, lambda: None if link.dead else action())


@dataclass(frozen=True)
class Fixed:
    """A controller that never changes its mind."""

    method: str
    gamma: int
    sequences: int = 0
    window: int = 0
    wait_us: float = 0.0

    def observe_round(self, stats: RoundStats) -> None: ...
    def observe_draft(self, stats: DraftStats) -> None: ...
    def decide(self, now_s: float = 0.0) -> list[Budget]:
        return [Budget(1, "", self.gamma, self.sequences, self.window, self.wait_us, 10_000, method=self.method)]


@dataclass
class Trace:
    """Rounds as they were published, and budgets as they came into force, each with its virtual time in seconds."""

    rounds: list[tuple[float, RoundStats]] = field(default_factory=list)
    budgets: list[tuple[float, int, Budget]] = field(default_factory=list)  # with the number of rounds before


class Simulation:
    def __init__(self, world: World, method: str, control: object | None = None, seed: int = 0) -> None:
        self.world, self.method, self.control = world, method, control
        self.fate = Fate(seed)
        self.chance = random.Random(seed)
        self.trace = Trace()
        self.done = 0  # tokens of the first stream
        self.at = 64  # position at which streams begin

    # --- what tests call ---------------------------------------------------------------------------------------------

    def play(self, *scenes: tuple[World, int, int]) -> list[tuple[int, int]]:
        """Each scene is (world, tokens of the first stream, streams). Returns the range of rounds of every scene."""
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
        network, loop = SlowNetwork(self), asyncio.get_running_loop()
        target, draft = TimedTarget(self), TimedDraft(self)
        start = self.world
        cost = CostModel({rows: start.verify(rows) for rows in (1, 2, 4, 8, 16, 32)})
        settings = VerifierSettings(bind=ADDRESS)
        verifier = Verifier(
            settings,
            target,
            ToyCodec(),
            cost,
            network.listen(ADDRESS),
            TimedCompute(target),
            "v",
            timer=lambda: target.spent_s,
        )
        publish = verifier.publish

        def observed(message) -> None:
            if isinstance(message, RoundStats):
                ended = verifier.book.started + (message.started_us + message.forward_us) / 1e6
                self.trace.rounds.append((ended, message))
                self.done += message.committed if message.rid == "r0" else 0
            elif isinstance(message, Budget):
                self.trace.budgets.append((loop.time(), len(self.trace.rounds), message))
            publish(message)

        verifier.publish = verifier.reception.publish = observed
        hello = Hello(
            Role.DRAFTER, "drafter", "d", wire.PROTOCOL, "toy", INFO.vocab_size, INFO.tokenizer_digest, LONGEST,
            step_us=start.step_us,
        )  # fmt: skip
        drafter = TimedDrafter(
            draft, network.host("drafter"), ADDRESS, hello, {1: start.step_us}, timer=lambda: draft.spent_s
        )
        controller = Controller(
            network.host("controller"), ADDRESS, Hello(Role.CONTROLLER, "controller", "c", wire.PROTOCOL)
        )
        if self.control is not None:
            controller.control = self.control
        self.control = controller.control
        stop = asyncio.Event()
        actors = [asyncio.create_task(actor.run(stop)) for actor in (verifier, drafter, controller)]
        while verifier.book.drafters.named("drafter") is None or verifier.book.controller is None:
            await asyncio.sleep(0.01)
        caller = Caller(network, "client")
        await caller.hello()
        beating = asyncio.create_task(caller.beat())
        listening = asyncio.create_task(self._listen(caller))
        await asyncio.sleep(0.3)  # a fixed budget is in force before the first round
        streams, spans = 0, []
        for world, tokens, wanted in scenes:
            self.world = world
            while streams < wanted:
                sampling = Sampling(max_tokens=LONGEST - self.at - 64, ignore_eos=True)
                prompt = tuple(self.fate.truth[: self.at])
                caller.send(Generate(f"r{streams}", prompt, sampling=sampling, method=self.method))
                streams += 1
            begin = len(self.trace.rounds)
            goal = self.tokens(begin) + tokens
            while self.done < goal:
                await asyncio.sleep(0.02)
                assert all(not task.done() for task in actors), [task for task in actors if task.done()]
            spans.append((begin, len(self.trace.rounds)))
        for task in (beating, listening):
            task.cancel()
        stop.set()
        await asyncio.gather(*actors)
        return spans

    async def _listen(self, caller: Caller) -> None:
        while True:
            await caller.next()
            caller.seen.clear()


@dataclass(frozen=True)
class Comparison:
    """After a change: how the controller does on a stretch of text, and how every fixed setting does on it."""

    controlled: float  # tokens per second
    fixed: dict[Fixed, float]
    trace: Trace
    settled: int  # first round of the stretch

    @property
    def best(self) -> Fixed:
        return max(self.fixed, key=lambda one: self.fixed[one])

    @property
    def ratio(self) -> float:
        return self.controlled / self.fixed[self.best]


def compare(
    method: str,
    before: World,
    after: World,
    streams: int,
    settings: Sequence[Fixed],
    rounds: int = 50,
    tokens: int = 300,
) -> Comparison:
    """``rounds`` of every stream after the world changed and the streams grew from one to ``streams``, the stretch of
    ``tokens`` begins on which the controller is compared with every one of ``settings``, alone in the new world."""
    sim = Simulation(before, method)
    _, (changed, _) = sim.play((before, 250, 1), (after, 5 * rounds + tokens, streams))
    settled = changed + rounds * streams
    first = sim.tokens(settled)
    fixed = {}
    for setting in settings:
        other = Simulation(after, method, setting)
        other.at = sim.at + first - RUN_UP
        other.play((after, RUN_UP // 2, 1), (after, RUN_UP // 2 + tokens + 20, streams))  # joined as in the other
        fixed[setting] = other.rate_over(RUN_UP, RUN_UP + tokens)
    return Comparison(sim.rate_over(first, first + tokens), fixed, sim.trace, settled)
