"""`auto` beside vanilla, answer by answer, in one process: where do rounds of a real target gain or lose?

By hand: ``python -m tests.verifier.compare_methods TARGET [--temperature T] [--streams N]``. Times are CPU time of the
thread that computes and decides, so that other work on the machine matters little. With ``--gpu-ms`` the texts are the
target's own too, but each forward counts for what it would take on a GPU, where rows cost next to nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import uvloop

from actors.cost import CostModel
from actors.draft_timing import measure_draft
from actors.engines.build import EngineOptions, build_draft, build_target
from actors.engines.targets.target import Target
from actors.settings import VerifierSettings
from actors.verifier.compute import TURN_S, InlineCompute
from actors.verifier.context import Equipment
from actors.verifier.loop import Verifier
from actors.verifier.rounds import Round
from actors.verifier.sources.inline import InlineDraft
from actors.verifier.sources.lookup import Library
from actors.verifier.sources.memory import Memory
from actors.verifier.start import _calibrated
from protocols.messages import ChatTurn, Chunk, Generate, Sampling
from tests.world.caller import ADDRESS, Caller, tokens_of
from tests.world.network import MemoryNetwork

METHODS = ("vanilla", "auto")
PROMPTS = (
    "What should I think about before I adopt a dog?",
    "Explain to a child why the sky is blue.",
    "I cannot sleep. What could help me tonight?",
    "Write a short letter to my neighbour about his loud music.",
    "Which three places in Italy should I see in spring, and why?",
    "How does a bicycle stay upright?",
    "Tell me a story about a lighthouse keeper who finds a bottle.",
    "What is the difference between a virus and a bacterium?",
    "Give me advice for my first job interview.",
    "Why did the Roman Empire fall?",
    "Describe how bread is made, from grain to loaf.",
    "I have rice, eggs and spinach. What can I cook?",
)


T = TypeVar("T")
# A forward's time on a GPU, by its rows
GPU = {1: 1.0, 2: 1.005, 4: 1.015, 8: 1.03, 16: 1.07, 32: 1.13, 64: 1.3, 128: 1.7, 256: 3.3}


class Pretended:
    """A clock on which forwards take what they would take on a GPU, and everything else its CPU time."""

    def __init__(self, model: Target, forward_ms: float) -> None:
        self.cost = CostModel({rows: 1000 * forward_ms * times for rows, times in GPU.items()})
        self._ahead_s, most = 0.0, max(GPU)
        verify, beside, prefill = model.verify, model.verify_beside, model.prefill
        rows_of = lambda windows: sum(1 + len(window.tokens) for window in windows)  # noqa: E731
        for name, call, rows in (
            ("verify", verify, rows_of),
            ("verify_beside", beside, lambda windows, _, limit: rows_of(windows) + limit),
            ("prefill", prefill, lambda _, limit=None: min(limit or most, most)),
        ):
            setattr(model, name, partial(self._timed, call, rows))

    def __call__(self) -> float:
        return time.thread_time() + self._ahead_s

    def _timed(self, call: Callable[..., T], rows: Callable[..., int], *given: Any) -> T:
        begun = time.thread_time()
        outcome = call(*given)
        self._ahead_s += self.cost.own(rows(*given)) / 1e6 - (time.thread_time() - begun)
        return outcome


async def compare(options: argparse.Namespace) -> None:
    model, codec = build_target(options.target, EngineOptions(threads=options.threads))
    pretended, network = Pretended(model, options.gpu_ms) if options.gpu_ms else None, MemoryNetwork()
    cost, clock = (pretended.cost, pretended) if pretended else (_calibrated(model)[0], time.thread_time)
    recycles = bool(options.gpu_ms) if options.recycling is None else options.recycling
    library = Library(memory=Memory(100_000), recycles=recycles)
    inline = None
    if options.draft:
        draft, info = build_draft(options.draft, EngineOptions(), target=model), model.info
        inline = InlineDraft(draft, measure_draft(draft), info.vocab_size, info.eos_token_ids, clock)
    equipment = Equipment(
        model, codec, cost, InlineCompute(TURN_S), library=library, inline=inline, clock=clock, timer=clock
    )
    verifier = Verifier(VerifierSettings(bind=ADDRESS), equipment, network.listen(ADDRESS))
    tasks = [asyncio.create_task(verifier.run(asyncio.Event()))]
    callers, numbers = [Caller(network) for _ in range(options.streams)], itertools.count()
    for caller in callers:
        await caller.hello()
        tasks.append(asyncio.create_task(caller.beat()))
    rounds, learn = list[Round](), verifier._learn
    verifier._learn = lambda done: (learn(done), rounds.append(done))  # type: ignore[method-assign, assignment]

    async def ask(caller: Caller, text: str, method: str) -> list[Chunk]:
        rid = str(next(numbers))
        sampling = Sampling(temperature=options.temperature, seed=7, max_tokens=options.tokens, ignore_eos=True)
        turns = (ChatTurn("user", text),)  # a salt, so that no method finds another's texts
        caller.send(Generate(rid, messages=turns, sampling=sampling, method=method, cache_salt=method))
        return (await caller.collect(rid))[rid]

    ratios, equal, found = list[float](), 0, {method: list[Round]() for method in METHODS}
    prompts = asked_of(options.prompts) if options.prompts else PROMPTS
    groups = [prompts[at : at + options.streams] for at in range(0, len(prompts), options.streams)]
    for number, texts in enumerate(groups):
        speeds, answers = dict[str, float](), dict[str, list[list[int]]]()
        for method in METHODS if number % 2 else METHODS[::-1]:
            rounds.clear()
            told = await asyncio.gather(*(ask(*pair, method) for pair in zip(callers, texts, strict=False)))
            answers[method] = [tokens_of(chunks) for chunks in told]
            speeds[method] = 1 / max(chunks[-1].stats.decode_ms for chunks in told)
            found[method] += [done for done in rounds if done.streams and not done.prompt_rows] if number else []
        if number:  # the first warms up
            ratios.append(speeds["auto"] / speeds["vanilla"])
            equal += answers["auto"] == answers["vanilla"]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    middle = statistics.median(ratios)
    print(
        f"auto over vanilla {middle:.3f} ({min(ratios):.2f} to {max(ratios):.2f}), {equal} of {len(ratios)} texts equal"
    )
    for method in METHODS:
        show(method, found[method], cost)


def asked_of(path: str) -> tuple[str, ...]:
    """First questions of a file in Spec-Bench's form without the longest, every fourth: all kinds are among them."""
    with open(path) as lines:
        texts = [json.loads(line)["turns"][0] for line in lines]
    return tuple(text for text in texts if len(text) < 1200)[::4]


