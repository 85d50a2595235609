"""What a forward pass is to everything above it: a flat batch in, logits out, keys and values in a pool's slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from actors.engines.draft_vocabulary import DraftVocabulary
from actors.engines.flat_batch import FlatBatch, State
from actors.models import ModelInfo


class Recurrence(Protocol):
    """The recurrent layers of a model."""

    @property
    def limit(self) -> int:
        """How many states there is room for; a window needs one for each of its rows."""
        ...

    def new(self) -> State:
        """Before the first token."""
        ...


# Of a row of logits: the position of what follows it, and :attr:`actors.engines.sampler.SamplerState.choice`
Choice = tuple[float, ...]


@dataclass(slots=True)
class Picks:
    """What compiled code made of a forward's logits on the spot. One row for each that was selected."""

    host: NDArray[np.float32]  # the logits; behind ``vocabulary`` of them what only fills up
    ids: NDArray[np.int64]  # the likeliest tokens, best first; or in the first column the token that sampling chooses
    probabilities: NDArray[np.float32]  # of those ids; or no columns
    vocabulary: int

    @property
    def rows(self) -> NDArray[np.float32]:
        """The logits without what fills up."""
        return self.host[:, : self.vocabulary]

    @property
    def logits(self) -> torch.Tensor:
        """Made when it is asked for: the first torch operation behind a forward takes some 30 us."""
        whole = torch.from_numpy(self.host)
        return whole if whole.shape[1] == self.vocabulary else whole[:, : self.vocabulary]


class Pool(Protocol):
    """What the owners of slots ask of a pool; how the engine lays its memory out is its own business."""

    slots: int

    def copy(self, source: Sequence[int], target: Sequence[int]) -> None:
        """Copy slots, all read before any is written."""
        ...

    def duplicate(self, source: int, target: int, count: int) -> None:
        """Copy ``count`` slots in a row to others that have none in common with them."""
        ...


class Engine(Protocol):
    """A causal language model over a slot-addressed KV pool."""

    @property
    def info(self) -> ModelInfo: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def draft_vocabulary(self) -> DraftVocabulary | None:
        """What the logits' columns stand for, where that is not the whole vocabulary: of a draft alone. Ids in
        :meth:`pick` are tokens' all the same."""
        ...

    @property
    def pool(self) -> Pool: ...
    @property
    def text_matters(self) -> bool:
        """Whether keys depend on a segment's ``text``, so that only requests of equal length have them in common."""
        ...

    @property
    def recurrence(self) -> Recurrence | None:
        """None: attention is all that there is, so windows may have branches and prompts their beginnings in common."""
        ...

    @property
    def has_spare_cpus(self) -> bool: ...

    def use_spare_cpus(self, used: bool) -> None:
        """Whether forwards from now on use, beside their own threads, those on CPUs that others leave at times."""
        ...

    @property
    def best(self) -> torch.Tensor | None:
        """The likeliest id below ``vocab_size`` of every row of the last forward, where that found it on the way."""
        ...

    def forward(self, batch: FlatBatch, select: Sequence[int] | None = None) -> torch.Tensor:
        """float32 logits ``(len(select) or n, vocabulary)`` on the engine's device.

        Row i's K/V is written into slot ``slots[i]`` before anything is attended to.
        """
        ...

    def pick(
        self, batch: FlatBatch, select: Sequence[int] | None, choices: list[Choice], most: int = 0
    ) -> Picks | None:
        """A forward, and of each selected row the ``most`` likeliest ids with their noise, or, for 0, the token that
        sampling chooses (-1: :mod:`actors.engines.sampler` has to tell). None where the engine does not do that:
        then nothing was computed."""
        ...
