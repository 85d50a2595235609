"""Collects the target's answers for a limited time: first to the prompts kept apart, then to those to learn from."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from actors.engines.targets.target import Target
from actors.training.answers import GREEDY, LONGEST, TEMPERATURES, Job, TrainingPrompt, jobs, write_answers
from actors.training.plan import Progress, Report
from actors.training.shards import Shards

MOST_ANSWERS = 100_000


def collect_answers(
    target: Target,
    prompts: Sequence[TrainingPrompt],
    numbers: tuple[Sequence[int], Sequence[int]],
    kept: tuple[Shards, Shards],
    seconds: float,
    report: Report,
    timer: Callable[[], float],
) -> None:
    """Write what is missing of the answers to the prompts kept apart, each greedy and at every temperature, for a third
    of ``seconds`` at most, and then answers to learn from. ``numbers``, ``kept``: of these and of those."""
    (apart, learned), (held, answers) = numbers, kept
    longest = min(LONGEST, target.info.max_context // 2)

    def write(phase: str, shards: Shards, wanted: Iterator[Job], until: float) -> None:
        begin = timer() - shards.seconds
        done = shards.done

        def spent() -> float:
            return timer() - begin

        def go_on() -> bool:
            left = max(0.0, until - spent())
            text = f"{len(shards.answers)} answers, {shards.tokens} tokens"
            report(Progress(phase, text, 1 - left / until, left))
            return left > 0

        if shards.answers and spent() >= until:
            return
        missing = (job for job in wanted if job not in done)
        write_answers(target, prompts, missing, lambda answer: shards.add(answer, spent()), go_on, longest)
        shards.flush()

    # where time is short, some of every task and temperature
    mixed, learned = (random.Random(0).sample(numbers, len(numbers)) for numbers in (apart, learned))
    tests = (Job(i, t, 1) for i in mixed for t in (GREEDY, *TEMPERATURES))
    write("answers to prompts kept apart", held, tests, seconds / 3)
    wanted = (Job(learned[job.prompt], job.temperature, job.seed) for job in jobs(len(learned)))
    write("answers", answers, islice(wanted, MOST_ANSWERS), seconds - min(held.seconds, seconds / 3))
