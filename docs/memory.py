"""What a server's processes hold while it answers mixed requests.

    duoactor up smollm2 & python docs/memory.py http://127.0.0.1:8000/v1 $! --minutes 5

Any server of OpenAI's API will do; the processes that the named one started count, too. Prompts have 1 to 200 words and
answers up to 48 tokens, the same for every server. Prints the resident MB of each process by the minute, two minutes
longer than it asks. Figures: docs/experiments/engine-weights.md.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import threading
import time
from pathlib import Path
from urllib.request import Request, urlopen

WORDS = (Path(__file__).parent / "how-it-works.md").read_text().split()


def body(model: str, number: int) -> bytes:
    dice = random.Random(number)
    text = " ".join(dice.choices(WORDS, k=dice.randint(1, 200)))
    most, heat = dice.randint(1, 48), dice.choice([0.0, 0.7, 1.0])
    return json.dumps(
        {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": most, "temperature": heat}
    ).encode()


def resident(pid: int) -> list[float]:
    """Megabytes of a process and of those that it started."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return [pages * 4096 / 1e6, *(size for child in children(pid) for size in resident(child))]


def highest(pid: int) -> list[float]:
    """The most megabytes that each of them has had."""
    status = Path(f"/proc/{pid}/status").read_text()
    peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return [int(peak.split()[1]) * 1024 / 1e6, *(size for child in children(pid) for size in highest(child))]


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("pid", type=int)
    parser.add_argument("--minutes", type=int, default=5)
    parser.add_argument("--streams", type=int, default=4)
    options = parser.parse_args()
    with urlopen(options.url + "/models") as listed:
        model = json.load(listed)["data"][0]["id"]
    begin, numbers, answered = time.monotonic(), itertools.count(), []

    def work() -> None:
        while time.monotonic() < begin + 60 * options.minutes:
            asked = Request(options.url + "/chat/completions", body(model, next(numbers)))
            asked.add_header("Content-Type", "application/json")
            with urlopen(asked) as answer:
                answered.append(json.load(answer)["usage"]["total_tokens"])

    for _ in range(options.streams):
        threading.Thread(target=work, daemon=True).start()
    print("| minute | answers | tokens | processes, MB | all | highest of the largest |\n|---|---|---|---|---|---|")
    for minute in range(options.minutes + 3):
        time.sleep(max(0.0, begin + 60 * minute - time.monotonic()))
        held = sorted(resident(options.pid), reverse=True)
        each, peak = ", ".join(f"{size:.0f}" for size in held), max(highest(options.pid))
        print(f"| {minute} | {len(answered)} | {sum(answered)} | {each} | {sum(held):.0f} | {peak:.0f} |", flush=True)


if __name__ == "__main__":
    main()
