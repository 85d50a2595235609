"""From a target and prompts to an EAGLE-3 head: states kept while answers are written, then training on them alone.

The head learns as it will draft: the second and third token of a round from states of its own (training-time test,
arXiv 2503.01840). Its output layer holds the target's rows of the most frequent tokens, and is not trained.
"""

from __future__ import annotations

import hashlib
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from actors.draft_timing import measure_draft
from actors.engines.build import build_target
from actors.engines.heads.build import build_head
from actors.engines.sampling.noise import gumbel
from actors.engines.targets.states import States
from actors.engines.targets.target import Target
from actors.engines.weights.loading import load_config, load_model
from actors.models import common_prefix
from actors.training.answers import TOP, TargetAnswer, TrainingPrompt
from actors.training.batches import TrainingBatch, batch_of, groups
from actors.training.distill import ANSWERING, Distillation, Material
from actors.training.draft_training import DraftTraining, train, trained_seconds
from actors.training.head import coverage, kept_most_frequent
from actors.training.head_student import STEPS, HeadStudent, first_head, new_head, save_head
from actors.training.plan import AnswerRanks, Progress, TrainingResult
from actors.training.shapes import stopwatch
from actors.training.start import DraftShape
from protocols.errors import ConfigError

COVERED = 8192  # tokens of the output layer; what a small target's head takes longest for is its own
TOKENS = 2048  # of a batch
PROMPTS = 512  # with states at hand for texts that begin alike
RANKS = 8  # of the head's choices that are told apart
REACHED = (250, 0.44)  # steps, and how often the first token then was right: docs/experiments/heads.md
DEEPER = (0.4, 0.75)  # of the time: before these a round in training has one token, and two; a step of one costs half
CPU = torch.device("cpu")


def taps_of(layers: int) -> tuple[int, ...]:
    """The layers that published heads read the input of."""
    return 2, layers // 2, layers - 3


