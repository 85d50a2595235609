"""Drafts that are models of their own: shape, first weights, directory, and how they read the answers kept apart."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from actors.draft_timing import measure_draft
from actors.engines.build import EngineOptions, build_draft
from actors.engines.drafts.replay import replay_draft
from actors.engines.targets.states import States
from actors.engines.targets.target import Target
from actors.engines.text.tokenizer import tokenizer_digest
from actors.engines.weights.draft_vocabulary import with_part_head
from actors.engines.weights.loading import load_config, load_model, load_tokenizer
from actors.files import whole_file
from actors.records import LoggedRequest
from actors.training.answers import TargetAnswer
from actors.training.batches import TOKENS, TrainingBatch, batch_of
from actors.training.covered import head_tokens, kept_most_frequent
from actors.training.plan import AnswerRanks, Progress, Report, TrainingPlan
from actors.training.shapes import choose_shape, stopwatch
from actors.training.start import DraftShape, draft_config, first_draft, is_cut
from actors.training.workspace import Workspace
from protocols.errors import ConfigError
from protocols.messages import Sampling

CPU = torch.device("cpu")


class DraftModels:
    """The drafts of one plan."""

    answering = 1 / 3  # share of the time; the rest is training
    tokens = TOKENS  # a batch's tokens
    depth = 1  # logits of a position
    states: States | None = None  # the target's, that it reads

    def __init__(self, plan: TrainingPlan, work: Workspace, device: torch.device, report: Report) -> None:
        """ConfigError for a shape that cannot be."""
        self._plan, self._work, self._device, self._report = plan, work, device, report
        self._drafter = "cpu" if device.type == "cpu" else str(device)
        if plan.init and plan.shape != "auto":
            raise ConfigError(f"the draft {plan.init} has a shape already; leave --shape out, or --init")
        if plan.shape != "auto":
            draft_config(load_config(plan.target), DraftShape.parse(plan.shape))

    def meet(self, target: Target) -> str:
        """Prepare it for answers. Returns a forecast for the first minute; empty: there is none."""
        plan = self._plan
        if plan.init and tokenizer_digest(load_tokenizer(plan.init)) != target.info.tokenizer_digest:
            raise ConfigError(
                f"the tokenizer of {plan.init} is not that of {plan.target}; give --init a draft of this target"
            )
        return ""

    def shape(self, round_us: float) -> DraftShape:
        """The shape that was asked for, or that an earlier run has chosen, or the one by rule."""
        plan, file = self._plan, self._work.shape
        if plan.shape != "auto":
            return DraftShape.parse(plan.shape)
        if plan.init:
            text = load_config(plan.init).get_text_config()
            return DraftShape(int(text.hidden_size), int(text.num_hidden_layers))
        if not file.is_file():
            chosen = choose_shape(
                load_config(plan.target),
                load_tokenizer(plan.target),
                round_us,
                self.step_us,
                lambda text: self._report(Progress("shape", text)),
            )
            with whole_file(file) as opened:
                opened.write(str(chosen).encode())
        return DraftShape.parse(file.read_text())

    def start(self, shape: DraftShape) -> str:
        """The source of the first weights."""
        if self._plan.init:
            return "a draft"
        return "layers of the target" if is_cut(load_config(self._plan.target), shape) else "the target's embedding"

    def first(self, shape: DraftShape, answers: Sequence[TargetAnswer]) -> nn.Module:
        """The draft that ``--init`` names, or a new one of this shape that copies weights of the target where they fit.
        The output layer covers the most frequent tokens of ``answers``."""
        if self._plan.init:
            return load_model(self._plan.init, CPU, torch.float32).requires_grad_(True)
        model = first_draft(load_model(self._plan.target, CPU, torch.float32), shape)
        text: Any = model.config.get_text_config()  # type: ignore[operator,union-attr]
        size, whole = head_tokens(model.config), int(text.vocab_size)
        if size < whole:
            model = with_part_head(model, kept_most_frequent(self._work.head(size), answers, size, whole))
        return model

    def batch(self, answers: Sequence[TargetAnswer], done: float) -> TrainingBatch:
        """``done``: the share of the training's time that is over."""
        return batch_of(answers, self._device)

    def save(self, model: nn.Module, out: Path) -> None:
        """As any other model's directory: bfloat16 weights, configuration, the target's tokenizer."""
        kept: Any = copy.deepcopy(model).to("cpu", torch.bfloat16)
        kept.save_pretrained(out)
        load_tokenizer(self._plan.target).save_pretrained(out)

    def judge(self, model: nn.Module, held: Sequence[TargetAnswer]) -> tuple[list[AnswerRanks], tuple[float, ...]]:
        """Its reading of the answers kept apart, by the engine that serves it; by depth, nothing."""
        with TemporaryDirectory() as directory:
            self.save(model, Path(directory))
            draft = build_draft(directory, EngineOptions(self._drafter))
            found = replay_draft(draft, [_logged(one) for one in held])
        torch.set_num_threads(len(self._plan.cpus))  # a draft on a CPU is built with one
        return [one.read(ranks) for one, ranks in zip(held, found, strict=True)], ()

    def step_us(self, directory: str) -> float:
        """Microseconds of a step of a draft on disk, as it is served."""
        draft = build_draft(directory, EngineOptions(self._drafter))
        return measure_draft(draft, stopwatch(self._device, max(1, len(self._plan.cpus) - 1)))[1]


def _logged(one: TargetAnswer) -> LoggedRequest:
    sampling = Sampling(temperature=one.job.temperature, seed=one.job.seed)
    return LoggedRequest(prompt=one.job.prompt.tokens, text=tuple(one.tokens.tolist()), sampling=sampling)
