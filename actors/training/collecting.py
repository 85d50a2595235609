"""Collects the target's answers for a limited time: first to the prompts kept apart, then to those to learn from."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from actors.engines.targets.states import States
from actors.engines.targets.target import Target
from actors.training.answers import GREEDY, TEMPERATURES, Job, TargetAnswer, TrainingPrompt, jobs, write_answers
from actors.training.plan import Progress, Report
from actors.training.questions import Questions
from actors.training.shards import Shards

MOST_ANSWERS = 100_000
TESTING = 1 / 8  # share of the time for answers to prompts kept apart, at most
TESTED = 64  # tokens of such an answer


@dataclass(frozen=True, slots=True)
class PromptSet:
    """What a target answers."""

    learned: list[TrainingPrompt]
    apart: list[TrainingPrompt]
    own: Questions
    states: States | None  # states that are kept with each answer


def collect_answers(
    target: Target,
    asked: PromptSet,
    kept: tuple[Shards, Shards],
    seconds: float,
    report: Report,
    timer: Callable[[], float],
) -> None:
    """Write the missing answers to the prompts that are kept apart, each greedy and at every temperature, and then
    answers to learn from. ``kept``: the shards of both kinds, in this order."""
    held, answers = kept
    own = asked.own

    def write(phase: str, shards: Shards, wanted: Iterator[Job], until: float) -> None:
        begin = timer() - shards.seconds
        done = shards.done

        def spent() -> float:
            return timer() - begin

        def go_on() -> bool:
            left = max(0.0, until - spent())
            text = f"{len(shards.answers)} answers, {shards.tokens} tokens"
            report(Progress(phase, text, 1 - left / until, left))
            return left > 0 and len(shards.answers) < MOST_ANSWERS

        def keep(answer: TargetAnswer) -> None:
            shards.add(answer, spent())
            if answer.job.prompt is own.opening:  # its text is learned from as well
                own.take(answer)

        if shards.answers and spent() >= until:
            return
        missing = (job for job in wanted if job not in done)
        write_answers(target, missing, keep, go_on, own.ends, asked.states)
        shards.flush()

    # With little time, some of every task and temperature
    mixed, learned = (random.Random(0).sample(some, len(some)) for some in (asked.apart, asked.learned))
    tests = (Job(prompt, t, 1, TESTED) for prompt in mixed for t in (GREEDY, *TEMPERATURES))
    write("answers to prompts kept apart", held, tests, seconds * TESTING)
    write("answers", answers, _wanted(learned, own), seconds - min(held.seconds, seconds * TESTING))


def _wanted(prompts: list[TrainingPrompt], own: Questions) -> Iterator[Job]:
    """A greedy answer to each prompt and a sampled one; then the target's own questions and answers to them, and in
    turn with these, while there are prompts, further sampled answers."""
    given, others = jobs(prompts), own.jobs()
    for _ in range(2 * len(prompts)):
        yield next(given)
    while True:
        yield next(others)
        if prompts:
            yield next(given)
