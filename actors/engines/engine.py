"""What a forward pass is to everything above it: rows of tokens, slots for their K/V, and what each row may see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from actors.models import ModelInfo


class State(Protocol):
    """What recurrent layers remember of one request's text. A forward of a segment goes on from it and changes nothing
    of it until ``keep`` says how many rows were right."""

    def keep(self, row: int) -> None:
        """The text goes on behind that row of the last forward (-1: the last). Of a prompt's there is only the last."""
        ...


class Recurrence(Protocol):
    """The recurrent layers of a model."""

    @property
    def limit(self) -> int:
        """How many states there is room for; a window needs one for each of its rows."""
        ...

    def new(self) -> State:
        """Before the first token."""
        ...


@dataclass(slots=True)
class Segment:
    """One request's rows, consecutive in the flat batch. They see only pool slots ``base .. base + span``.

    ``visible`` is bool ``(rows, span)``; a row that sees nothing would divide by zero, so each sees at least one slot.
    ``text``: how long the request's text may become, prompt and ``max_tokens``: some models' positions depend on it.
    ``padding``: the rows only fill the batch up, behind all others; what is computed for them is thrown away.
    ``state``: of the request, where the model has recurrent layers: the rows are one path then, and go on from it.
    ``prompt``: a piece of a prompt; alone in its forward where a model has recurrent layers.
    """

    rows: int
    base: int
    span: int
    visible: NDArray[np.bool_]
    text: int = 0
    padding: bool = False
    state: State | None = None
    prompt: bool = False


# Of a row of logits: the position of what follows it, and :attr:`actors.engines.sampler.SamplerState.choice`
Choice = tuple[float, ...]


@dataclass(slots=True)
class Picks:
    """What compiled code made of a forward's logits on the spot. One row for each that was selected."""

    host: NDArray[np.float32]  # the logits; behind ``vocabulary`` of them what only fills up
    ids: NDArray[np.int64]  # the likeliest, best first; or in the first column the token that sampling chooses
    probabilities: NDArray[np.float32]  # of those ids; or no columns
    vocabulary: int

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

    def forward(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        slots: Sequence[int],
        segments: Sequence[Segment],
        select: Sequence[int] | None = None,
    ) -> torch.Tensor:
        """float32 logits ``(len(select) or n, vocabulary)`` on the engine's device.

        Row i's K/V is written into absolute slot ``slots[i]`` before anything is attended to.
        """
        ...

    def pick(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        slots: Sequence[int],
        segments: Sequence[Segment],
        select: Sequence[int] | None,
        choices: list[Choice],
        most: int = 0,
    ) -> Picks | None:
        """A forward, and of each selected row the ``most`` likeliest ids with their noise, or, for 0, the token that
        sampling chooses (-1: :mod:`actors.engines.sampler` has to tell). None where the engine does not do that:
        then nothing was computed."""
        ...
