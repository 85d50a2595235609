"""From a target and prompts to a draft: answers, a start, training, and what it gained on prompts kept apart."""

from __future__ import annotations

import copy
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from actors.cost import CostModel
from actors.draft_timing import measure_draft
from actors.engines.build import build_draft, build_target
from actors.engines.checkpoints.draft_vocabulary import draft_vocabulary, head_size, with_part_head
from actors.engines.checkpoints.loading import load_config, load_model, load_tokenizer, resolve_device
from actors.engines.drafts.replay import replay_draft
from actors.engines.targets.target import Target
from actors.engines.text.tokenizer import TokenizerCodec, tokenizer_digest
from actors.engines.training.answers import GREEDY, LONGEST, TEMPERATURES, Answer, Job, Prompt, jobs, write_answers
from actors.engines.training.batches import epochs
from actors.engines.training.head import coverage, head_tokens, kept_most_frequent
from actors.engines.training.learner import Learner, trained_seconds
from actors.engines.training.mixture import keep_the_best
from actors.engines.training.plan import Plan, Progress, Reading, Result, Rounds
from actors.engines.training.shapes import fitting, step_us, stopwatch
from actors.engines.training.shards import Shards
from actors.engines.training.start import Shape, draft_config, first_draft, is_cut
from actors.engines.training.workspace import Workspace, write_whole
from actors.replay.logged import LoggedRequest
from actors.verifier.compute import INLINE_US
from actors.verifier.timing import measure_target
from protocols.errors import ConfigError, RequestError
from protocols.messages import ChatTurn, Sampling

APART = 8  # every so manieth prompt of a task is kept apart, or fewer, so that there are no more than
MOST_APART = 128  # of which the answers at three temperatures, 64 tokens each, tell an agreement to 0.005
ANSWERING = 1 / 3  # of the time; the rest is training
MOST_ANSWERS = 100_000
CHECKPOINT = 60.0  # seconds of training that an interruption loses at most
WINDOW = 16  # rows of a usual round, by which a draft's shape is chosen


Report = Callable[[Progress], None]
Timer = Callable[[], float]


