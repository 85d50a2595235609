"""Where a round's time goes, by verb: the bundled pair in one process, with drafts between forwards.

By hand: ``python -m tests.verifier.time_rounds``. Forwards run in the same thread. CPU time counts, so that
the load of the machine matters little, and decisions are by a clock of its own. With ``--calls`` it counts calls, which
are the same in every run.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import itertools
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import actors.verifier.scheduler
import actors.verifier.sources.remote
import duoactor
from actors.cost import CostModel, Curve
from actors.draft_timing import WIDTHS
from actors.engines.build import EngineOptions, build_draft, build_target
from actors.settings import VerifierSettings
from actors.verifier.compute import TURN_S, InlineCompute
from actors.verifier.context import Equipment
from actors.verifier.loop import Verifier
from actors.verifier.rounds import Round
from actors.verifier.sources.inline import InlineDraft
from actors.verifier.sources.lookup import Library
from actors.verifier.sources.memory import Memory
from protocols.messages import Sampling
from tests.world.caller import ADDRESS, Caller
from tests.world.network import MemoryNetwork

PAIR = Path(duoactor.__file__).parent / "pair"
TEXTS = (
    "Lisa has {} apples. She buys 3 bags with 6 apples each and gives 8 apples to her brother. "
    "How many apples does she have now?",
    "Write a Python function that returns the sum of all numbers above {} in a list.",
    "A train travels {} miles per hour for 3 hours and then 45 miles per hour for 2 hours. "
    "How many miles does it travel in all?",
    "Write a Python function that checks whether a word has {} letters.",
)
FORWARD, PROMPT, STEP, CLIENT = "forward", "prompt", "draft step", "client"


class Stopwatch:
    """CPU time by verb; what a verb calls that is a verb itself is not counted twice. Reading the CPU time takes
    longer than some verbs do, so that it is read once a round and shared out by the time that passed."""

    def __init__(self) -> None:
        self.spent_ns = defaultdict[str, float](float)
        self.rounds = self.tokens = 0  # rounds that count
        self._round = defaultdict[str, float](float)
        self._open: list[str] = ["loop"]
        self._watched: list[tuple[Any, str, Any]] = []
        self._began_ns = self._since = time.perf_counter_ns()
        self._cpu_ns = time.thread_time_ns()

    def _turn(self) -> None:
        now = time.perf_counter_ns()
        self._round[self._open[-1]] += now - self._since
        self._since = now

    def learn(self, done: Round) -> None:
        """A round is over."""
        self._turn()
        cpu_ns, spent, self._round = time.thread_time_ns(), self._round, defaultdict(float)
        had = min(1.0, (cpu_ns - self._cpu_ns) / (self._since - self._began_ns))  # the core
        self._began_ns, self._cpu_ns = self._since, cpu_ns
        if done.streams and not done.prompt_rows:
            self.rounds, self.tokens = self.rounds + done.steps, self.tokens + done.tokens
            for verb, spent_ns in spent.items():
                self.spent_ns[verb] += had * spent_ns

    def watch(self, owner: Any, name: str, verb: str) -> None:
        """From now on ``owner.name`` counts as ``verb``."""
        before = getattr(owner, name)
        setattr(owner, name, self.watched(before, verb))
        self._watched.append((owner, name, before))

    def leave(self) -> None:
        """Watch nothing any more."""
        for owner, name, before in reversed(self._watched):
            setattr(owner, name, before)

    def watched(self, call: Callable[..., Any], verb: str) -> Callable[..., Any]:
        @functools.wraps(call)
        def timed(*arguments: Any, **named: Any) -> Any:
            self._turn()
            self._open.append(verb)
            try:
                return call(*arguments, **named)
            finally:
                self._turn()
                self._open.pop()

        return timed


class Calls(Stopwatch):
    """Calls by verb, of functions in Python and in C, in place of time."""

    def _turn(self) -> None:
        pass

    def learn(self, done: Round) -> None:
        sys.setprofile(None)
        if done.streams and not done.prompt_rows:
            self.rounds, self.tokens = self.rounds + done.steps, self.tokens + done.tokens
            for verb, calls in self._round.items():
                self.spent_ns[verb] += 1000 * calls
        self._round.clear()
        sys.setprofile(self._called)

    def _called(self, frame: FrameType, event: str, argument: Any) -> None:
        if event in ("call", "c_call") and frame.f_code.co_filename not in (__file__, functools.__file__):
            self._round[self._open[-1]] += 1

    def leave(self) -> None:
        sys.setprofile(None)
        super().leave()


class Ticks:
    """The clock by which the verifier decides: forwards and draft steps take what they took on two cores at rest, and
    a round 0.2 ms more. So every run has the same rounds, whatever the machine has to do."""

    FORWARD, DRAFT = Curve({1: 1150, 8: 1900, 16: 2800, 64: 8000}), Curve({1: 180, 8: 260})
    BESIDE_US = 200

    def __init__(self) -> None:
        self.now_us = 0.0

    def __call__(self) -> float:
        return self.now_us / 1e6

    def slow(self, owner: Any, name: str, takes_us: Callable[[Any], float]) -> None:
        """From now on ``owner.name`` takes time."""
        call = getattr(owner, name)

        def slowed(work: Any) -> Any:
            self.now_us += takes_us(work)
            return call(work)

        setattr(owner, name, slowed)


def equipped() -> Equipment:
    target, codec = build_target(str(PAIR / "target"), EngineOptions(threads=1))
    draft = build_draft(str(PAIR / "draft"), EngineOptions(), target=target)
    ticks, info = Ticks(), target.info
    rows = lambda windows: sum(1 + len(window.tokens) for window in windows)  # noqa: E731
    ticks.slow(target, "verify", lambda windows: ticks.BESIDE_US + ticks.FORWARD(rows(windows)))
    ticks.slow(draft, "expand", lambda leaves: ticks.DRAFT(len(leaves)))
    steps = {leaves: ticks.DRAFT(leaves) for leaves in WIDTHS}
    inline = InlineDraft(draft, steps, info.vocab_size, info.eos_token_ids, ticks)
    cost, library = (
        CostModel({rows: ticks.FORWARD(rows) for rows in (1, 8, 16, 64)}),
        Library(memory=Memory(100_000)),
    )
    return Equipment(
        target, codec, cost, InlineCompute(TURN_S), library=library, inline=inline, clock=ticks, timer=ticks
    )


def watch(verifier: Verifier, watch: Stopwatch) -> None:
    scheduler, committer, equipment = verifier.scheduler, verifier.committer, verifier.context.equipment
    watch.watch(verifier.inbox, "read", "read")
    watch.watch(verifier.scheduler.room, "free", "room")
    watch.watch(verifier.scheduler.room, "let_in", "room")
    watch.watch(verifier.scheduler.room, "hold", "room")
    watch.watch(scheduler, "plan", "plan: the rest")
    for module in (actors.verifier.scheduler, actors.verifier.sources.remote):
        watch.watch(module, "choose", "plan: windows")
    watch.watch(scheduler, "_uses", "plan: which sources")
    watch.watch(committer, "commit", "commit: the rest")
    watch.watch(verifier, "_learn", "learn: price and trials")
    watch.watch(verifier.outbox, "flush", "tell")
    watch.watch(equipment.library, "read", "memory")
    watch.watch(verifier.listener, "publish", "publish")
    watch.watch(verifier.listener, "send", "send")
    for source in verifier.sources:
        watch.watch(source, "grow", f"plan: {source.name}")
        watch.watch(source, "learn", f"learn: {source.name}")
    model = equipment.model
    watch.watch(model, "verify", FORWARD)
    watch.watch(model, "prefill", PROMPT)
    watch.watch(model, "verify_beside", PROMPT)
    assert equipment.inline is not None
    for name in ("expand", "commit", "release"):
        watch.watch(equipment.inline.model, name, STEP)
    watch.watch(equipment.inline.model, "prefill", PROMPT)


async def answer(
    equipment: Equipment, streams: int, sampling: Sampling, method: str, answers: int, times: Stopwatch
) -> Stopwatch:
    """Each stream asks so many times; the first answers, which warm caches and compiled code up, do not count."""
    network, loop = MemoryNetwork(), asyncio.get_running_loop()
    assert equipment.clock is not None
    loop.time = equipment.clock  # type: ignore[method-assign]
    verifier = Verifier(VerifierSettings(bind=ADDRESS), equipment, network.listen(ADDRESS))
    running = asyncio.create_task(verifier.run(asyncio.Event()))
    callers = [Caller(network) for _ in range(streams)]
    for caller in callers:
        await caller.hello()
    texts = (text.format(number) for number in itertools.count(10) for text in TEXTS)

    async def ask() -> None:
        prompts = [equipment.codec.encode(next(texts)) for _ in callers]
        each = zip(callers, prompts, strict=True)
        await asyncio.gather(*(caller.generate(prompt, sampling, method) for caller, prompt in each))

    await ask()
    watch(verifier, times)
    learn = verifier._learn

    def learn_timed(done: Round) -> None:
        learn(done)
        times.learn(done)

    verifier._learn = learn_timed  # type: ignore[method-assign]
    for caller in callers:
        times.watch(caller.decoder, "decode", CLIENT)
    for _ in range(answers):
        await ask()
    times.leave()
    for caller in callers:
        caller.link.close()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return times


def table(found: dict[str, Stopwatch], unit: str) -> str:
    """Microseconds, or calls, of a round by verb."""
    beside = {FORWARD, STEP, PROMPT, CLIENT}
    verbs = {verb for times in found.values() for verb in times.spent_ns} - {PROMPT, CLIENT}

    def us(*verbs: str) -> list[float]:
        return [sum(times.spent_ns[verb] for verb in verbs) / times.rounds / 1000 for times in found.values()]

    rows = [[f"{unit} a round", *found]]
    rows.append(["tokens a round", *(f"{times.tokens / times.rounds:.2f}" for times in found.values())])
    named = [
        ("**host**", us(*(verbs - beside))),
        *((verb, us(verb)) for verb in sorted(verbs, key=lambda v: -sum(us(v)))),
    ]
    rows.extend([name, *(f"{each:.0f}" for each in figures)] for name, figures in named)
    lines = [f"| {' | '.join(cells)} |" for cells in rows]
    lines.insert(1, "|---" * len(rows[0]) + "|")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--streams", type=int, nargs="*", default=[1, 4, 16])
    parser.add_argument("--temperatures", type=float, nargs="*", default=[0.0, 1.0])
    parser.add_argument("--method", default="auto")
    parser.add_argument("--calls", action="store_true", help="count calls instead of time")
    parser.add_argument("--tokens", type=int, default=192)
    parser.add_argument("--answers", type=int, default=4, help="that each stream asks for")
    options = parser.parse_args()
    equipment, kind = equipped(), Calls if options.calls else Stopwatch
    found = {}
    for temperature in options.temperatures:
        for streams in options.streams:
            sampling = Sampling(temperature=temperature, seed=1, max_tokens=options.tokens, ignore_eos=True)

            found[f"{streams}, T={temperature:g}"] = asyncio.run(
                answer(equipment, streams, sampling, options.method, options.answers, kind())
            )
    print(table(found, "calls" if options.calls else "µs"))


if __name__ == "__main__":
    main()
