"""Makes a draft of a target and prompts: answers, training, and agreement on prompts kept apart."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from actors.engines.build import EngineOptions, build_target
from actors.engines.weights.draft_vocabulary import draft_vocabulary, head_size
from actors.engines.weights.loading import resolve_device
from actors.training.batches import epochs, groups
from actors.training.collecting import PromptSet, collect_answers
from actors.training.covered import coverage
from actors.training.draft_heads import DraftHeads
from actors.training.draft_models import DraftModels
from actors.training.draft_training import DraftTraining, halfway, trained_seconds
from actors.training.plan import EXPECTED, AnswerRanks, LearnedFrom, Progress, Report, TrainingPlan, TrainingResult
from actors.training.questions import TASK, Questions, prompt_of
from actors.training.shapes import round_us, stopwatch
from actors.training.shards import Shards
from actors.training.start import DraftShape
from actors.training.workspace import Workspace
from protocols.errors import ConfigError

APART = 8  # one prompt in 8 of a task is kept apart ...
MOST_APART = 128  # ... and at most 128: 50 tokens each at three temperatures, an error of 0.006
CHECKPOINT = 60.0  # seconds of training that an interruption loses at most

Timer = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Material:
    """The texts of a training, and the texts that judge it."""

    answers: Shards
    held: Shards  # answers to the prompts kept apart
    shape: DraftShape
    round_us: float  # the target's round
    training_s: float  # time that this run may train


def distill(plan: TrainingPlan, report: Report, timer: Timer = time.monotonic) -> TrainingResult:
    """Write the draft model directory ``plan.out``. ConfigError or ModelError in one sentence."""
    return Distillation(plan, report, timer).run()


class Distillation:
    """One run of a plan; an earlier run of the same plan is continued."""

    def __init__(self, plan: TrainingPlan, report: Report, timer: Timer) -> None:
        self.plan, self.report, self.timer = plan, report, timer
        self.device = resolve_device(plan.device)
        self.work = Workspace(plan)
        kind = DraftHeads if plan.kind == "head" else DraftModels
        self.kind = kind(plan, self.work, self.device, report)

    def run(self) -> TrainingResult:
        given, kind = self.ask_target(), self.kind
        self.report(Progress("start", f"a draft of shape {given.shape}"))
        model = kind.first(given.shape, given.answers.answers)
        before, _ = kind.judge(model, given.held.answers)
        learner = self.train(model, given)
        self.report(Progress("report", "reading the answers kept apart"))
        made, out = learner.averaged, self.work.out
        kind.save(made, out)
        after, depths = kind.judge(made, given.held.answers)
        vocabulary = draft_vocabulary(made)
        return TrainingResult(
            shape=str(given.shape),
            parameters=sum(p.numel() for p in made.parameters()),
            start=kind.start(given.shape),
            material=_learned_from(given),
            head=0 if vocabulary is None or len(vocabulary) == vocabulary.whole else len(vocabulary),
            covered=coverage(given.held.answers, vocabulary),
            steps=learner.steps,
            seconds=learner.seconds,
            round_us=given.round_us,
            step_us=kind.step_us(str(out)),
            before=sorted(before, key=_by_temperature),
            after=sorted(after, key=_by_temperature),
            depths=depths,
        )

    def ask_target(self) -> Material:
        """Load the target, let it decide the shape and write the answers. Its memory is free again at the end."""
        plan, work, kind = self.plan, self.work, self.kind
        threads, spare = max(1, len(plan.cpus) - 1), plan.cpus[1:][-1:]  # a drafter has one
        target, codec = build_target(plan.target, EngineOptions(str(self.device), "auto", 0, threads, spare))
        expected = kind.meet(target)
        work.begin()
        apart = kept_apart([one.task for one in plan.texts])
        given = [prompt_of(one.text, codec, one.task) for one in plan.texts]
        tests = [given[i] for i in sorted(apart)] or [prompt_of(one.text, codec, one.task) for one in plan.tests]
        learned = [prompt for i, prompt in enumerate(given) if i not in apart]
        self.report(Progress("shape", "measuring rounds of the target"))
        took_us = round_us(target, stopwatch(self.device, threads))
        shape = kind.shape(took_us)
        if target.has_spare_cpus:
            target.use_spare_cpus(True)  # compiled layers have threads of their own; torch's would disturb them
        else:
            torch.set_num_threads(len(plan.cpus))
        if expected:
            self.report(Progress(EXPECTED, expected))
        held, answers = work.shards()
        seconds, earlier = plan.minutes * 60, held.seconds + answers.seconds
        until = (seconds + earlier + trained_seconds(work.checkpoint)) * kind.answering  # time of all runs together
        own = Questions(codec, target.info, [*given, *tests, *(one.job.prompt for one in answers.answers)])
        asked = PromptSet(learned, tests, own, kind.states)
        collect_answers(target, asked, (held, answers), until, self.report, self.timer)
        if not held.answers or not answers.answers:
            raise ConfigError(f"the prompts leave no room for answers in the context of {plan.target}; shorten them")
        answering = held.seconds + answers.seconds - earlier
        return Material(answers, held, shape, took_us, seconds - min(answering, seconds * kind.answering))

    def train(self, model: nn.Module, given: Material) -> DraftTraining:
        """Train until the time is over, from the checkpoint if there is one. The rate falls towards the end. A draft
        that is trained further ends halfway back to its first weights."""
        torch.set_num_threads(len(self.plan.cpus))
        learner, checkpoint, kind = DraftTraining(model, self.device), self.work.checkpoint, self.kind
        begun = {name: weight.clone() for name, weight in learner.averaged.state_dict().items()}
        if checkpoint.is_file():
            learner.load(checkpoint)
        begin, saved, until = self.timer() - learner.seconds, learner.seconds, learner.seconds + given.training_s
        together = groups(given.answers.answers, head_size(model.config) * kind.depth, kind.tokens)
        for members in epochs(together, int(learner.seconds)):
            done = (self.timer() - begin) / until
            if done >= 1:
                break
            learner.step(kind.batch(members, done), done)
            learner.seconds = self.timer() - begin
            if learner.seconds - saved > CHECKPOINT:
                saved = learner.seconds
                learner.save(checkpoint)
            text = f"step {learner.steps}, {learner.acceptance:.3f} of the tokens accepted"
            left = max(0.0, until - learner.seconds)
            self.report(Progress("training", text, 1 - left / until, left))
        learner.save(checkpoint)
        if self.plan.init:
            halfway(learner.averaged, begun)
        return learner


def _by_temperature(one: AnswerRanks) -> tuple[float, str]:
    return one.temperature, one.task


def _learned_from(given: Material) -> LearnedFrom:
    prompts = {one.job.prompt for one in given.answers.answers}
    return LearnedFrom(
        prompts=len(prompts),
        own=sum(prompt.task == TASK for prompt in prompts),
        answers=len(given.answers.answers),
        tokens=given.answers.tokens,
        kept_apart=len({one.job.prompt for one in given.held.answers}),
    )


def kept_apart(tasks: Sequence[str]) -> set[int]:
    """Indices of every ``APART``-th prompt of each task; of fewer, where there are many. A task with too few prompts,
    but more than one, gives its last."""
    every = max(APART, math.ceil(len(tasks) / MOST_APART))
    apart: set[int] = set()
    for task in dict.fromkeys(tasks):
        members = [i for i, one in enumerate(tasks) if one == task]
        apart.update(members[every - 1 :: every] or members[1:][-1:])
    return apart
