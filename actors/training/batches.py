"""Batches of answers for training: rows of similar length, padded at the end, and the positions to be predicted."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from actors.training.answers import TargetAnswer

TOKENS = 4096  # a batch's tokens, prompts and padding included
LOGITS = 1 << 26  # most elements of a batch's logits: 256 MB in float32, of which training holds a few copies
# Lengths and numbers of positions are multiples of it: oneDNN compiles a product for each size, and keeps it. Without
# that a training grew by 1 MB with each new number of rows (docs/experiments/heads.md).
GRAIN = 64


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """Texts, and n positions in them at which the draft learns."""

    tokens: Tensor  # (rows, length)
    kept: int  # only this many last positions of each row have logits
    mask: Tensor  # (rows, kept): True at the n positions
    answers: Tensor  # (n,): the target's token
    ids: Tensor  # (n, k): the target's likeliest tokens
    logprobs: Tensor  # (n, k): of those
    temperature: Tensor  # (n,): of the answer

    def logits(self, model: nn.Module) -> Tensor:
        """``(n, columns of the head)``. Padding follows the text, so that causal attention does not see it."""
        out: Tensor = model(input_ids=self.tokens, use_cache=False, logits_to_keep=self.kept).logits
        return out[:, -self.kept :][self.mask]


def groups(answers: Sequence[TargetAnswer], columns: int, tokens: int = TOKENS) -> list[list[TargetAnswer]]:
    """Answers of similar length, in groups that make a batch each. ``columns``: of the draft's head."""
    most = min(tokens, max(1, LOGITS // columns))
    found: list[list[TargetAnswer]] = []
    longest = 0
    for answer in sorted(answers, key=_length):
        length = _whole_grains(_length(answer) - 1)
        longest = max(longest, length) if found else length
        if not found or longest * (len(found[-1]) + 1) > most:
            found.append([])
            longest = length
        found[-1].append(answer)
    return found


def _length(answer: TargetAnswer) -> int:
    return len(answer.job.prompt.tokens) + len(answer.tokens)


def _whole_grains(count: int) -> int:
    return -(-count // GRAIN) * GRAIN


def batch_of(answers: Sequence[TargetAnswer], device: torch.device, whole: bool = False) -> TrainingBatch:
    """Positions beyond a multiple of ``GRAIN`` are left out, the last ones, unless ``whole``."""
    starts = [len(a.job.prompt.tokens) for a in answers]
    lengths = [start + len(a.tokens) - 1 for start, a in zip(starts, answers, strict=True)]  # the last has no successor
    tokens = np.zeros((len(answers), _whole_grains(max(lengths))), dtype=np.int64)
    mask = np.zeros(tokens.shape, dtype=np.bool_)
    for row, (answer, start, length) in enumerate(zip(answers, starts, lengths, strict=True)):
        tokens[row, :length] = answer.text[:-1]
        mask[row, start - 1 : length] = True
    least = tokens.shape[1] - min(starts) + 1
    kept = max(least, min(tokens.shape[1] - 1, _whole_grains(least)))
    count = int(mask.sum())
    count = count if whole or count < GRAIN else count // GRAIN * GRAIN
    mask.flat[np.flatnonzero(mask)[count:]] = False
    temperature = np.concatenate([np.full(len(a.tokens), a.job.temperature, dtype=np.float32) for a in answers])
    parts = (
        tokens,
        mask[:, -kept:],
        np.concatenate([a.tokens for a in answers])[:count].astype(np.int64),
        np.concatenate([a.ids for a in answers])[:count].astype(np.int64),
        np.concatenate([a.logprobs for a in answers])[:count].astype(np.float32),
        temperature[:count],
    )
    at, shown, chosen, ids, logprobs, heat = (torch.from_numpy(part).to(device) for part in parts)
    return TrainingBatch(at, kept, shown, chosen, ids, logprobs, heat)


def epochs(together: list[list[TargetAnswer]], seed: int) -> Iterator[list[TargetAnswer]]:
    """Groups of answers in random order, epoch after epoch without end."""
    order = random.Random(seed)
    while True:
        order.shuffle(together)
        yield from together
