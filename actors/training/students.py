"""The student of a distillation is the draft: it begins as a part of its target, is written to a directory, and judged
there as a drafter would serve it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from actors.draft_timing import measure_draft
from actors.engines.build import build_draft
from actors.engines.drafts.replay import replay_draft
from actors.engines.weights.draft_vocabulary import with_part_head
from actors.engines.weights.loading import load_model, load_tokenizer
from actors.records import LoggedRequest
from actors.training.answers import Answer, Prompt
from actors.training.head import head_tokens, kept_most_frequent
from actors.training.plan import Judgement, Plan, Reading
from actors.training.start import Shape, first_draft
from actors.training.workspace import Workspace
from protocols.messages import Sampling

CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Students:
    """The drafts of one training. ``shown``: the prompts to learn from; ``answers``: to those, ``held``: to the
    prompts kept apart; ``device``: a drafter's; ``clock``: by which its steps are timed."""

    plan: Plan
    work: Workspace
    prompts: Sequence[Prompt]
    shown: Sequence[Prompt]
    answers: Sequence[Answer]
    held: Sequence[Answer]
    device: str
    clock: Callable[[], float]

    def begin(self, shape: Shape) -> nn.Module:
        """``--init``'s draft, or one cut from the target."""
        if self.plan.init:
            return load_model(self.plan.init, CPU, torch.float32).requires_grad_(True)
        model = first_draft(load_model(self.plan.target, CPU, torch.float32), shape)
        text: Any = model.config.get_text_config()  # type: ignore[operator,union-attr]
        size, whole = head_tokens(model.config), int(text.vocab_size)
        if size < whole:
            tokens = kept_most_frequent(self.work.head(size), self.shown, self.answers, size, whole)
            model = with_part_head(model, tokens)
        return model

    def save(self, model: nn.Module, out: Path) -> None:
        """As any other model's directory: bfloat16 weights, configuration, the target's tokenizer."""
        kept: Any = copy.deepcopy(model).to("cpu", torch.bfloat16)
        kept.save_pretrained(out)
        load_tokenizer(self.plan.target).save_pretrained(out)

    def judge(self, model: nn.Module) -> Judgement:
        """How it reads the answers to the prompts kept apart, and what its steps take."""
        with TemporaryDirectory() as directory:
            self.save(model, Path(directory))
            return self.judge_saved(directory)

    def judge_saved(self, directory: str) -> Judgement:
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
            Reading(temperature=text.sampling.temperature, task=text.task, ranks=tuple(ranks.tolist()))
            for text, ranks in zip(texts, replay_draft(draft, texts), strict=True)
        ]
        found.sort(key=lambda one: (one.temperature, one.task))
        torch.set_num_threads(len(self.plan.cpus))  # a draft on a CPU is built with one
        return Judgement(measure_draft(draft, self.clock), found)
