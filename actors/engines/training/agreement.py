"""What a draft would have proposed at every place of a finished answer, by exact replay.

The shared noise is a hash of seed and position, so what the draft would have proposed at every place of a finished text
is known without running the target (DESIGN section 12).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from actors.engines.noise import gumbel
from actors.engines.training.answers import Answer, Prompt
from actors.engines.training.batches import batch_of, groups
from actors.engines.training.plan import RANKS, Reading


@torch.inference_mode()
def read(model: nn.Module, prompts: Sequence[Prompt], answers: Sequence[Answer], device: torch.device) -> list[Reading]:
    """One reading of each answer, in the order of temperatures and tasks."""
    vocabulary = int(model.config.get_text_config().vocab_size)  # type: ignore[operator,union-attr]
    found: list[Reading] = []
    for members in groups(prompts, answers, vocabulary):
        batch = batch_of(prompts, members, device)
        logits = batch.logits(model)
        start = 0
        for answer in members:
            job, count = answer.job, len(answer.tokens)
            rows, chosen = logits[start : start + count], batch.answers[start : start + count]
            if job.temperature:
                first = len(prompts[job.prompt].tokens)
                rows = rows / job.temperature
                rows += gumbel(job.seed, range(first, first + count), vocabulary, device)
            better = (rows > rows.gather(1, chosen[:, None])).sum(1)
            ranks = torch.where(better < RANKS, better + 1, 0).tolist()
            found.append(Reading(temperature=job.temperature, task=prompts[job.prompt].task, ranks=tuple(ranks)))
            start += count
    return sorted(found, key=lambda one: (one.temperature, one.task))