class Features:
    """States of whole texts on disk, in float16, by the text."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    def _place(self, text: Sequence[int]) -> Path:
        return self._directory / f"{hashlib.sha256(np.array(text, np.int64).tobytes()).hexdigest()[:32]}.npy"

    def keep(self, text: Sequence[int], states: NDArray[np.float16]) -> None:
        place = self._place(text)
        half = place.with_suffix(".part")
        with half.open("wb") as file:
            np.save(file, states)
        half.replace(place)

    def of(self, text: Sequence[int]) -> NDArray[np.float16]:
        found: NDArray[np.float16] = np.load(self._place(text), mmap_mode="r")
        return found


class Watched:
    """A target of which the states of every text are kept when it ends."""

    def __init__(self, target: Target, features: Features, layers: Sequence[int]) -> None:
        self._target, self._features = target, features
        self._states: States = target.keep_states(layers)
        self._texts: dict[int, list[int]] = {}  # by request
        self._begun: dict[int, NDArray[np.float16] | None] = {}  # by request: the states of its prompt
        self._prompts = deque[tuple[tuple[int, ...], NDArray[np.float16]]](maxlen=PROMPTS)  # with their states

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def open(self, prompt: Sequence[int], *arguments: Any, **options: Any) -> int:
        handle = self._target.open(prompt, *arguments, **options)
        self._texts[handle] = list(prompt)
        return handle

    def prefill(self, handle: int, limit: int | None = None) -> Any:
        outcome = self._target.prefill(handle, limit)
        if outcome is not None:
            prompt = self._texts[handle]
            found = self._states.take(handle)
            self._begun[handle] = whole = None if found is None else self._whole(prompt, *found)
            if whole is not None:
                self._prompts.append((tuple(prompt), whole))
            prompt.extend(outcome.tokens)
        return outcome

    def verify(self, windows: Sequence[Any]) -> Any:
        outcomes = self._target.verify(windows)
        for window, outcome in zip(windows, outcomes, strict=True):
            self._texts[window.handle].extend(outcome.tokens)
        return outcomes

    def close(self, handle: int) -> None:
        text, begun, found = self._texts.pop(handle), self._begun.pop(handle, None), self._states.take(handle)
        self._target.close(handle)
        if begun is not None:
            rest = [found[1].half().cpu().numpy()] if found is not None else []
            self._features.keep(text, np.concatenate([begun, *rest]))

    def _whole(self, text: list[int], start: int, tapped: Tensor) -> NDArray[np.float16] | None:
        """With the states of a beginning that was computed for an earlier text; None: there are none."""
        own: NDArray[np.float16] = tapped.half().cpu().numpy()
        if start == 0:
            return own
        for prompt, states in reversed(self._prompts):
            if len(states) >= start and common_prefix(prompt[:start], text[:start]) == start:
                return np.concatenate([states[:start], own])
        return None


@dataclass(frozen=True, slots=True)
class HeadBatch(TrainingBatch):
    """Its positions stand there ``depth`` times: as first token of a round, as second, as third."""

    states: Tensor  # (rows, length, states): the target's
    depth: int

    def logits(self, model: nn.Module) -> Tensor:
        made: Tensor = model(self.tokens, self.states, self.kept, self.mask, self.depth)
        return made.flatten(0, 1)


def head_batch(
    prompts: Sequence[TrainingPrompt],
    answers: Sequence[TargetAnswer],
    features: Features,
    device: torch.device,
    depth: int = STEPS,
    whole: bool = False,
) -> HeadBatch:
    """``whole``: with all positions."""
    plain = batch_of(prompts, answers, device, whole)
    texts = [[*prompts[one.job.prompt].tokens, *one.tokens.tolist()] for one in answers]
    rows = [torch.from_numpy(np.array(features.of(text))) for text in texts]
    states = torch.zeros(*plain.tokens.shape, rows[0].shape[1])
    for row, mine in zip(states, rows, strict=True):
        row[: len(mine)] = mine[: len(row)]
    ids, logprobs, heat = plain.ids.repeat(depth, 1), plain.logprobs.repeat(depth, 1), plain.temperature.repeat(depth)
    return HeadBatch(
        plain.tokens, plain.kept, plain.mask, plain.answers, ids, logprobs, heat, states=states.to(device), depth=depth
    )


def _made_up(tokens: int, width: int, device: torch.device) -> HeadBatch:
    """A text of ``tokens`` tokens, of which the second half is an answer; rounds as deep as in training on average."""
    count, depth = tokens // 2, 2
    ids = torch.arange(TOP, device=device).expand(count * depth, -1)
    return HeadBatch(
        torch.zeros(1, tokens, dtype=torch.int64, device=device),
        count,
        torch.ones(1, count, dtype=torch.bool, device=device),
        torch.zeros(count, dtype=torch.int64, device=device),
        ids,
        torch.full(ids.shape, -5.0, device=device),
        torch.ones(count * depth, device=device),
        states=torch.randn(1, tokens, 3 * width, device=device),
        depth=depth,
    )


class HeadDistillation(Distillation):
    """A run of a plan of kind "head"."""

    def run(self) -> TrainingResult:
        self.features = Features(self.work.features)
        given = self.ask_target()
        usable = [one for one in given.answers.answers if self._has(given, one)]
        held = [one for one in given.held.answers if self._has(given, one)]
        if not usable or not held:
            raise ConfigError(f"no states of {self.plan.target} were kept; choose another --out")
        whole = load_model(self.plan.target, CPU, torch.float32)
        shown = [given.prompts[i] for i in given.learned]
        vocabulary = int(load_config(self.plan.target).get_text_config().vocab_size)
        size = min(COVERED, vocabulary)
        ids = kept_most_frequent(self.work.head(size), shown, usable, size, vocabulary)
        head = first_head(whole, ids)
        del whole
        self.report(Progress("start", f"an EAGLE-3 head of {sum(p.numel() for p in head.parameters()) / 1e6:.1f}M"))
        before = self.judge(head, given, held)[0]
        learner = self._trained(head, given, usable)
        self.report(Progress("report", "reading the answers kept apart"))
        averaged = learner.averaged
        assert isinstance(averaged, HeadStudent)
        save_head(averaged, self.work.out, self.plan.target)
        after, depths = self.judge(averaged, given, held)
        return TrainingResult(
            shape=f"EAGLE-3 {given.shape}",
            parameters=sum(p.numel() for p in averaged.parameters()),
            start="random weights under the target's output layer",
            prompts=len(given.learned),
            kept_apart=len(self.apart),
            answers=len(usable),
            tokens=sum(len(one.tokens) for one in usable),
            head=len(ids) if len(ids) < vocabulary else 0,
            covered=coverage(held, None if len(ids) == vocabulary else _covered(ids, vocabulary)),
            steps=learner.steps,
            seconds=learner.seconds,
            round_us=given.round_us,
            step_us=self._head_step_us(),
            before=before,
            after=after,
            depths=depths,
        )

    def watched(self, target: Target) -> Any:
        return Watched(target, self.features, taps_of(target.engine.trunk().layers))

    def expected(self, target: Target) -> str:
        """By a step on made-up states, an eighth of a batch."""
        config, ids = load_config(self.plan.target).get_text_config(), np.arange(min(COVERED, target.info.vocab_size))
        learner = DraftTraining(new_head(config, torch.zeros(len(ids), config.hidden_size), ids), self.device)
        tokens = TOKENS // 8
        batch = _made_up(tokens, config.hidden_size, self.device)
        for _ in range(2):  # the first allocates
            begin = self.timer()
            learner.step(batch, 0.0)
        step_s = (self.timer() - begin) * TOKENS / tokens
        steps = self.plan.minutes * 60 * (1 - ANSWERING) / max(step_s, 1e-6)
        known, share = REACHED
        return (
            f"about {steps:,.0f} steps fit into this time. After {known:,} the head of a small target was right "
            f"{share:.0%} of the time; published heads, at 60 to 85%, learned from half a million answers"
        )  # arXiv 2503.01840

    def shape(self, took_us: float) -> DraftShape:
        return DraftShape(int(load_config(self.plan.target).get_text_config().hidden_size), 1)

    def _has(self, given: Material, one: TargetAnswer) -> bool:
        try:
            self.features.of([*given.prompts[one.job.prompt].tokens, *one.tokens.tolist()])
        except OSError:
            return False
        return True

    def _trained(self, head: HeadStudent, given: Material, answers: Sequence[TargetAnswer]) -> DraftTraining:
        torch.set_num_threads(len(self.plan.cpus))
        checkpoint = self.work.checkpoint
        learner = DraftTraining(head, self.device)
        until = trained_seconds(checkpoint) + given.training_s

        def depth() -> int:
            return 1 + sum(learner.seconds >= share * until for share in DEEPER)

        together = groups(given.prompts, answers, len(head.d2t) * STEPS, TOKENS)
        batches = self._batches(given.prompts, together, random.Random(int(trained_seconds(checkpoint))), depth)
        train(learner, batches, until, checkpoint, self.report, self.timer)
        return learner

    def _batches(
        self,
        prompts: Sequence[TrainingPrompt],
        together: list[list[TargetAnswer]],
        order: random.Random,
        depth: Callable[[], int],
    ) -> Iterator[HeadBatch]:
        while True:
            order.shuffle(together)
            for members in together:
                yield head_batch(prompts, members, self.features, self.device, depth())

    @torch.no_grad()
    def judge(
        self, head: HeadStudent, given: Material, held: Sequence[TargetAnswer]
    ) -> tuple[list[AnswerRanks], tuple[float, ...]]:
        """How the head reads answers kept apart, with the noise that they were drawn with: the ranks of their tokens
        among its first choices; and how often the first choice is right by depth, behind right ones."""
        readings, ids = list[AnswerRanks](), (head.d2t.cpu() + torch.arange(len(head.d2t)))
        right, asked = [0] * STEPS, [0] * STEPS
        for one in held:
            prompt = given.prompts[one.job.prompt]
            batch = head_batch(given.prompts, [one], self.features, head.device, whole=True)
            places = [len(prompt.tokens) + at for at in range(len(one.tokens))]
            heat = one.job.temperature
            noise = gumbel(one.job.seed, places, ids) if heat else torch.zeros(1)
            best = [
                ids[(step.float().cpu() / (heat or 1.0) + noise).topk(RANKS).indices]
                for step in head(batch.tokens, batch.states, batch.kept, batch.mask, STEPS)
            ]
            tokens = torch.from_numpy(one.tokens.astype(np.int64))
            hits = [found == tokens[:, None] for found in best]
            ranks = torch.where(hits[0].any(1), hits[0].int().argmax(1) + 1, 0)
            readings.append(AnswerRanks(temperature=heat, task=prompt.task, ranks=tuple(ranks.tolist())))
            reached = torch.ones(len(tokens), dtype=torch.bool)
            for depth, hit in enumerate(hits):
                mine = reached[: len(tokens) - depth]
                asked[depth] += int(mine.sum())
                reached = mine & hit[depth:, 0]
                right[depth] += int(reached.sum())
        shares = tuple(n / max(1, of) for n, of in zip(right, asked, strict=True))
        return sorted(readings, key=lambda one: (one.temperature, one.task)), shares

    def _head_step_us(self) -> float:
        """Microseconds of a step of the head that was written, beside the target that shares its embedding."""
        plan = self.plan
        target, _ = build_target(plan.target, str(self.device), plan.dtype, 0, max(1, len(plan.cpus) - 1), ())
        head = build_head(str(self.work.out), target, plan.target)
        return measure_draft(head, stopwatch(self.device, max(1, len(plan.cpus) - 1)))[1]


def _covered(ids: NDArray[np.int64], vocabulary: int) -> Any:
    from actors.engines.weights.draft_vocabulary import DraftVocabulary

    return DraftVocabulary(ids, vocabulary)