def distill(plan: Plan, report: Report, timer: Timer = time.monotonic) -> Result:
    """Write the draft model directory ``plan.out``. ConfigError or ModelError in one sentence."""
    device = resolve_device(plan.device)
    apart = kept_apart([one.task for one in plan.texts])
    learned = [i for i in range(len(plan.texts)) if i not in apart]
    if not learned or not apart:
        raise ConfigError(
            f"of prompts so few ({len(plan.texts)}) none are left to test the draft on; give --prompts more"
        )
    _refuse_shape(plan)
    work = Workspace(plan)
    threads = max(1, plan.threads - 1)  # beside a drafter, which has one
    target, codec = build_target(plan.target, str(device), plan.dtype, 0, threads)
    clock = stopwatch(device, threads)
    if plan.init:
        _refuse_tokenizer(plan, target)
    work.begin()
    prompts = [Prompt(_tokens(one.text, codec), one.task) for one in plan.texts]
    shape, target_us = _shape(plan, target, work, report, clock)
    torch.set_num_threads(plan.threads)
    held, answers = work.shards()
    seconds, earlier, trained = plan.minutes * 60, held.seconds + answers.seconds, trained_seconds(work.checkpoint)
    until = (seconds + earlier + trained) * ANSWERING  # of the time of all runs together
    _answer(target, prompts, (sorted(apart), learned), (held, answers), until, report, timer)
    answering = held.seconds + answers.seconds - earlier
    if not held.answers or not answers.answers:
        raise ConfigError(f"the prompts leave no room for answers in the context of {plan.target}; give shorter ones")
    del target  # its memory is the training's now
    report(Progress("start", f"a draft of shape {shape}"))
    source = load_model(plan.init or plan.target, torch.device("cpu"), torch.float32)
    model = source.requires_grad_(True) if plan.init else first_draft(source, shape)
    del source
    size, whole = head_tokens(model.config), int(model.config.get_text_config().vocab_size)  # type: ignore[operator,union-attr]
    if not plan.init and size < whole:
        shown = [prompts[i] for i in learned]
        model = with_part_head(model, kept_most_frequent(work.head, shown, answers.answers, size, whole))
    drafter = "cpu" if device.type == "cpu" else str(device)
    report(Progress("start", "reading the answers kept apart"))
    with TemporaryDirectory() as start:
        _save(model, plan, Path(start))
        before_us, before = _judged(start, drafter, prompts, held.answers, clock)
    torch.set_num_threads(plan.threads)
    learner = Learner(model, device)
    begun = {name: weight.clone() for name, weight in learner.averaged.state_dict().items()} if plan.init else None
    until = trained + seconds - min(answering, seconds * ANSWERING)
    _learn(learner, prompts, answers, until, work.checkpoint, report, timer)
    report(Progress("report", "reading the answers kept apart"))
    share = keep_the_best(learner.averaged, begun, prompts, held.answers) if begun is not None else 1.0
    parameters = sum(p.numel() for p in learner.averaged.parameters())
    _save(learner.averaged, plan, work.out)
    after_us, after = _judged(plan.out, drafter, prompts, held.answers, clock)
    return Result(
        shape=str(_shape_of(model)),
        parameters=parameters,
        init=plan.init,
        cut=not plan.init and is_cut(load_config(plan.target), shape),
        prompts=len(prompts),
        kept_apart=len(apart),
        answers=len(answers.answers),
        tokens=answers.tokens,
        vocabulary=whole,
        head=head_size(model.config),
        covered=coverage(held.answers, draft_vocabulary(model)),
        steps=learner.steps,
        seconds=learner.seconds,
        share=share,
        rounds=Rounds(target_us, device.type == "cpu" and CostModel(target_us)(8) <= INLINE_US),
        before_us=before_us,
        after_us=after_us,
        before=before,
        after=after,
    )


def kept_apart(tasks: Sequence[str]) -> set[int]:
    """Indices of every ``APART``-th prompt of each task (of fewer, where there are many), and of the last where a task
    has too few for that, but more than one."""
    every = max(APART, math.ceil(len(tasks) / MOST_APART))
    apart: set[int] = set()
    for task in dict.fromkeys(tasks):
        members = [i for i, one in enumerate(tasks) if one == task]
        apart.update(members[every - 1 :: every] or members[1:][-1:])
    return apart


def _tokens(text: str, codec: TokenizerCodec) -> tuple[int, ...]:
    try:
        return tuple(codec.chat([ChatTurn("user", text)]))
    except RequestError:  # a model without a chat template
        return tuple(codec.encode(text))


def _refuse_shape(plan: Plan) -> None:
    if plan.shape == "auto":
        return
    if plan.init:
        raise ConfigError(f"the draft {plan.init} has a shape already; leave --shape out, or --init")
    draft_config(load_config(plan.target), Shape.parse(plan.shape))


def _refuse_tokenizer(plan: Plan, target: Target) -> None:
    if tokenizer_digest(load_tokenizer(plan.init)) != target.info.tokenizer_digest:
        raise ConfigError(
            f"the tokenizer of {plan.init} is not that of {plan.target}; give --init a draft of this target"
        )


def _shape(plan: Plan, target: Target, work: Workspace, report: Report, clock: Timer) -> tuple[Shape, dict[int, float]]:
    """The draft's shape, and what a round of the target takes, by its rows."""
    report(Progress("shape", "measuring rounds of the target"))
    target_us = measure_target(target, clock)
    if plan.shape != "auto":
        return Shape.parse(plan.shape), target_us
    if not work.shape.is_file():
        write_whole(work.shape, str(_fitting(plan, target_us, report, clock)).encode())
    return Shape.parse(work.shape.read_text()), target_us  # it stays, whatever is measured when training is resumed


