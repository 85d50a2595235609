"""The optimisation: Muon on matrices, AdamW on the rest, averaged weights, a rate that falls with the time left."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from actors.engines.weights.draft_vocabulary import columns_of
from actors.engines.weights.dtypes import cpu_has_bfloat16
from actors.files import whole_file
from actors.training.batches import TrainingBatch
from actors.training.losses import LEFT_OUT, blend, divergences
from actors.training.muon import Muon
from protocols.errors import ConfigError

MATRICES = 3e-3  # Muon's rate, in AdamW's units, for widths up to WIDTH; wider models take less
OTHERS = 1.5e-3  # AdamW's, on embeddings, norms and biases
WIDTH = 384
WARM_UP = 50  # steps
AVERAGED = 0.995  # decay of the weights' running mean, once there are a few hundred steps to average over
FITTING_FROM = 1 / 3  # share of the time before which the places that the draft will never fit are unknown


class DraftTraining:
    """A draft in training; ``averaged`` is what is to be used."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self.model = model.to(device).train()
        self.averaged = copy.deepcopy(self.model).eval().requires_grad_(False)
        self.device = device
        self.columns = columns_of(self.model)
        self.steps = 0
        self.seconds = 0.0  # training so far
        self.acceptance = 0.0  # running mean of 1 - TV
        width = int(model.config.get_text_config().hidden_size)  # type: ignore[operator,union-attr]
        embeddings = {id(p) for part in _ends(model) for p in part.parameters()}
        matrices = [p for p in model.parameters() if p.ndim == 2 and id(p) not in embeddings]
        chosen = {id(p) for p in matrices}
        others = [p for p in model.parameters() if id(p) not in chosen]
        rate = MATRICES * min(1.0, WIDTH / width)
        self._optimizers: list[torch.optim.Optimizer] = [
            Muon(matrices, lr=rate),
            torch.optim.AdamW(others, lr=OTHERS, betas=(0.9, 0.95), weight_decay=0.0),
        ]
        self._rates = [group["lr"] for optimizer in self._optimizers for group in optimizer.param_groups]

    def step(self, batch: TrainingBatch, done: float) -> float:
        """One step; ``done`` is the share of the time that is over. Returns the share of tokens accepted (1 - TV)."""
        with self._half_precision():
            logits = batch.logits(self.model)
        kl, tv = divergences(logits, self.columns[batch.ids], batch.logprobs, batch.temperature)
        accepted = 1 - float(tv.detach().mean())
        self.acceptance += (accepted - self.acceptance) * max(0.02, 1 / (self.steps + 1))
        loss = blend(kl, tv, self.acceptance, LEFT_OUT if done > FITTING_FROM else 0.0)
        self._descend(loss, max(0.02, min(1.0, 2 * (1 - done))))
        return accepted

    def step_on(self, batch: TrainingBatch, loss: Callable[[torch.Tensor], torch.Tensor], share: float) -> None:
        """One step on what ``loss`` makes of the batch's logits (n, columns of the head), with ``share`` of the usual
        rate; none where that depends on nothing that the head says."""
        with self._half_precision():
            logits = batch.logits(self.model).float()
        found = loss(logits)
        if found.requires_grad:
            self._descend(found, share)

    def _descend(self, loss: torch.Tensor, share: float) -> None:
        """``share``: of the usual rate."""
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        warm = min(1.0, (self.steps + 1) / WARM_UP)
        for group, rate in zip(self._groups(), self._rates, strict=True):
            group["lr"] = rate * share * warm
        for optimizer in self._optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.steps += 1
        self._average()

    def _groups(self) -> Iterator[dict[str, Any]]:
        for optimizer in self._optimizers:
            yield from optimizer.param_groups

    def _average(self) -> None:
        kept = min(AVERAGED, self.steps / (self.steps + 9))
        with torch.no_grad():
            for mean, now in zip(self.averaged.parameters(), self.model.parameters(), strict=True):
                mean.lerp_(now, 1 - kept)

    def _half_precision(self) -> AbstractContextManager[Any]:
        # four times as fast on a CPU that has it, ten times as slow on another
        enabled = self.device.type != "cpu" or cpu_has_bfloat16()
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=enabled)

    def save(self, path: Path) -> None:
        state = {
            "model": self.model.state_dict(),
            "averaged": self.averaged.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
            "figures": (self.steps, self.seconds, self.acceptance),
        }
        with whole_file(path) as file:
            torch.save(state, file)

    def load(self, path: Path) -> None:
        """Raises ConfigError for a checkpoint of other weights."""
        with _refusing(path):
            state = torch.load(path, map_location=self.device, weights_only=True)
            self.model.load_state_dict(state["model"])
            self.averaged.load_state_dict(state["averaged"])
            for optimizer, saved in zip(self._optimizers, state["optimizers"], strict=True):
                optimizer.load_state_dict(saved)
            self.steps, self.seconds, self.acceptance = state["figures"]


def halfway(model: nn.Module, start: Mapping[str, torch.Tensor]) -> None:
    """Set the trained ``model`` to the mean of its weights and those at the ``start``.

    A draft that is trained further forgets some of the rest; the mean keeps both (arXiv 2109.01903)."""
    trained = model.state_dict()
    model.load_state_dict(
        {
            name: torch.lerp(start[name], weight, 0.5) if weight.is_floating_point() else weight
            for name, weight in trained.items()
        }
    )


def trained_seconds(path: Path) -> float:
    """How long the training took of which that is a checkpoint; 0 if there is none. Raises ConfigError."""
    if not path.is_file():
        return 0.0
    with _refusing(path):
        _, seconds, _ = torch.load(path, map_location="cpu", weights_only=True, mmap=True)["figures"]
    return float(seconds)


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """A checkpoint that does not fit, or is damaged, is refused; torch has many errors for that."""
    try:
        yield
    except Exception:
        raise ConfigError(
            f"{path} is no checkpoint of this training, or one of another version of duoactor; leave --resume out and "
            "name another --out"
        ) from None


def _ends(model: nn.Module) -> list[nn.Module]:
    """The input and output embeddings."""
    found = (model.get_input_embeddings(), model.get_output_embeddings())  # type: ignore[operator]
    return [part for part in found if part is not None]
