"""Finds out at start-up which row counts give the same bits on this machine, and whether branches do.

Speculation is bit-exact among those: a token that is verified as one of several rows has the logits of plain decoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from actors.engines.engine import Engine
from actors.engines.flat_batch import FlatBatch, Mask, TextState, align
from actors.models import ModelInfo
from protocols.errors import ModelError

ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
LARGE = (48, 64)  # only for Lookahead and REST, so they do not decide which group is chosen
# Rows of a piece of a prompt: they take 0.88 to 0.97 times as long per token as 64 (400 tokens, bundled and inflated
# pair), and 256 are no faster.
PIECE = 128
# Committed tokens: 12 rows after them end within 256 slots and 16 do not, so that spans and blocks differ as they do
# between real rounds.
CONTEXT = 244


@dataclass(frozen=True, slots=True)
class Agreement:
    rows: tuple[int, ...]  # row counts with equal logits, bit for bit
    branches: bool  # whether those of a window's branches were equal as well


def self_check(engine: Engine) -> Agreement:
    """The largest group of ``ROWS`` that agree; of several that with the smallest count. Larger counts that agree with
    the group are added to it, and a window with branches is compared with it.

    The same chain of tokens is computed after a context in rounds of each size. It uses the first slots of the pool,
    which must be free. Afterwards they are free again.
    """
    most = max(ROWS)
    length = min(CONTEXT, engine.pool.slots - most, max(1, engine.info.max_context - most))
    candidates = [n for n in ROWS if length + n <= engine.pool.slots]
    larger = [n for n in (*LARGE, PIECE) if length + n <= min(engine.pool.slots, engine.info.max_context)]
    vocabulary = engine.info.vocab_size
    tokens = [(7919 * (i + 1)) % vocabulary for i in range(length + max(most, *larger, 0))]
    state = engine.recurrence.new() if engine.recurrence is not None else None
    _chain(engine, tokens, 0, length, state, prompt=True)
    if state is not None:
        state.keep(range(length))
    groups: list[tuple[torch.Tensor, list[int]]] = []
    for rows in sorted(candidates, reverse=True):
        logits = _chain(engine, tokens, length, rows, state)
        for reference, members in groups:
            shared = min(rows, reference.shape[0])
            if torch.equal(reference[:shared], logits[:shared]):
                members.append(rows)
                break
        else:
            groups.append((logits, [rows]))
    reference, best = max(groups, key=lambda group: (len(group[1]), -min(group[1])))
    shared = reference.shape[0]
    sizes = {max(best), best[len(best) // 2]}
    branches = all(_branch_agrees(engine, tokens, length, n, state, reference) for n in sizes)
    best += [n for n in larger if torch.equal(reference, _chain(engine, tokens, length, n, state)[:shared])]
    return Agreement(tuple(sorted(best)), branches)


def check_finite(engine: Engine) -> None:
    """Raise ModelError if the logits after a few tokens are not finite. It takes one short forward, at every start."""
    rows = min(8, engine.info.max_context, engine.pool.slots)
    state = engine.recurrence.new() if engine.recurrence is not None else None
    tokens = [(7919 * (i + 1)) % engine.info.vocab_size for i in range(rows)]
    best = _chain(engine, tokens, 0, rows, state, prompt=True)[:, : engine.info.vocab_size].amax(-1)
    if not torch.isfinite(best).all():  # the largest of a row is NaN where one of it is; -inf excludes a token
        raise ModelError(not_finite(engine.info))


def not_finite(info: ModelInfo) -> str:
    """The sentence about a target with NaN or infinite logits."""
    return (
        f"the logits of {info.model_id} are not finite (NaN or infinite): its weights are damaged, or too large for "
        f"{info.dtype}; download the model again, or choose another --dtype"
    )


def _chain(
    engine: Engine, tokens: Sequence[int], start: int, rows: int, state: TextState | None, prompt: bool = False
) -> torch.Tensor:
    batch, at = FlatBatch(), [*range(start, start + rows)]
    segment = batch.add(0, tokens[start : start + rows], at, at, _seen(engine, start, np.tri(rows, dtype=np.bool_)))
    segment.state, segment.prompt = state, prompt
    return engine.forward(batch)


def _branch_agrees(
    engine: Engine, tokens: Sequence[int], start: int, rows: int, state: TextState | None, expected: torch.Tensor
) -> bool:
    """Whether the chain's logits are ``expected`` in a window of ``rows`` rows, the root and then pairs of siblings: a
    wrong token, and the chain's own."""
    sees = np.zeros((rows, rows), dtype=np.bool_)
    right = np.arange(0, rows, 2)
    sees[:, right] = np.arange(rows)[:, None] > right
    np.fill_diagonal(sees, True)
    depths = (np.arange(rows) + 1) // 2
    listed = [tokens[start + depth] for depth in depths.tolist()]
    for wrong in range(1, rows, 2):
        listed[wrong] = (listed[wrong] + 1) % engine.info.vocab_size
    batch, slots = FlatBatch(), [*range(start, start + rows)]
    segment = batch.add(0, listed, (start + depths).tolist(), slots, _seen(engine, start, sees))
    segment.state, segment.parents = state, [-1, *(row // 2 * 2 for row in range(rows - 1))]
    return torch.equal(engine.forward(batch)[right.tolist()], expected[: len(right)])


def _seen(engine: Engine, start: int, sees: NDArray[np.bool_]) -> Mask:
    """Sight of rows from slot ``start`` on: all slots before them, and of them those in ``sees`` ``(rows, rows)``."""
    visible: Mask = np.zeros((len(sees), min(align(start + len(sees)), engine.pool.slots)), dtype=np.bool_)
    visible[:, :start], visible[:, start : start + len(sees)] = True, sees
    return visible
