"""The interface of an engine: a flat batch of rows in, logits out, keys and values in the slots of a pool."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from actors.engines.cache.pool import KVPool
from actors.engines.flat_batch import FlatBatch, TextState
from actors.engines.weights.draft_vocabulary import DraftVocabulary
from actors.models import ModelInfo


class Recurrence(Protocol):
    """What a model's layers remember of texts beside the slots of the pool: recurrent ones, or those with windows."""

    limit: int  # requests with room for their states

    @property
    def border(self) -> int:
        """Tokens of a prompt between two states that are worth keeping."""
        ...

    @property
    def fine(self) -> int:
        """Tokens that texts share at a time."""
        ...

    @property
    def stream_bytes(self) -> int:
        """What the states of a request take."""
        ...

    @property
    def pieces_agree(self) -> bool:
        """Whether a piece of a prompt, of any length and beside other rows, gives the bits of rows of windows. If not,
        prompts are computed alone."""
        ...

    def new(self) -> TextState:
        """The state of a request before its first token."""
        ...


# Inputs of a row's choice besides its logits: the token's position, then the request's
# :attr:`actors.engines.sampling.sampler.SamplerState.choice`.
Choice = tuple[float, ...]


@dataclass(slots=True)
class Picks:
    """The tokens that compiled code chose from a forward's logits, with one row for each selected row."""

    host: NDArray[np.float32]  # (rows, padded vocabulary): the logits
    ids: NDArray[np.int64]  # (rows, n): the likeliest tokens, best first; or (rows, 1): the token that sampling chooses
    probabilities: NDArray[np.float32]  # (rows, n) of the ids; or (rows, 0)
    vocabulary: int  # columns of ``host`` that are logits; those after them are padding

    @property
    def rows(self) -> NDArray[np.float32]:
        """The logits ``(rows, vocabulary)``."""
        return self.host[:, : self.vocabulary]

    @property
    def logits(self) -> torch.Tensor:
        """The same as a tensor. Made on demand: the first torch operation after a forward takes some 30 us."""
        whole = torch.from_numpy(self.host)
        return whole if whole.shape[1] == self.vocabulary else whole[:, : self.vocabulary]


PerRow = Callable[[torch.Tensor], torch.Tensor]  # one number for each row, or one row, to one row each


@dataclass(frozen=True, slots=True)
class Trunk:
    """What a draft head shares with its target."""

    hidden: int  # width of the states
    layers: int
    vocabulary: int
    device: torch.device
    dtype: torch.dtype  # the states' type
    embed: PerRow  # ids to what the first layer reads
    norm: PerRow  # the norm after the last layer
    logits: PerRow  # float32, of states after that norm
    linear: Callable[[torch.Tensor], PerRow]  # the quickest product with a matrix (out, in), for few rows


class DraftEngine(Protocol):
    """A model over a slot-addressed KV pool that drafts."""

    @property
    def info(self) -> ModelInfo: ...
    @property
    def draft_vocabulary(self) -> DraftVocabulary | None:
        """Tokens of the logits' columns, if a draft's head covers a part of the vocabulary; None: it covers all.
        What :meth:`pick` gives are token ids in either case."""
        ...

    @property
    def pool(self) -> KVPool: ...
    def forward(self, batch: FlatBatch, select: Sequence[int] | None = None) -> torch.Tensor:
        """float32 logits ``(rows, vocabulary)`` on the engine's device: of the rows ``select`` of the batch, or of all.

        Row i's K/V is written into slot ``slots[i]`` before any row attends to it.
        """
        ...

    def pick(
        self, batch: FlatBatch, select: Sequence[int] | None, choices: list[Choice], most: int = 0
    ) -> Picks | None:
        """A forward in which compiled code also chooses from each selected row: the ``most`` likeliest ids under noise,
        or, with 0, the token that sampling chooses (-1: :mod:`actors.engines.sampling.sampler` has to choose).
        ``choices``: one for each selected row. None: the engine cannot do that, and has computed nothing."""
        ...


class Engine(DraftEngine, Protocol):
    """A causal language model, a target too."""

    @property
    def device(self) -> torch.device: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def recurrence(self) -> Recurrence | None:
        """What is remembered beside the pool. None: nothing is."""
        ...

    @property
    def has_spare_cpus(self) -> bool:
        """See :class:`actors.models.TargetModel`."""
        ...

    def use_spare_cpus(self, used: bool) -> None:
        """See :class:`actors.models.TargetModel`."""
        ...

    @property
    def best(self) -> torch.Tensor | None:
        """int64 ``(rows,)``: the likeliest id below ``vocab_size`` of every row of the last forward; None: it did not
        compute them."""
        ...

    def trunk(self) -> Trunk:
        """What a draft head shares with this model. It lives as long as the engine."""
        ...

    def tap(self, layers: Sequence[int]) -> None:
        """Keep the states that enter these layers from now on, counted from 0; the number of layers stands for what
        leaves the last. Each state is the whole residual stream before any norm."""
        ...

    @property
    def tapped(self) -> torch.Tensor:
        """The kept states of every row of the last forward, side by side: ``(rows, layers * hidden)``."""
        ...
