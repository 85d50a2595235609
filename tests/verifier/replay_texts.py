"""`auto` beside vanilla in virtual time, on texts that a real target wrote: what does a change of policy gain?

By hand: ``python -m tests.verifier.replay_texts TARGET --prompts FILE.jsonl --texts FILE``. In the first run the target
writes its texts into FILE; each further one takes seconds, and is the same on any machine. Drafts come from retrieval.
Forwards take what the target's took when it wrote, and Python what stamps in a server said (``HOST_US``).
"""

from __future__ import annotations

import argparse
import asyncio
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from actors.cost import CostModel
from actors.engines.build import EngineOptions, build_target
from actors.models import ModelInfo, Window
from actors.settings import VerifierSettings
from actors.verifier.compute import TURN_S, InlineCompute
from actors.verifier.context import Equipment
from actors.verifier.loop import Verifier
from actors.verifier.sources.lookup import Library
from actors.verifier.sources.memory import Memory
from actors.verifier.start import _calibrated
from protocols.messages import ChatTurn, Sampling
from tests.world.caller import ADDRESS, Caller, tokens_of
from tests.world.models import Costs, ToyCodec, ToyTarget, Watch
from tests.world.network import MemoryNetwork

# Microseconds of a drafted round of SmolLM2 Q4_1 in a server, two threads of an EPYC with AVX-512, medians of 496
HOST_US = {"plan": 220.0, "commit": 190.0, "grow": 25.0, "finds": 50.0, "forward": 30.0}
TOKENS = 160  # of an answer at most


class Written(msgspec.Struct):
    """A text, its ids numbered from 2 on in the order in which they first occur."""

    kind: str
    prompt: list[int]
    answer: list[int]


class Texts(msgspec.Struct):
    forward_us: dict[int, float]  # by rows
    written: list[Written]
    tokens: int  # ids that there are


def write(target: str, prompts: Path, temperature: float, threads: int) -> Texts:
    """Have the target answer each prompt of at most 4,000 characters."""
    model, codec = build_target(target, EngineOptions(threads=threads))
    cost, sampling = _calibrated(model)[0], Sampling(temperature=temperature, seed=7, max_tokens=TOKENS)
    curve = {rows: cost.own(rows) for rows in cost.own.rows}
    numbers, texts, ends = dict[int, int](), list[Written](), model.info.eos_token_ids
    known = lambda ids: [numbers.setdefault(one, 2 + len(numbers)) for one in ids]  # noqa: E731
    for line in prompts.read_text().splitlines():
        asked = msgspec.json.decode(line)
        text = asked["turns"][0]
        if len(text) > 4000:
            continue
        prompt = codec.chat((ChatTurn("user", text),))
        handle, answer = model.open(prompt, sampling), list[int]()
        while (first := model.prefill(handle)) is None:
            pass
        answer += first.tokens
        while len(answer) < TOKENS and answer[-1] not in ends:
            model.reserve(handle)
            answer += model.verify([Window(handle)])[0].tokens
        model.close(handle)
        texts.append(Written(asked.get("category", ""), known(prompt), known(answer)))
    return Texts(curve, texts, 2 + len(numbers))


class Recorded:
    """The language of one text at a time. See :class:`tests.world.models.Language`."""

    def __init__(self) -> None:
        self.text: Sequence[int] = ()

    def next(self, context: Sequence[int], sampling: Sampling) -> int:
        return self.text[len(context)] if len(context) < len(self.text) else 0


class Time:
    """A clock that goes on by what is told to take time."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def compute(self, seconds: float) -> None:
        self.now_s += seconds

    def slow(self, owner: Any, name: str) -> None:
        """From now on ``owner.name`` takes time."""
        call: Callable[..., Any] = getattr(owner, name)

        def slowed(*arguments: Any) -> Any:
            self.compute(HOST_US[name] / 1e6)
            return call(*arguments)

        setattr(owner, name, slowed)


async def replay(texts: Texts, temperature: float, method: str, slower: float) -> list[float]:
    """Microseconds that each answer's decoding takes. No text finds another one."""
    time, network, language = Time(), MemoryNetwork(), Recorded()
    curve = {rows: slower * us for rows, us in texts.forward_us.items()}
    info = ModelInfo("recorded", texts.tokens, 1 << 15, frozenset({0}), "recorded")
    costs = Costs(curve=tuple(curve.items()), code=HOST_US["forward"], jitter=0.0)
    watch, library = Watch(time), Library(memory=Memory(100_000))
    target = ToyTarget(language, 1 << 16, info=info, costs=costs, watch=watch)
    equipment = Equipment(
        target, ToyCodec(), CostModel(curve), InlineCompute(TURN_S), library=library, clock=time, timer=watch
    )
    asyncio.get_running_loop().time = time  # type: ignore[method-assign]
    verifier = Verifier(VerifierSettings(bind=ADDRESS), equipment, network.listen(ADDRESS))
    time.slow(verifier.scheduler, "plan")
    time.slow(verifier.committer, "commit")
    for source in library.sources:
        time.slow(source, "grow")
        time.slow(source, "finds")
    running, caller, took_us = asyncio.create_task(verifier.run(asyncio.Event())), Caller(network), list[float]()
    await caller.hello()
    for number, text in enumerate(texts.written):
        language.text = [*text.prompt, *text.answer]
        sampling = Sampling(temperature=temperature, seed=7, max_tokens=len(text.answer), ignore_eos=True)
        chunks = await caller.generate(text.prompt, sampling, method, cache_salt=str(number))
        assert tokens_of(chunks) == text.answer
        took_us.append(1000 * chunks[-1].stats.decode_ms)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return took_us


def table(texts: Texts, vanilla: list[float], auto: list[float]) -> str:
    ratios = defaultdict[str, list[float]](list)
    for text, plain_us, drafted_us in zip(texts.written, vanilla, auto, strict=True):
        for kind in (text.kind, "**all**"):
            ratios[kind].append(plain_us / drafted_us)
    lines = ["| texts | number | `auto` over vanilla | lowest tenth below |", "|---|---|---|---|"]
    for kind, each in sorted(ratios.items()):
        mean = math.exp(statistics.mean(map(math.log, each)))
        lines.append(f"| {kind} | {len(each)} | {mean:.3f} | {sorted(each)[len(each) // 10]:.2f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("target", help="a GGUF file or a directory, with a chat template")
    parser.add_argument("--prompts", type=Path, required=True, help="a JSONL file of Spec-Bench")
    parser.add_argument("--texts", type=Path, required=True, help="file of its texts; written where it is not there")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--slower", type=float, default=1.0, help="times that its forwards took")
    options = parser.parse_args()
    if not options.texts.exists():
        texts = write(options.target, options.prompts, options.temperature, options.threads)
        options.texts.write_bytes(msgspec.json.encode(texts))
    texts = msgspec.json.decode(options.texts.read_bytes(), type=Texts)
    texts.written = [text for text in texts.written if len(text.answer) >= 12]
    took = [asyncio.run(replay(texts, options.temperature, method, options.slower)) for method in ("vanilla", "auto")]
    print(table(texts, *took))


if __name__ == "__main__":
    main()
