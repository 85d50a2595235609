"""The interface of a draft head's arithmetic, which knows neither texts nor trees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actors.engines.cache.pool import KVPool, KVShape
from actors.engines.compute.rows import BatchRows
from actors.engines.decoder.spec import Attention
from actors.engines.decoder.torch.attention import PoolAttention, Stretch
from actors.engines.flat_batch import Segment
from actors.engines.weights.draft_vocabulary import DraftVocabulary
from protocols.errors import ModelError


class NotComputed(ModelError):
    """A head of a kind that no arithmetic here computes, whatever its target."""


@dataclass(frozen=True, slots=True)
class DraftBlock:
    """The block of a head that drafts several places in one pass."""

    taps: tuple[int, ...]  # the states that enter these layers of the target
    rows: int  # the root and masks
    mask_token: int
    causal: tuple[bool, ...]  # whether each layer is causal within the block
    from_root: bool = False  # a row gives the token after its place, the root's too; else the token at its place


@dataclass(frozen=True, slots=True)
class Windows:
    """How many tokens the layers of a head see."""

    sizes: tuple[int, ...]  # each layer's window, 0: it sees all
    of_root: bool = False  # a drafted row sees what the root sees, and all rows drafted before it


class HeadSight:
    """Slots of a head's pool that the rows of one forward see: a :class:`~actors.engines.compute.rows.SlotSight`."""

    def __init__(
        self,
        pool: KVPool,
        segments: Sequence[Segment],
        positions: NDArray[np.int64],
        windows: Windows | None = None,
        causal: Sequence[bool] = (),
        depths: NDArray[np.int64] | None = None,
    ) -> None:
        """``positions``: each row's in its text; ``depths``: below the root. ``windows``, ``causal``: of layers that
        see less than their segments say."""
        self.pool, self._positions = pool, positions
        self._segments, self._windows, self._causal, self._depths = segments, windows, causal, depths
        self._attention: dict[tuple[object, ...], PoolAttention] = {}

    def __call__(self, place: int, attention: Attention, queries: Tensor, sinks: Tensor | None) -> Tensor:
        window = 0 if self._windows is None else self._windows.sizes[place]
        seen = window, bool(self._causal) and self._causal[place]
        kind = *seen, attention.scale, attention.cap
        if kind not in self._attention:
            heads = queries.shape[1], self.pool.parts[0].shape[2]
            more = attention.scale, attention.cap or None, False
            self._attention[kind] = PoolAttention(self.pool, self._stretches(*seen), heads, *more)
        return self._attention[kind](place, queries, sinks)

    def _stretches(self, window: int, causal: bool) -> list[Stretch]:
        found, pool, places, at = [], self.pool, self._positions, 0
        ends = places - self._depths if self._windows and self._windows.of_root and self._depths is not None else places
        for one in self._segments:
            visible, rows, keys = one.visible, slice(at, at + one.rows), pool.positions[one.base : one.base + one.span]
            if causal:
                visible = visible & (keys <= places[rows, None])
            if window:
                visible = visible & (keys > ends[rows, None] - window)
            mask = torch.from_numpy(np.where(visible, np.float32(0), np.float32(-np.inf)))
            found.append(Stretch(one.base, one.span, mask.to(pool.device, pool.dtype)))
            at += one.rows
        return found

    def places(self) -> Tensor:
        """Each row's place in its segment."""
        return torch.cat([torch.arange(one.rows) for one in self._segments]).to(self.pool.device)


class PairScores(Protocol):
    def __call__(self, logits: Tensor, x: Tensor, before: Tensor) -> Tensor:
        """Logits ``(rows, columns)`` after the tokens ``before``. ``x``: the states after the logits."""
        ...


class Head:
    """A row is a token and the state before it: the target's, or what the head made of the row before."""

    taps: tuple[int, ...]  # layers of the target that it reads states of, see ``Engine.tap``
    width: int  # width of the states that its rows read; 0: rows of a block read none
    shape: KVShape
    stages = 1  # layers that take turns: the first for a round's first token, the second for the next ...
    covered: DraftVocabulary | None = None  # tokens that its logits stand for; None: all
    block: DraftBlock | None = None  # None: it drafts token by token
    windows: Windows | None = None  # None: every layer sees all
    mask_state: Tensor | None = None  # the input of a block's masks
    pairs: PairScores | None = None

    def feature(self, tapped: Tensor, rows: BatchRows) -> Tensor:
        """States ``(rows, width)`` out of what the target's layers gave of committed tokens."""
        raise NotImplementedError

    def step(self, states: Tensor, rows: BatchRows, stage: int) -> tuple[Tensor, Tensor]:
        """States for logits, and states that the next rows read."""
        raise NotImplementedError

    def logits(self, x: Tensor) -> Tensor:
        """float32, of the tokens that it covers."""
        raise NotImplementedError


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return torch.nn.functional.rms_norm(x, weight.shape, weight, eps)
