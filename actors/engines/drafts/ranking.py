"""The best candidates of a draft's rows under shared noise, and the draft's confidence in each."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actors.engines.decoder.cpu.compiler import compiled_kernels
from actors.engines.decoder.cpu.records import CHOICE
from actors.engines.engine import Choice
from actors.engines.sampling.noise import gumbel
from actors.engines.sampling.sampler import SamplerState, filtered, for_kernels
from actors.engines.weights.draft_vocabulary import DraftVocabulary

Candidates = tuple[list[int], list[float]]  # best first, with the draft's confidence in each


class Row:
    """A row to find candidates for."""

    __slots__ = ("index", "path", "position", "sampler", "slot")

    def __init__(self, index: int, slot: int, sampler: SamplerState, position: int, path: list[int]) -> None:
        self.index = index  # number of the leaf in its call
        self.slot = slot  # scratch slot of the leaf; -1: it is the root
        self.sampler = sampler
        self.position = position  # the candidates' position in the text
        self.path = path  # tokens below the root, up to the row's own; only filled where the sampler penalises


def choices_of(rows: Sequence[Row]) -> list[Choice]:
    """The ``choices`` of :meth:`actors.engines.engine.Engine.pick` for rows that are not penalised."""
    return [(row.position, *row.sampler.choice) for row in rows]


def rank(logits: Tensor, rows: Sequence[Row], count: int, covered: DraftVocabulary | None = None) -> list[Candidates]:
    """The ``count`` best candidates of each row of ``logits`` ``(rows, vocabulary)``, and the draft's confidence in
    each (see :class:`actors.models.Expansion`). ``covered``: the tokens that the columns stand for; None: all."""
    if any(row.sampler.penalised for row in rows):
        if covered is not None:  # penalties and biases may concern any token
            logits, covered = covered.spread(logits), None
        logits = _penalised(logits, rows)
    tokens = None if covered is None else covered.ids
    if (host := for_kernels(logits)) is not None:
        return _rank_compiled(host, rows, count, tokens)
    return _rank_by_torch(logits, rows, count, tokens)


def _penalised(logits: Tensor, rows: Sequence[Row]) -> Tensor:
    parts: list[Tensor] = []
    start = 0
    for sampler, members in itertools.groupby(rows, key=lambda row: row.sampler):  # a request's rows are consecutive
        paths = [row.path for row in members]
        parts.append(sampler.penalise(logits[start : start + len(paths)], paths))
        start += len(paths)
    return torch.cat(parts)


def _rank_compiled(
    logits: NDArray[np.float32], rows: Sequence[Row], count: int, tokens: NDArray[np.int64] | None
) -> list[Candidates]:
    """With noise over the whole vocabulary. torch and numpy take as long to rank a small draft's candidates as its
    layers take to compute the logits."""
    kernels = compiled_kernels()
    assert kernels is not None
    table = np.array(choices_of(rows), dtype=CHOICE)
    ids, probs = np.empty((len(rows), count), np.int64), np.empty((len(rows), count), np.float32)
    known = np.empty(0, np.int32) if tokens is None else tokens.astype(np.int32)
    kernels.rank_rows(table, logits, known, ids, probs)
    return list(zip(ids.tolist(), probs.tolist(), strict=True))


def _rank_by_torch(
    logits: Tensor, rows: Sequence[Row], count: int, tokens: NDArray[np.int64] | None
) -> list[Candidates]:
    """The same on a GPU, and without numba."""
    columns: int | Tensor = logits.shape[1] if tokens is None else torch.from_numpy(tokens)
    scores = []
    for sampler, members in itertools.groupby(zip(rows, logits, strict=True), key=lambda each: each[0].sampler):
        part, s = [*members], sampler.sampling
        own = torch.stack([row for _, row in part])
        if not sampler.greedy:
            own = filtered(own * (1.0 / s.temperature), s.top_k, s.top_p, s.min_p)
            own += gumbel(s.seed, [row.position for row, _ in part], columns, logits.device)
        scores.append(own)
    best, places = torch.cat(scores).softmax(-1).topk(count)
    ids = places.tolist() if tokens is None else tokens[places.numpy(force=True)].tolist()
    return list(zip(ids, best.tolist(), strict=True))
