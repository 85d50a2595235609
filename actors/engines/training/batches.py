"""Answers as tensors: rows of like length, padded behind, and the places at which the draft is to predict."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from actors.engines.training.answers import Answer, Prompt

TOKENS = 4096  # of a batch, prompts and padding included
LOGITS = 1 << 26  # elements at most: 256 MB in float32, of which training holds a few copies


@dataclass(frozen=True, slots=True)
class Batch:
    """``tokens`` (rows, length). The last ``kept`` places' logits are wanted, those of ``mask`` (rows, kept); the rest
    has an entry for each True in the mask, n in all: ``answers`` (n,) the target's token, ``ids`` and ``logprobs``
    (n, k) its likeliest, ``temperature`` (n,)."""

    tokens: Tensor
    kept: int
    mask: Tensor
    answers: Tensor
    ids: Tensor
    logprobs: Tensor
    temperature: Tensor

    def logits(self, model: nn.Module) -> Tensor:
        """float32 (n, columns of the head). Padding stands behind the text, where causal attention does not see it."""
        out: Tensor = model(input_ids=self.tokens, use_cache=False, logits_to_keep=self.kept).logits
        return out[:, -self.kept :][self.mask].float()


def groups(
    prompts: Sequence[Prompt], answers: Sequence[Answer], columns: int, tokens: int = TOKENS
) -> list[list[Answer]]:
    """Answers of like length, as many together as make a batch. ``columns``: of the head."""
    most = min(tokens, max(1, LOGITS // columns))
    found: list[list[Answer]] = []
    longest = 0
    for answer in sorted(answers, key=lambda a: len(prompts[a.job.prompt].tokens) + len(a.tokens)):
        length = len(prompts[answer.job.prompt].tokens) + len(answer.tokens)
        longest = max(longest, length) if found else length
        if not found or longest * (len(found[-1]) + 1) > most:
            found.append([])
            longest = length
        found[-1].append(answer)
    return found


def batch_of(prompts: Sequence[Prompt], answers: Sequence[Answer], device: torch.device) -> Batch:
    starts = [len(prompts[a.job.prompt].tokens) for a in answers]
    lengths = [start + len(a.tokens) - 1 for start, a in zip(starts, answers, strict=True)]  # the last has no successor
    tokens = np.zeros((len(answers), max(lengths)), dtype=np.int64)
    mask = np.zeros(tokens.shape, dtype=np.bool_)
    for row, (answer, start, length) in enumerate(zip(answers, starts, lengths, strict=True)):
        tokens[row, :start] = prompts[answer.job.prompt].tokens
        tokens[row, start:length] = answer.tokens[:-1]
        mask[row, start - 1 : length] = True
    kept = tokens.shape[1] - min(starts) + 1
    temperature = np.concatenate([np.full(len(a.tokens), a.job.temperature, dtype=np.float32) for a in answers])
    parts = (
        tokens,
        mask[:, -kept:],
        np.concatenate([a.tokens for a in answers]).astype(np.int64),
        np.concatenate([a.ids for a in answers]).astype(np.int64),
        np.concatenate([a.logprobs for a in answers]).astype(np.float32),
        temperature,
    )
    at, shown, chosen, ids, logprobs, heat = (torch.from_numpy(part).to(device) for part in parts)
    return Batch(at, kept, shown, chosen, ids, logprobs, heat)


def epochs(
    prompts: Sequence[Prompt], answers: Sequence[Answer], columns: int, device: torch.device, seed: int
) -> Iterator[Batch]:
    """Batches in random order, again and again."""
    together = groups(prompts, answers, columns)
    order = random.Random(seed)
    while True:
        order.shuffle(together)
        for members in together:
            yield batch_of(prompts, members, device)
