"""How long streams pause while another's long prompt is computed: by hand, ``python -m tests.system.long_prompt``.

Streams answer without a break. Time and again a prompt of thousands of tokens, which no cache has, is asked for one
token. Prints the times between two chunks of a stream, alone and beside the prompt, in rounds: medians of those alone.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import signal
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field

from duoactor import AsyncClient
from duoactor.bench.suites import by_turns, load_suite
from tests.system.chaos import started


@dataclass
class Gaps:
    """Seconds between two chunks of a stream: while only streams run, and while a prompt is computed beside them."""

    beside: bool = False
    found: dict[bool, list[float]] = field(default_factory=lambda: {False: [], True: []})

    async def follow(self, client: AsyncClient, method: str, texts: list[str], number: int) -> None:
        for turn in range(1000):
            last = None
            text = texts[(number + 5 * turn) % len(texts)]
            async for _ in client.stream(text, method=method, max_tokens=1000, ignore_eos=True):
                now = time.monotonic()
                if last is not None:
                    self.found[self.beside].append(now - last)
                last = now


def told(gaps: list[float], round_s: float) -> str:
    cuts = statistics.quantiles(gaps, n=100, method="inclusive")
    return f"{cuts[49] / round_s:.1f}, {cuts[89] / round_s:.1f}, {cuts[98] / round_s:.1f}, {max(gaps) / round_s:.1f}"


async def measure(client: AsyncClient, options: argparse.Namespace) -> None:
    texts = [one.turns[0] for one in by_turns(load_suite())[:14]]
    dice, high = random.Random(0), client.welcome.vocab_size
    print(
        f"{options.streams} streams, a prompt of {options.prompt} tokens; pauses in rounds: median, 90%, 99%, longest"
    )
    for method in options.methods.split(","):
        gaps = Gaps()
        running = [asyncio.create_task(gaps.follow(client, method, texts, n)) for n in range(options.streams)]
        await asyncio.sleep(options.seconds)
        took = []
        for _ in range(options.times):
            prompt = [dice.randrange(100, high - 100) for _ in range(options.prompt)]
            gaps.beside, began = True, time.monotonic()
            await client.generate(prompt, method="vanilla", max_tokens=1)
            took.append(time.monotonic() - began)
            gaps.beside = False
            await asyncio.sleep(options.seconds / 2)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        round_s = statistics.median(gaps.found[False])
        print(
            f"{method}: a round {1000 * round_s:.1f} ms; alone {told(gaps.found[False], round_s)}; beside "
            f"{told(gaps.found[True], round_s)}; the prompt takes {statistics.median(took):.1f} s",
            flush=True,
        )


async def served(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="prompt-", dir="/tmp") as directory:
        address = f"ipc://{directory}/v.ipc"
        line = [
            sys.executable,
            "-m",
            "duoactor",
            "up",
            "--quiet",
            "--http=none",
            "--bind",
            address,
            "--target",
            options.target,
        ]
        line += [f"--draft={options.draft}"] if options.draft else []
        process = started(line)
        try:
            async with AsyncClient(address, timeout=600) as client:
                await measure(client, options)
            process.send_signal(signal.SIGINT)
            await asyncio.to_thread(process.wait, 30)
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", default="bundled")
    parser.add_argument("--draft", default="")
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--prompt", type=int, default=4000, help="tokens")
    parser.add_argument("--times", type=int, default=3, help="prompts")
    parser.add_argument("--seconds", type=float, default=10.0, help="that streams run alone first")
    parser.add_argument("--methods", default="vanilla,auto")
    asyncio.run(served(parser.parse_args()))


if __name__ == "__main__":
    main()
