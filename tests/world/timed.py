"""Models that take the time they are told to, and a network that takes some; the text and the luck of every position.

Text and luck depend on the position alone, so that every setting decodes the same stretch with the same luck, and a
difference between settings is no accident.
"""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from actors.models import Expansion, Leaf, Outcome, Window
from actors.tree.accept import depths_of, walk
from actors.verifier.compute import Compute
from protocols.messages import Sampling
from tests.world.clock import Process, now_here
from tests.world.compute import HeldInbox
from tests.world.models import INFO, VOCAB
from tests.world.network import MemoryNetwork

LONGEST = 40_000  # positions
CHUNK = 256  # tokens of a prompt that the target computes at once unless it is asked for fewer
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
    lost: float = 0.0  # share of the messages to and from drafters
    boast: float = 0.0  # by how much the draft is surer than it should be
    prompts: bool = False  # whether the target takes its time for them, as for rows of a round
    context: float = 0.0  # of such a row, for every token of its prompt that it looks back to
    prefill_us: float = 0.0  # of the draft, for every token of a text that it has not seen

    def verify(self, rows: int) -> float:
        return self.verify_us + self.row_us * rows

    def prompt(self, rows: int, before: int) -> float:
        return self.row_us * rows * (1 + self.context * before)

    def step(self, leaves: int) -> float:
        return self.step_us * (1 + self.width * (leaves - 1))


class Fate:
    """The text, and the draft's luck at each of its positions. Nobody changes it: simulations share :func:`fate`."""

    def __init__(self, seed: int = 0) -> None:
        chance = random.Random(seed)
        self.truth = [chance.randrange(2, VOCAB) for _ in range(LONGEST)]
        self.luck = [chance.random() for _ in range(LONGEST)]
        self.sure = [chance.uniform(-1, 1) for _ in range(LONGEST)]

    def candidates(self, position: int, right_so_far: bool, world: World) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """The draft's three guesses at a position, and what it thinks of each."""
        skill = world.skill
        spread = 0.8 * min(skill, 1 - skill)
        first = min(max(skill + spread * self.sure[position], 0.0), 1.0)
        second = 0.5 * (1 - first) if skill > 0.05 else 0.02
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


fate = functools.lru_cache(maxsize=8)(Fate)


@dataclass
class Stage:
    """What a simulation's parts share."""

    world: World
    fate: Fate
    chance: random.Random


class TimedTarget:
    max_window = 31
    info = INFO
    rows_agree = (1,)
    branches = True
    mixes_prompts = False
    kv_slots = 1 << 20
    kv_used = 0
    kv_cached = 0

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.lengths: dict[int, int] = {}
        self.unseen: dict[int, int] = {}  # tokens of prompts that are not computed yet
        self.pieces: list[int] = []  # of prompts, as they were computed
        self.spent_s = 0.0
        self.owed_s = 0.0

    def open(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        generated: Sequence[int] = (),
        most_nodes: int = 0,
        cache_salt="",
        constraint=None,
    ) -> int:
        handle = len(self.lengths)
        self.lengths[handle] = self.unseen[handle] = len(prompt) + len(generated)
        return handle

    def reserve(self, handle: int) -> None: ...

    def prefill(self, handle: int, limit: int | None = None) -> Outcome | None:
        world, rows = self.stage.world, min(limit or CHUNK, self.unseen[handle])
        more = world.prompt(rows, self._before(handle))
        self.owed_s = (world.verify_us + more if world.prompts else 0.0) / 1e6
        self.spent_s += self.owed_s
        return self._read(handle, rows)

    def verify_beside(self, windows: Sequence[Window], handle: int, limit: int) -> tuple[list[Outcome], Outcome | None]:
        rows = min(limit, self.unseen[handle])
        more = self.stage.world.prompt(rows, self._before(handle)) / 1e6
        outcomes = self.verify(windows)
        self.spent_s += more
        self.owed_s += more
        return outcomes, self._read(handle, rows)

    def _before(self, handle: int) -> int:
        return self.lengths[handle] - self.unseen[handle]

    def _read(self, handle: int, rows: int) -> Outcome | None:
        world = self.stage.world
        self.unseen[handle] -= rows
        self.pieces.append(rows)
        return None if world.prompts and self.unseen[handle] else self._walk(Window(handle))

    def verify(self, windows: Sequence[Window]) -> list[Outcome]:
        noise = self.stage.chance.uniform(0.97, 1.03)
        took = self.stage.world.verify(sum(1 + len(w.tokens) for w in windows)) * noise / 1e6
        self.spent_s += took
        self.owed_s = took + OVERHEAD_US / 1e6
        return [self._walk(w) for w in windows]

    def _walk(self, window: Window) -> Outcome:
        length = self.lengths[window.handle]
        sampled = [self.stage.fate.truth[length + depth] for depth in (0, *depths_of(window.parents))]
        path, final = walk(window.tokens, window.parents, sampled)
        tokens = [*(window.tokens[i] for i in path), final]
        self.lengths[window.handle] += len(tokens)
        return Outcome(path, tokens, [], sampled)

    def close(self, handle: int) -> None: ...


