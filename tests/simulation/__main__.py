"""``python -m tests.simulation --seeds 0:20000`` carries out every seed's plan and says what was wrong in which.

``--seed 17`` shows one: the plan, what is wrong, and the smallest plan that still fails, which ``--plan FILE`` (``-``:
standard input) carries out again. ``--verifiers 2`` adds a second one to each plan, ``--learner`` a learner; ``--log``
prints every message.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from tests.simulation.plans import Plan, plan_of, with_learner, with_second
from tests.simulation.shrinking import read, shrink, written
from tests.simulation.world import Result, simulate

REPORT_EVERY = 100


def result_of(plan: Plan, log: Callable[[str], None] | None = None) -> Result:
    """An exception is a problem too, such as that every task waits and no timer is set."""
    try:
        return simulate(plan, log)
    except Exception as error:
        return Result((f"the simulation raised {error!r}",), "", 0, 0, 0.0)


def planned(seed: int, verifiers: int, learner: bool) -> Plan:
    plan = with_second(plan_of(seed)) if verifiers > 1 else plan_of(seed)
    return with_learner(plan) if learner else plan


def one(seed: int, plan: Callable[[int], Plan]) -> tuple[int, Result]:
    return seed, result_of(plan(seed))


def many(seeds: range, plan: Callable[[int], Plan], jobs: int) -> int:
    began, bad, done = time.monotonic(), [], 0
    messages = tokens = 0
    seconds = 0.0
    with ProcessPoolExecutor(jobs) as pool:
        for seed, result in pool.map(partial(one, plan=plan), seeds, chunksize=10):
            done += 1
            messages, tokens, seconds = messages + result.messages, tokens + result.tokens, seconds + result.seconds
            if result.problems:
                bad.append(seed)
                print(f"seed {seed}: {'; '.join(result.problems)}", flush=True)
            if done % REPORT_EVERY == 0:
                print(
                    f"{done:,} of {len(seeds):,} seeds, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True
                )
    summary = {"seeds": done, "failed": bad, "messages": messages, "tokens": tokens, "virtual_hours": seconds / 3600}
    print(json.dumps({**summary, "took_s": round(time.monotonic() - began)}))
    return 1 if bad else 0


def show(plan: Plan, log: Callable[[str], None] | None, smaller: bool) -> int:
    result = result_of(plan, log)
    print(written(plan), *result.problems, f"trace {result.digest[:16]}", sep="\n", flush=True)
    if result.problems and smaller:
        kinds = _kinds(result)
        smallest = shrink(plan, lambda some: bool(kinds & _kinds(result_of(some))))
        print("the smallest plan that fails:", written(smallest), *result_of(smallest).problems, sep="\n")
    return 1 if result.problems else 0


def _kinds(result: Result) -> set[str]:
    """What went wrong, whatever the stream and the numbers."""
    return {re.sub(r"^stream .*?: |\d+", "", problem) for problem in result.problems}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--seeds", help="FIRST:LAST, the last excluded")
    what.add_argument("--seed", type=int)
    what.add_argument("--plan", help="file with a plan; - for standard input")
    parser.add_argument("--verifiers", type=int, choices=(1, 2), default=1, help="of a seed's plan")
    parser.add_argument("--learner", action="store_true", help="in a seed's plan")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--log", action="store_true", help="print every message")
    options = parser.parse_args()
    plan = partial(planned, verifiers=options.verifiers, learner=options.learner)
    if options.seeds:
        return many(range(*map(int, options.seeds.split(":"))), plan, options.jobs)
    log = print if options.log else None
    if options.plan:
        text = sys.stdin.read() if options.plan == "-" else Path(options.plan).read_text()
        return show(read(text), log, smaller=False)
    return show(plan(options.seed), log, smaller=True)


if __name__ == "__main__":
    sys.exit(main())
