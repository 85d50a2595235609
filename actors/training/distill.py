"""From a target and prompts to a draft: answers, a shape, training, and agreement on prompts kept apart."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from actors.draft_timing import measure_draft
from actors.engines.build import build_draft, build_target
from actors.engines.targets.target import Target
from actors.engines.text.tokenizer import TokenizerCodec, tokenizer_digest
from actors.engines.weights.draft_vocabulary import draft_vocabulary, head_size
from actors.engines.weights.loading import load_config, load_tokenizer, resolve_device
from actors.training.answers import TrainingPrompt
from actors.training.batches import epochs
from actors.training.collecting import collect_answers
from actors.training.draft_training import DraftTraining, halfway, train, trained_seconds
from actors.training.head import coverage
from actors.training.plan import EXPECTED, Progress, Report, TrainingPlan, TrainingResult
from actors.training.shapes import choose_shape, round_us, stopwatch
from actors.training.shards import Shards
from actors.training.start import DraftShape, draft_config, is_cut
from actors.training.students import Students
from actors.training.workspace import Workspace, write_whole
from protocols.errors import ConfigError, RequestError
from protocols.messages import ChatTurn

APART = 8  # one prompt in 8 of a task is kept apart ...
MOST_APART = 128  # ... and at most 128: 50 tokens each at three temperatures, an error of 0.006
ANSWERING = 1 / 3  # of the time; the rest is training

Timer = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Material:
    """The texts of a training, and the texts that judge it."""

    prompts: list[TrainingPrompt]
    learned: list[int]  # indices of the prompts to learn from
    answers: Shards
    held: Shards  # answers to the prompts kept apart
    shape: DraftShape
    round_us: float  # of the target
    training_s: float  # that this run may train


def distill(plan: TrainingPlan, report: Report, timer: Timer = time.monotonic) -> TrainingResult:
    """Write the draft model directory ``plan.out``. ConfigError or ModelError in one sentence."""
    if plan.kind == "head":
        from actors.training.heads import HeadDistillation

        return HeadDistillation(plan, report, timer).run()
    return Distillation(plan, report, timer).run()


class Distillation:
    """One run of a plan; an earlier run of the same plan is continued."""

    def __init__(self, plan: TrainingPlan, report: Report, timer: Timer) -> None:
        self.plan, self.report, self.timer = plan, report, timer
        self.device = resolve_device(plan.device)
        self.apart = kept_apart([one.task for one in plan.texts])
        if not self.apart or len(self.apart) == len(plan.texts):
            raise ConfigError(
                f"of prompts so few ({len(plan.texts)}) none are left to test the draft on; give --prompts more"
            )
        _refuse_shape(plan)
        self.work = Workspace(plan)

    @property
    def drafter(self) -> str:
        """The device of a drafter."""
        return "cpu" if self.device.type == "cpu" else str(self.device)

    def run(self) -> TrainingResult:
        given = self.ask_target()
        self.report(Progress("start", f"a draft of shape {given.shape}"))
        students = Students(self.plan, self.work, given.prompts, given.held.answers, self.drafter)
        model = students.begin(given.shape, [given.prompts[i] for i in given.learned], given.answers.answers)
        before = students.judge(model)
        learner = self.train(model, given)
        self.report(Progress("report", "reading the answers kept apart"))
        students.save(learner.averaged, self.work.out)
        after, step_us = students.read(self.plan.out), self.step_us(self.plan.out)
        covered, vocabulary = head_size(model.config), int(model.config.get_text_config().vocab_size)  # type: ignore[operator,union-attr]
        return TrainingResult(
            shape=str(given.shape),
            parameters=sum(p.numel() for p in learner.averaged.parameters()),
            start=self.start(given.shape),
            prompts=len(given.learned),
            kept_apart=len(self.apart),
            answers=len(given.answers.answers),
            tokens=given.answers.tokens,
            head=covered if covered < vocabulary else 0,
            covered=coverage(given.held.answers, draft_vocabulary(model)),
            steps=learner.steps,
            seconds=learner.seconds,
            round_us=given.round_us,
            step_us=step_us,
            before=before,
            after=after,
        )

    def start(self, shape: DraftShape) -> str:
        """What the draft's first weights were."""
        if self.plan.init:
            return "a draft"
        return "layers of the target" if is_cut(load_config(self.plan.target), shape) else "the target's embedding"

    def ask_target(self) -> Material:
        """Load the target, let it decide the shape and write the answers. Its memory is free again at the end."""
        plan, work = self.plan, self.work
        threads, spare = max(1, len(plan.cpus) - 1), plan.cpus[1:][-1:]  # a drafter has one
        target, codec = build_target(plan.target, str(self.device), plan.dtype, 0, threads, spare)
        if plan.init:
            _refuse_tokenizer(plan, target)
        work.begin()
        prompts = [TrainingPrompt(_tokens(one.text, codec), one.task) for one in plan.texts]
        self.report(Progress("shape", "measuring rounds of the target"))
        took_us = round_us(target, stopwatch(self.device, threads))
        shape = self.shape(took_us)
        if target.has_spare_cpus:
            target.use_spare_cpus(True)  # compiled layers have threads of their own; torch's would disturb them
        else:
            torch.set_num_threads(len(plan.cpus))
        if expected := self.expected(target):
            self.report(Progress(EXPECTED, expected))
        held, answers = work.shards()
        seconds, earlier = plan.minutes * 60, held.seconds + answers.seconds
        until = (seconds + earlier + trained_seconds(work.checkpoint)) * ANSWERING  # of all runs together
        learned = [i for i in range(len(prompts)) if i not in self.apart]
        numbers = sorted(self.apart), learned
        collect_answers(self.watched(target), prompts, numbers, (held, answers), until, self.report, self.timer)
        if not held.answers or not answers.answers:
            raise ConfigError(f"the prompts leave no room for answers in the context of {plan.target}; shorten them")
        answering = held.seconds + answers.seconds - earlier
        training_s = seconds - min(answering, seconds * ANSWERING)
        return Material(prompts, learned, answers, held, shape, took_us, training_s)

    def expected(self, target: Target) -> str:
        """What may come of it, in the first minute; empty: it cannot be told."""
        return ""

    def watched(self, target: Target) -> Target:
        """The target that is asked for answers."""
        return target

    def shape(self, took_us: float) -> DraftShape:
        """The shape that was asked for, or that an earlier run has chosen, or the one by rule."""
        plan, work = self.plan, self.work
        if plan.shape != "auto":
            return DraftShape.parse(plan.shape)
        if plan.init:
            text = load_config(plan.init).get_text_config()
            return DraftShape(int(text.hidden_size), int(text.num_hidden_layers))
        if not work.shape.is_file():
            chosen = choose_shape(
                load_config(plan.target),
                load_tokenizer(plan.target),
                took_us,
                self.step_us,
                lambda text: self.report(Progress("shape", text)),
            )
            write_whole(work.shape, str(chosen).encode())
        return DraftShape.parse(work.shape.read_text())

    def step_us(self, directory: str | Path) -> float:
        """Microseconds of a draft step, as a drafter would compute it."""
        draft = build_draft(str(directory), self.drafter, "auto", 0, 1)
        return measure_draft(draft, stopwatch(self.device, max(1, len(self.plan.cpus) - 1)))[1]

    def train(self, model: nn.Module, given: Material) -> DraftTraining:
        """Train until the time is over. A draft that is trained further ends halfway back to its first weights."""
        torch.set_num_threads(len(self.plan.cpus))
        learner, checkpoint = DraftTraining(model, self.device), self.work.checkpoint
        begun = {name: weight.clone() for name, weight in learner.averaged.state_dict().items()}
        columns = head_size(model.config)
        seed = int(trained_seconds(checkpoint))
        batches = epochs(given.prompts, given.answers.answers, columns, self.device, seed)
        until = trained_seconds(checkpoint) + given.training_s
        train(learner, batches, until, checkpoint, self.report, self.timer)
        if self.plan.init:
            halfway(learner.averaged, begun)
        return learner


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


def _refuse_shape(plan: TrainingPlan) -> None:
    if plan.shape == "auto":
        return
    if plan.init:
        raise ConfigError(f"the draft {plan.init} has a shape already; leave --shape out, or --init")
    config: Any = load_config(plan.target)
    draft_config(config, DraftShape.parse(plan.shape))


def _refuse_tokenizer(plan: TrainingPlan, target: Target) -> None:
    if tokenizer_digest(load_tokenizer(plan.init)) != target.info.tokenizer_digest:
        raise ConfigError(
            f"the tokenizer of {plan.init} is not that of {plan.target}; give --init a draft of this target"
        )