class TimedDraft:
    scratch_slots = 256
    info = INFO

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.chance = random.Random(stage.chance.random())  # its own: the target's luck depends on the target alone
        self.process = Process()
        self.lengths: dict[int, int] = {}
        self.seen: dict[int, int] = {}  # tokens computed
        self.free: dict[int, list[int]] = {}
        self.worked: list[tuple[float, float]] = []  # start of every forward, and its length, in seconds
        self.right: dict[tuple[int, int], tuple[int, bool]] = {}  # slot -> (position of its token, all of it right)
        self.spent_s = 0.0
        self.longest_s = 0.0  # of all computations that nothing could interrupt
        self.prefilled = 0  # tokens, all requests together
        self.opened = 0

    def open(self, prefix: Sequence[int], prompt_len: int, sampling: Sampling) -> int:
        handle = len(self.lengths)
        self.lengths[handle] = len(prefix)
        self.seen[handle] = 0
        self.opened += 1
        self.free[handle] = list(range(self.scratch_slots))
        return handle

    def expand(self, leaves: Sequence[Leaf]) -> list[Expansion]:
        took = self.stage.world.step(len(leaves)) * self.chance.uniform(0.95, 1.1)
        took += sum(self._see(leaf.handle, self.missing(leaf.handle)) for leaf in leaves if leaf.is_root)
        self._spend(took)
        return [self._expand(leaf, leaf.path) for leaf in leaves]

    def reopen(self, handle: int, prefix: Sequence[int], prompt_len: int, sampling: Sampling) -> None:
        self.seen[handle] = min(self.seen[handle], len(prefix))  # all texts of a stage are one text
        self.lengths[handle] = len(prefix)
        self.free[handle] = list(range(self.scratch_slots))

    def missing(self, handle: int) -> int:
        return max(0, self.lengths[handle] - 1 - self.seen[handle])

    def prefill(self, handle: int, limit: int) -> None:
        self._spend(self._see(handle, limit))

    def _see(self, handle: int, limit: int) -> float:
        """Compute at most ``limit`` tokens that were not seen, and say how many microseconds that takes."""
        new = min(limit, self.missing(handle))
        self.seen[handle] += new
        self.prefilled += new
        return new * self.stage.world.prefill_us

    def _spend(self, took_us: float) -> None:
        self.spent_s += took_us / 1e6
        self.longest_s = max(self.longest_s, took_us / 1e6)
        self.worked.append((self.process.clock(), took_us / 1e6))
        self.process.compute(took_us / 1e6)

    def _expand(self, leaf: Leaf, path: Sequence[int]) -> Expansion:
        fate, length = self.stage.fate, self.lengths[leaf.handle]
        if leaf.is_root:
            self.seen[leaf.handle] = length
            return Expansion(-1, *fate.candidates(length, True, self.stage.world))
        position, right = length, True
        if path:
            above, right = self.right[leaf.handle, path[-1]]
            position = above + 1
        right = right and fate.truth[position] == leaf.token
        slot = self.free[leaf.handle].pop()
        self.right[leaf.handle, slot] = (position, right)
        return Expansion(slot, *fate.candidates(position + 1, right, self.stage.world))

    def commit(self, handle: int, tokens: Sequence[int], slots: Sequence[int]) -> None:
        for position, slot in enumerate(slots, self.lengths[handle]):
            self.seen[handle] += slot >= 0 and self.seen[handle] == position
        self.lengths[handle] += len(tokens)
        self.free[handle] += [slot for slot in slots if slot >= 0]

    def release(self, handle: int, slots: Sequence[int]) -> None:
        self.free[handle] += slots

    def close(self, handle: int) -> None: ...


class TimedCompute(Compute):
    """A forward on a thread of its own: it happens at its beginning, and is known of at its end."""

    overlaps = True

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


class TimedInlineCompute(TimedCompute):
    """A forward in the event loop's own turn: nothing that arrives is read before it ends, and whoever waits for the
    forward has the next turn."""

    overlaps = False

    def __init__(self, target: TimedTarget, inbox: HeldInbox) -> None:
        super().__init__(target)
        self.inbox = inbox

    def start(self, job: Callable[[], object]) -> asyncio.Future:
        future = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(self._begin, job, future)
        return future

    def _begin(self, job: Callable[[], object], future: asyncio.Future) -> None:
        if future.cancelled():
            return
        self.inbox.held = True
        super().start(job).add_done_callback(lambda done: self._end(done, future))

    def _end(self, done: asyncio.Future, future: asyncio.Future) -> None:
        if not future.cancelled() and not done.cancelled():
            future.set_result(done.result())
        self.inbox.release()


class SlowNetwork(MemoryNetwork):
    """Messages to and from the drafter take ``world.message_us``; an order is kept while that does not change."""

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self.stage, self.chance = stage, random.Random(0)

    def deliver(self, turn, link, action) -> None:
        if not link.host.startswith("drafter"):
            action()
            return
        if self.stage.world.lost and self.chance.random() < self.stage.world.lost:
            return
        arrives = now_here() + self.stage.world.message_us / 1e6
        asyncio.get_running_loop().call_at(arrives, lambda: None if link.dead else action())