def waited(rounds: list[Round]) -> float:
    """Microseconds of a stream for each of its tokens: in a group that ends together, others' drafts bring nothing."""
    return sum(done.own_us * done.streams for done in rounds) / sum(done.tokens for done in rounds)


def show(method: str, rounds: list[Round], cost: CostModel) -> None:
    """Microseconds for each token, and forwards by their rows beside what the calibration says."""
    tokens, forward_us = sum(done.tokens for done in rounds), sum(done.forward_us for done in rounds)
    beside_us, drafts = sum(done.own_us for done in rounds) - forward_us, sum(done.drafts for done in rounds)
    accepted = tokens - sum(done.streams * done.steps for done in rounds)
    print(f"{method}: {len(rounds)} rounds, {sum(done.steps for done in rounds)} forwards, {tokens} tokens")
    print(f"  rows of drafts {drafts}, accepted {accepted}; us a token: {forward_us / tokens:.0f} forward", end="")
    print(f", {beside_us / tokens:.0f} beside it; a stream waits {waited(rounds):.0f}")
    kinds = defaultdict[tuple[bool, bool], list[Round]](list)
    for done in rounds:
        kinds[done.asked, done.drafts > 0].append(done)
    for (asked, drafted), some in sorted(kinds.items()):
        windows = sum(done.streams * done.steps for done in some)
        beside_us = sum(done.own_us - done.forward_us for done in some) / windows
        print(
            f"  {'with' if drafted else 'no'} drafts, {'asked' if asked else 'nobody asked'}: {len(some)} rounds",
            end="",
        )
        print(f", {sum(done.tokens for done in some) / windows:.2f} tokens a window, {beside_us:.0f} us beside it")
    times, fewest = defaultdict[int, list[float]](list), min(done.rows for done in rounds)
    for done in rounds:
        times[done.rows].append(done.forward_us / done.steps)
    for rows, each in sorted(times.items()):
        told = cost.own(rows) / cost.own(fewest)
        print(
            f"  {rows} rows, {len(each)} rounds: {statistics.median(each) / statistics.median(times[fewest]):.2f}",
            end="",
        )
        print(f", calibrated {told:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("target", help="a GGUF file or a directory")
    parser.add_argument("--draft", default="", help="a draft model that drafts between forwards")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=80)
    parser.add_argument("--prompts", default="", help="a JSONL file of Spec-Bench")
    parser.add_argument("--gpu-ms", type=float, default=0.0, help="a forward's time on a GPU that is pretended")
    parser.add_argument("--recycling", action=argparse.BooleanOptionalAction, help="default: as on that device")
    parser.add_argument("--threads", type=int, default=2)
    uvloop.run(compare(parser.parse_args()))


if __name__ == "__main__":
    main()
