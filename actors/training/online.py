"""A draft that learns from what is served: the trainer of :mod:`actors.learner`."""

from __future__ import annotations

import copy
import random
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from actors.engines.build import EngineOptions, build_draft
from actors.engines.drafts.draft import Draft
from actors.engines.drafts.replay import replay_draft
from actors.engines.heads.kinds import configuration, kind_of
from actors.engines.weights.draft_vocabulary import head_size
from actors.engines.weights.loading import load_model, load_tokenizer
from actors.records import LoggedRequest
from actors.training.answers import Job, TargetAnswer, TrainingPrompt
from actors.training.batches import LOGITS, TrainingBatch, batch_of, groups
from actors.training.draft_training import DraftTraining, halfway
from actors.training.losses import cross_entropy
from protocols.errors import ModelError

TOKENS = 2048  # a step's tokens, half of what distilling takes: a second of one core for a draft of 1.5M parameters
RATE = 0.3  # share of the rate that a draft is made with: its knowledge is to stay
LOADED = 2  # drafts to replay with: incumbent and candidate
CPU = torch.device("cpu")


class OnlineTrainer:
    """:class:`actors.learner.loop.Trainer` on one thread of the CPU."""

    def __init__(self, draft: str, dtype: str) -> None:
        """``dtype``: of the drafters' weights, as their settings name it. ModelError if there is no such model."""
        if kind := kind_of(configuration(draft)):
            raise ModelError(
                f"{draft} is a head ({kind}), and a learner trains draft models alone: give it one, or train the head "
                "further by `duoactor distill --kind head --resume` and swap it in by `duoactor swap head DIRECTORY`"
            )
        torch.set_num_threads(1)
        self._draft, self._dtype = draft, dtype
        self._random = random.Random(0)
        self._loaded: OrderedDict[str, Draft] = OrderedDict()  # the one used longest ago first
        self.info = self._served("").info
        self.begin("")

    def begin(self, directory: str) -> None:
        model = load_model(directory or self._draft, CPU, torch.float32).requires_grad_(True)
        self._learner = DraftTraining(model, CPU)
        self._columns = head_size(model.config)
        self._incumbent = {name: weight.clone() for name, weight in model.state_dict().items()}

    def learn(self, texts: Sequence[LoggedRequest]) -> int:
        vocabulary = self.info.vocab_size
        room = min(self.info.max_context, TOKENS)
        most = max(1, LOGITS // 4 // self._columns)  # places of one text: training holds several copies of their logits
        answers: list[TargetAnswer] = []
        tokens = 0
        for text in self._random.choices(texts, k=len(texts)):
            cut = text.text[: min(most, room - len(text.prompt))] if len(text.prompt) < room else ()
            if not cut or max(*text.prompt, *cut) >= vocabulary:
                continue
            answers.append(_answer(text, cut))
            tokens += len(text.prompt) + len(cut)
            if tokens >= 4 * TOKENS:  # sorting needs many texts: like lengths go together
                break
        if not answers:
            return sum(len(text.text) for text in texts)
        batch = batch_of(self._random.choice(groups(answers, self._columns, TOKENS)), CPU)
        self._learner.step_on(batch, lambda logits: self._loss(logits, batch), RATE)
        return len(batch.answers)

    def _loss(self, logits: torch.Tensor, batch: TrainingBatch) -> torch.Tensor:
        """Tokens that the head does not cover cannot be learned, and are left out."""
        tokens = self._learner.columns[batch.answers]
        covered = tokens >= 0
        if not covered.any():
            return logits.new_zeros(())
        found = cross_entropy(logits[covered], tokens[covered], batch.temperature[covered])
        return covered.float().mean() * found

    def save(self, directory: Path) -> None:
        candidate = copy.deepcopy(self._learner.averaged)
        halfway(candidate, self._incumbent)
        candidate.save_pretrained(directory)  # type: ignore[operator]
        load_tokenizer(self._draft).save_pretrained(directory)
        self._loaded.pop(str(directory), None)

    def hits(self, directory: str, text: LoggedRequest) -> int:
        (ranks,) = replay_draft(self._served(directory), [text])
        return int(np.count_nonzero(ranks == 1))

    def _served(self, directory: str) -> Draft:
        if directory not in self._loaded:
            self._loaded[directory] = build_draft(directory or self._draft, EngineOptions(dtype=self._dtype))
        self._loaded.move_to_end(directory)
        while len(self._loaded) > LOADED:
            self._loaded.popitem(last=False)
        return self._loaded[directory]


def _answer(text: LoggedRequest, tokens: Sequence[int]) -> TargetAnswer:
    """Its alternatives are unknown."""
    job = Job(TrainingPrompt(text.prompt), text.sampling.temperature, text.sampling.seed)
    none = np.zeros((len(tokens), 0))
    return TargetAnswer(job, np.array(tokens, dtype=np.int32), none.astype(np.int32), none.astype(np.float16))
