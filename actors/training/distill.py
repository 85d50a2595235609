"""From a target and prompts to a draft: answers, a shape, training, and its gain on prompts kept apart."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from actors.cost import CostModel
from actors.engines.build import build_target
from actors.engines.targets.target import Target
from actors.engines.text.tokenizer import TokenizerCodec, tokenizer_digest
from actors.engines.weights.draft_vocabulary import draft_vocabulary, head_size
from actors.engines.weights.loading import load_config, load_tokenizer, resolve_device
from actors.training import trials
from actors.training.answers import Prompt
from actors.training.batches import epochs
from actors.training.collecting import collect_answers
from actors.training.head import coverage
from actors.training.learner import Learner, train, trained_seconds
from actors.training.mixture import keep_the_best
from actors.training.plan import Plan, Predict, Progress, Report, Result, Rounds
from actors.training.shapes import contenders, step_us, stopwatch
from actors.training.start import Shape, draft_config, is_cut
from actors.training.students import Students
from actors.training.workspace import Workspace
from actors.verifier.compute import INLINE_US
from actors.verifier.timing import measure_lent, measure_target
from protocols.errors import ConfigError, RequestError
from protocols.messages import ChatTurn

APART = 8  # hold out one prompt in this many of a task, at most
MOST_APART = 128  # whose answers, 50 tokens on the average at each temperature, tell an agreement to 0.006
ANSWERING = 1 / 3  # of the time; the rest is training
WINDOW = 16  # rows of a usual round, by which a draft's shape is chosen

Timer = Callable[[], float]


def distill(plan: Plan, predict: Predict, report: Report, timer: Timer = time.monotonic) -> Result:
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
    threads, spare = max(1, len(plan.cpus) - 1), plan.cpus[1:][-1:]  # a drafter has one
    target, codec = build_target(plan.target, str(device), plan.dtype, 0, threads, spare)
    clock = stopwatch(device, threads)
    if plan.init:
        _refuse_tokenizer(plan, target)
    work.begin()
    prompts = [Prompt(_tokens(one.text, codec), one.task) for one in plan.texts]
    drafter = "cpu" if device.type == "cpu" else str(device)
    report(Progress("shape", "measuring rounds of the target"))
    target_us = measure_target(target, clock)
    inline = device.type == "cpu" and CostModel(target_us)(8) <= INLINE_US
    rounds = Rounds(target_us, measure_lent(target, target_us) or {}, inline)
    shapes = _shapes(plan, rounds, work, drafter, report, clock)

    if target.has_spare_cpus:
        target.use_spare_cpus(True)  # compiled layers have threads of their own, which torch's would get in the way of
    else:
        torch.set_num_threads(len(plan.cpus))
    held, answers = work.shards()
    seconds, earlier, trained = plan.minutes * 60, held.seconds + answers.seconds, trained_seconds(work.checkpoint)
    until = (seconds + earlier + trained) * ANSWERING  # of the time of all runs together
    collect_answers(target, prompts, (sorted(apart), learned), (held, answers), until, report, timer)
    answering = held.seconds + answers.seconds - earlier
    if not held.answers or not answers.answers:
        raise ConfigError(f"the prompts leave no room for answers in the context of {plan.target}; give shorter ones")
    del target  # its memory is the training's now

    students = Students(
        plan, work, prompts, [prompts[i] for i in learned], answers.answers, held.answers, drafter, clock
    )
    training = seconds - min(answering, seconds * ANSWERING)

    def learn(learner: Learner, until: float, end: float, state: Any) -> None:
        torch.set_num_threads(len(plan.cpus))
        batches = epochs(prompts, answers.answers, head_size(learner.model.config), device, seed=learner.steps)
        train(learner, batches, (until, end), state, report, timer)

    def attempt(shape: Shape) -> float:
        learner = Learner(students.begin(shape), device)
        learn(learner, training * trials.SHARE, training, work.trial(shape))
        gain = predict(rounds, students.judge(learner.averaged))
        report(Progress("shape", f"{shape}: {gain:.2f}x is predicted after {learner.steps} steps"))
        return gain

    choice = trials.chosen(work)
    if choice is None and plan.shape == "auto" and not plan.init:
        choice = trials.decide(shapes, work, attempt)
    training -= training * trials.SHARE * (len(shapes) - 1)
    shape = Shape.parse(choice.shape) if choice is not None else shapes[0]
    report(Progress("start", f"a draft of shape {shape}"))
    model = students.begin(shape)
    before = students.judge(model)
    learner = Learner(model, device)
    begun = {name: weight.clone() for name, weight in learner.averaged.state_dict().items()} if plan.init else None
    learn(learner, trained + training, trained + training, work.checkpoint)
    report(Progress("report", "reading the answers kept apart"))
    share = keep_the_best(learner.averaged, begun, prompts, held.answers) if begun is not None else 1.0
    students.save(learner.averaged, work.out)
    after = students.judge_saved(plan.out)
    return Result(
        shape=str(_shape_of(model.config)),
        parameters=sum(p.numel() for p in learner.averaged.parameters()),
        init=plan.init,
        cut=not plan.init and is_cut(load_config(plan.target), shape),
        prompts=len(prompts),
        kept_apart=len(apart),
        answers=len(answers.answers),
        tokens=answers.tokens,
        vocabulary=int(model.config.get_text_config().vocab_size),  # type: ignore[operator,union-attr]
        head=head_size(model.config),
        covered=coverage(held.answers, draft_vocabulary(model)),
        steps=learner.steps,
        seconds=learner.seconds,
        share=share,
        rounds=rounds,
        tried=choice.tried if choice is not None else {},
        before_us=before.step_us,
        after_us=after.step_us,
        before=before.readings,
        after=after.readings,
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


def _shapes(plan: Plan, rounds: Rounds, work: Workspace, device: str, report: Report, clock: Timer) -> Sequence[Shape]:
    """The draft's shape, or the shapes to choose from."""
    if plan.shape != "auto":
        return [Shape.parse(plan.shape)]
    if plan.init:
        return [_shape_of(load_config(plan.init))]
    if (choice := trials.chosen(work)) is not None:
        return [Shape.parse(choice.shape)]
    return contenders(
        load_config(plan.target),
        load_tokenizer(plan.target),
        rounds.us[max(rows for rows in rounds.us if rows <= WINDOW)],
        lambda directory: step_us(directory, device, clock),
        lambda text: report(Progress("shape", text)),
    )


def _shape_of(config: Any) -> Shape:
    text = config.get_text_config()
    return Shape(int(text.hidden_size), int(text.num_hidden_layers))
