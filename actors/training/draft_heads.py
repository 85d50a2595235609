"""EAGLE-3 heads: first weights, batches with the target's states, and how they read the answers kept apart.

A head learns as it will draft: the second and third token of a round from states of its own (training-time test,
arXiv 2503.01840). Its output layer holds the target's rows of the most frequent tokens, and is not trained.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from actors.draft_timing import measure_draft
from actors.engines.build import EngineOptions, build_target
from actors.engines.heads.build import build_head
from actors.engines.sampling.noise import gumbel
from actors.engines.targets.states import States
from actors.engines.targets.target import Target
from actors.engines.weights.loading import load_config, load_model
from actors.training.answers import TOP, Job, TargetAnswer, TrainingPrompt
from actors.training.batches import TrainingBatch, batch_of
from actors.training.covered import kept_most_frequent
from actors.training.draft_training import DraftTraining
from actors.training.head_student import STEPS, HeadStudent, first_head, new_head, save_head
from actors.training.plan import AnswerRanks, Report, TrainingPlan
from actors.training.shapes import stopwatch
from actors.training.start import DraftShape
from actors.training.workspace import Workspace

COVERED = 8192  # tokens of the output layer; what a small target's head takes longest for is its own
TOKENS = 2048  # a batch's tokens
RANKS = 8  # ranks of the head's choices that are counted separately
REACHED = (250, 0.44)  # steps, and how often the first token then was right: docs/experiments/heads.md
DEEPER = (0.4, 0.75)  # shares of the time before which a round in training has one token, and two; one token costs half
CPU = torch.device("cpu")


def taps_of(layers: int) -> tuple[int, ...]:
    """The layers whose input states published heads read."""
    return 2, layers // 2, layers - 3


@dataclass(frozen=True, slots=True)
class HeadBatch(TrainingBatch):
    """Its positions stand there ``depth`` times: as first token of a round, as second, as third."""

    states: Tensor  # (rows, length, states): the target's
    depth: int

    def logits(self, model: nn.Module) -> Tensor:
        made: Tensor = model(self.tokens, self.states, self.kept, self.mask, self.depth)
        return made.flatten(0, 1)


def head_batch(
    answers: Sequence[TargetAnswer], device: torch.device, depth: int = STEPS, whole: bool = False
) -> HeadBatch:
    """``whole``: with all positions."""
    plain = batch_of(answers, device, whole)
    width = next(one.states.shape[1] for one in answers if one.states is not None)
    states = torch.zeros(*plain.tokens.shape, width)
    for row, one in zip(states, answers, strict=True):
        if one.states is not None:
            row[: len(one.states)] = torch.from_numpy(np.array(one.states))
    ids, logprobs, heat = plain.ids.repeat(depth, 1), plain.logprobs.repeat(depth, 1), plain.temperature.repeat(depth)
    return HeadBatch(
        plain.tokens, plain.kept, plain.mask, plain.answers, ids, logprobs, heat, states=states.to(device), depth=depth
    )


def _made_up(tokens: int, width: int) -> TargetAnswer:
    """An answer of ``tokens`` tokens to a prompt of the same length."""
    job, said = Job(TrainingPrompt((0,) * tokens), 1.0, 0), np.zeros(tokens, np.int32)
    ids = np.tile(np.arange(TOP, dtype=np.int32), (tokens, 1))
    states = np.random.default_rng(0).normal(size=(2 * tokens - 1, 3 * width)).astype(np.float16)
    return TargetAnswer(job, said, ids, np.full(ids.shape, -5, np.float16), states)


class DraftHeads:
    """The heads of one plan, with the methods of :class:`actors.training.draft_models.DraftModels`."""

    answering, tokens, depth = 2 / 3, TOKENS, STEPS  # more answers help more than more steps: heads.md

    def __init__(self, plan: TrainingPlan, work: Workspace, device: torch.device, report: Report) -> None:
        self._plan, self._work, self._device = plan, work, device
        self.states: States | None = None

    def meet(self, target: Target) -> str:
        """What may come of it, by a step on made-up states, an eighth of a batch."""
        self.states = target.keep_states(taps_of(target.engine.trunk().layers))
        config, ids = load_config(self._plan.target).get_text_config(), np.arange(min(COVERED, target.info.vocab_size))
        learner = DraftTraining(new_head(config, torch.zeros(len(ids), config.hidden_size), ids), self._device)
        tokens = TOKENS // 8
        batch = head_batch([_made_up(tokens // 2, config.hidden_size)], self._device, 2)  # the depth on average
        for _ in range(2):  # the first allocates
            begin = time.monotonic()
            learner.step(batch, 0.0)
        step_s = (time.monotonic() - begin) * TOKENS / tokens
        steps = self._plan.minutes * 60 * (1 - self.answering) / max(step_s, 1e-6)
        known, share = REACHED
        return (
            f"about {steps:,.0f} steps fit into this time. After {known:,} the head of a small target was right "
            f"{share:.0%} of the time; published heads, at 60 to 85%, learned from half a million answers"
        )  # arXiv 2503.01840

    def shape(self, round_us: float) -> DraftShape:
        return DraftShape(int(load_config(self._plan.target).get_text_config().hidden_size), 1)

    def start(self, shape: DraftShape) -> str:
        return "random weights of an EAGLE-3 head under the target's output layer"

    def first(self, shape: DraftShape, answers: Sequence[TargetAnswer]) -> HeadStudent:
        whole = load_model(self._plan.target, CPU, torch.float32)
        vocabulary = int(load_config(self._plan.target).get_text_config().vocab_size)
        size = min(COVERED, vocabulary)
        return first_head(whole, kept_most_frequent(self._work.head(size), answers, size, vocabulary))

    def batch(self, answers: Sequence[TargetAnswer], done: float) -> HeadBatch:
        return head_batch(answers, self._device, 1 + sum(done >= share for share in DEEPER))

    def save(self, model: nn.Module, out: Path) -> None:
        assert isinstance(model, HeadStudent)
        save_head(model, out, self._plan.target)

    @torch.no_grad()
    def judge(self, model: nn.Module, held: Sequence[TargetAnswer]) -> tuple[list[AnswerRanks], tuple[float, ...]]:
        """With the noise that the answers were drawn with. By depth: after right first choices."""
        assert isinstance(model, HeadStudent)
        readings, ids = list[AnswerRanks](), (model.d2t.cpu() + torch.arange(len(model.d2t)))
        right, asked = [0] * STEPS, [0] * STEPS
        for one in held:
            batch = head_batch([one], model.device, whole=True)
            places = [len(one.job.prompt.tokens) + at for at in range(len(one.tokens))]
            heat = one.job.temperature
            noise = gumbel(one.job.seed, places, ids) if heat else torch.zeros(1)
            best = [
                ids[(step.float().cpu() / (heat or 1.0) + noise).topk(RANKS).indices]
                for step in model(batch.tokens, batch.states, batch.kept, batch.mask, STEPS)
            ]
            tokens = torch.from_numpy(one.tokens.astype(np.int64))
            hits = [found == tokens[:, None] for found in best]
            readings.append(one.read(torch.where(hits[0].any(1), hits[0].int().argmax(1) + 1, 0).numpy()))
            reached = torch.ones(len(tokens), dtype=torch.bool)
            for depth, hit in enumerate(hits):
                mine = reached[: len(tokens) - depth]
                asked[depth] += int(mine.sum())
                reached = mine & hit[depth:, 0]
                right[depth] += int(reached.sum())
        return readings, tuple(n / max(1, of) for n, of in zip(right, asked, strict=True))

    def step_us(self, directory: str) -> float:
        """Time of a step, measured with the target that shares its embedding."""
        plan, threads = self._plan, max(1, len(self._plan.cpus) - 1)
        target, _ = build_target(plan.target, EngineOptions(device=str(self._device), threads=threads))
        return measure_draft(build_head(directory, target, plan.target), stopwatch(self._device, threads))[1]
