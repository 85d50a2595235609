"""Interpolates between the weights at the start and at the end of a training.

A draft that is trained further improves on texts like those it is shown, and forgets some of the rest. Weights between
the two keep both, and are often better than either (Wortsman et al., 2022, arXiv 2109.01903).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from actors.engines.weights.draft_vocabulary import columns_of, head_size
from actors.training.answers import Answer, Prompt
from actors.training.batches import batch_of, groups
from actors.training.losses import divergences

SHARES = (0.25, 0.5, 0.75, 1.0)  # of the trained weights that are tried
JUDGES = 160  # answers to compare on: ten thousand tokens of the bundled target show differences of 0.003

Weights = Mapping[str, Tensor]


def mix(model: nn.Module, start: Weights, trained: Weights, share: float) -> None:
    """Set the weights of ``model``: ``share`` of the trained ones, the rest of the start's."""
    model.load_state_dict(
        {
            name: torch.lerp(start[name], weight, share) if weight.is_floating_point() else weight
            for name, weight in trained.items()
        }
    )


def keep_the_best(model: nn.Module, start: Weights, prompts: Sequence[Prompt], answers: Sequence[Answer]) -> float:
    """Set the trained ``model`` to the mixture with the highest acceptance on ``answers``, which it has not learned
    from. Returns its share of the trained weights."""
    judges = answers[:: max(1, len(answers) // JUDGES)]
    trained = {name: weight.clone() for name, weight in model.state_dict().items()}
    found: dict[float, float] = {}
    for share in SHARES:
        mix(model, start, trained, share)
        found[share] = acceptance(model, prompts, judges)
    best = max(found, key=found.__getitem__)
    mix(model, start, trained, best)
    return best


@torch.inference_mode()
def acceptance(model: nn.Module, prompts: Sequence[Prompt], answers: Sequence[Answer]) -> float:
    """The share of the draft's tokens that are accepted: the mean of 1 - TV over all positions (see
    :mod:`actors.training.losses`)."""
    parameter = next(model.parameters())
    columns = columns_of(model)
    accepted = places = 0.0
    for members in groups(prompts, answers, head_size(model.config)):
        batch = batch_of(prompts, members, parameter.device)
        _, tv = divergences(batch.logits(model), columns[batch.ids], batch.logprobs, batch.temperature)
        accepted += float((1 - tv).sum())
        places += len(tv)
    return accepted / places