def _fitting(plan: Plan, target_us: dict[int, float], report: Report, clock: Timer) -> Shape:
    if plan.init:
        return _shape_of_config(load_config(plan.init))
    drafter = "cpu" if resolve_device(plan.device).type == "cpu" else plan.device
    return fitting(
        load_config(plan.target),
        load_tokenizer(plan.target),
        target_us[max(rows for rows in target_us if rows <= WINDOW)],
        lambda directory: step_us(directory, drafter, clock),
        lambda text: report(Progress("shape", text)),
    )


def _shape_of(model: nn.Module) -> Shape:
    return _shape_of_config(model.config)


def _shape_of_config(config: Any) -> Shape:
    text = config.get_text_config()
    return Shape(int(text.hidden_size), int(text.num_hidden_layers))


def _answer(
    target: Target,
    prompts: Sequence[Prompt],
    numbers: tuple[Sequence[int], Sequence[int]],
    kept: tuple[Shards, Shards],
    seconds: float,
    report: Report,
    timer: Timer,
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

    mixed = random.Random(0).sample(apart, len(apart))  # where time is short, some of every task and temperature
    tests = (Job(i, t, 1) for i in mixed for t in (GREEDY, *TEMPERATURES))
    write("answers to prompts kept apart", held, tests, seconds / 3)
    wanted = (Job(learned[job.prompt], job.temperature, job.seed) for job in jobs(len(learned)))
    write("answers", answers, islice(wanted, MOST_ANSWERS), seconds - min(held.seconds, seconds / 3))


def _learn(
    learner: Learner,
    prompts: Sequence[Prompt],
    answers: Shards,
    seconds: float,
    state: Path,
    report: Report,
    timer: Timer,
) -> None:
    """Train until all runs together have trained for ``seconds``, with a checkpoint every minute."""
    if state.is_file():
        learner.load(state)
    begin, saved = timer() - learner.seconds, learner.seconds
    columns = head_size(learner.model.config)
    for batch in epochs(prompts, answers.answers, columns, learner.device, seed=learner.steps):
        spent = timer() - begin
        if spent >= seconds:
            break
        learner.step(batch, spent / seconds)
        learner.seconds = timer() - begin
        if learner.seconds - saved > CHECKPOINT:
            saved = learner.seconds
            learner.save(state)
        text = f"step {learner.steps}, {learner.acceptance:.3f} of the tokens accepted"
        left = max(0.0, seconds - learner.seconds)
        report(Progress("training", text, 1 - left / seconds, left))
    learner.save(state)


def _judged(
    directory: str, device: str, prompts: Sequence[Prompt], answers: Sequence[Answer], clock: Timer
) -> tuple[dict[int, float], list[Reading]]:
    """What a draft's steps take, and how it reads the answers, by temperatures and tasks: as a drafter would serve."""
    draft = build_draft(directory, device, "auto", 0, 1)
    texts = [
        LoggedRequest(
            prompt=prompts[one.job.prompt].tokens,
            text=tuple(one.tokens.tolist()),
            sampling=Sampling(temperature=one.job.temperature, seed=one.job.seed),
            task=prompts[one.job.prompt].task,
        )
        for one in answers
    ]
    found = [
        Reading(temperature=text.sampling.temperature, task=text.task, ranks=tuple(ranks.tolist()))
        for text, ranks in zip(texts, replay_draft(draft, texts), strict=True)
    ]
    return measure_draft(draft, clock), sorted(found, key=lambda one: (one.temperature, one.task))


def _save(model: nn.Module, plan: Plan, out: Path) -> None:
    """As any other model's directory: bfloat16 weights, configuration, the target's tokenizer."""
    kept: Any = copy.deepcopy(model).to("cpu", torch.bfloat16)
    kept.save_pretrained(out)
    load_tokenizer(plan.target).save_pretrained(out)
