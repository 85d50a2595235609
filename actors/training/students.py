"""The draft in training: its first weights, its directory, and how it reads the answers kept apart."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from actors.engines.build import build_draft
from actors.engines.drafts.replay import replay_draft
from actors.engines.weights.draft_vocabulary import with_part_head
from actors.engines.weights.loading import load_model, load_tokenizer
from actors.records import LoggedRequest
from actors.training.answers import TargetAnswer, TrainingPrompt
from actors.training.head import head_tokens, kept_most_frequent
from actors.training.plan import AnswerRanks, TrainingPlan
from actors.training.start import DraftShape, first_draft
from actors.training.workspace import Workspace
from protocols.messages import Sampling

CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Students:
    """The drafts of one training. ``held``: answers to the prompts kept apart. ``device``: a drafter's."""

    plan: TrainingPlan
    work: Workspace
    prompts: Sequence[TrainingPrompt]
    held: Sequence[TargetAnswer]
    device: str

    def begin(self, shape: DraftShape, shown: Sequence[TrainingPrompt], answers: Sequence[TargetAnswer]) -> nn.Module:
        """``--init``'s draft, or one of that shape that holds what it can of the target. The output layer covers what
        occurs most in ``shown`` and ``answers``."""
        if self.plan.init:
            return load_model(self.plan.init, CPU, torch.float32).requires_grad_(True)
        model = first_draft(load_model(self.plan.target, CPU, torch.float32), shape)
        text: Any = model.config.get_text_config()  # type: ignore[operator,union-attr]
        size, whole = head_tokens(model.config), int(text.vocab_size)
        if size < whole:
            model = with_part_head(model, kept_most_frequent(self.work.head(size), shown, answers, size, whole))
        return model

    def save(self, model: nn.Module, out: Path) -> None:
        """As any other model's directory: bfloat16 weights, configuration, the target's tokenizer."""
        kept: Any = copy.deepcopy(model).to("cpu", torch.bfloat16)
        kept.save_pretrained(out)
        load_tokenizer(self.plan.target).save_pretrained(out)

    def judge(self, model: nn.Module) -> list[AnswerRanks]:
        """How it reads the answers to the prompts kept apart."""
        with TemporaryDirectory() as directory:
            self.save(model, Path(directory))
            return self.read(directory)

    def read(self, directory: str) -> list[AnswerRanks]:
        """The same of a draft on disk, with the engine that would serve it."""
        draft = build_draft(directory, self.device, "auto", 0, 1)
        texts = [
            LoggedRequest(
                prompt=self.prompts[one.job.prompt].tokens,
                text=tuple(one.tokens.tolist()),
                sampling=Sampling(temperature=one.job.temperature, seed=one.job.seed),
                task=self.prompts[one.job.prompt].task,
            )
            for one in self.held
        ]
        found = [
            AnswerRanks(temperature=text.sampling.temperature, task=text.task, ranks=tuple(ranks.tolist()))
            for text, ranks in zip(texts, replay_draft(draft, texts), strict=True)
        ]
        torch.set_num_threads(len(self.plan.cpus))  # a draft on a CPU is built with one
        return sorted(found, key=lambda one: (one.temperature, one.task))
