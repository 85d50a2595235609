"""The best candidates of a draft's rows under shared noise, and the draft's confidence in each."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actors.engines.decoder.cpu.compiler import compiled_kernels
from actors.engines.engine import Choice
from actors.engines.sampling.noise import gumbel_host, keys
from actors.engines.sampling.sampler import SamplerState, for_kernels
from actors.engines.weights.draft_vocabulary import DraftVocabulary
from protocols.messages import Sampling

# Likeliest tokens to which noise is added. At T=1, 64 hold 0.87 of a small draft's probability mass and 256 hold 0.94.
RANKED = 256

Candidates = tuple[list[int], list[float]]  # best first, with the draft's confidence in each
Value = TypeVar("Value", bound=np.generic)


class Row:
    """A row to find candidates for."""

    __slots__ = ("index", "path", "position", "sampler", "slot")

    def __init__(self, index: int, slot: int, sampler: SamplerState, position: int, path: list[int]) -> None:
        self.index = index  # of the leaf in its call
        self.slot = slot  # scratch slot of the leaf; -1: it is the root
        self.sampler = sampler
        self.position = position  # of the candidates in the text
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
    greedy = [row.sampler.greedy for row in rows]
    if all(greedy):
        return _rank_greedy(logits, count, tokens)
    if not any(greedy):
        return _rank_noisy(logits, rows, count, tokens)
    out: list[Candidates] = [([], [])] * len(rows)
    for kind in (True, False):
        chosen = [i for i, is_greedy in enumerate(greedy) if is_greedy is kind]
        part = logits[chosen]
        if kind:
            found = _rank_greedy(part, count, tokens)
        else:
            found = _rank_noisy(part, [rows[i] for i in chosen], count, tokens)
        for i, answer in zip(chosen, found, strict=True):
            out[i] = answer
    return out


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
    table = np.array(choices_of(rows), dtype=kernels.CHOICE)
    ids, probs = np.empty((len(rows), count), np.int64), np.empty((len(rows), count), np.float32)
    known = np.empty(0, np.int32) if tokens is None else tokens.astype(np.int32)
    kernels.rank_rows(table, logits, known, ids, probs)
    return list(zip(ids.tolist(), probs.tolist(), strict=True))


def _rank_greedy(logits: Tensor, count: int, tokens: NDArray[np.int64] | None) -> list[Candidates]:
    best, places = logits.softmax(-1).topk(count)
    ids = places.tolist() if tokens is None else tokens[places.numpy(force=True)].tolist()
    return list(zip(ids, best.tolist(), strict=True))


def _rank_noisy(logits: Tensor, rows: Sequence[Row], count: int, tokens: NDArray[np.int64] | None) -> list[Candidates]:
    """With noise on the ``RANKED`` likeliest tokens only, which is possible because it is a hash of each token."""
    settings = [row.sampler.sampling for row in rows]
    keyed = [keys(s.seed, r.position) for s, r in zip(settings, rows, strict=True)]
    colder = np.array([1.0 / s.temperature for s in settings], dtype=np.float32)
    filtered = any(s.top_k or s.top_p < 1 or s.min_p for s in settings)
    ids, values = _likeliest(logits, min(RANKED, logits.shape[1]))
    if tokens is not None:
        ids = tokens[ids]
    if filtered:
        best_first = np.argsort(-values, axis=1)
        ids, values = _picked(ids, best_first), _picked(values, best_first)
    scaled = values * colder[:, None]
    scores = scaled + gumbel_host(keyed, ids)
    if filtered:
        scores[_removed(logits, scaled, settings)] = -np.inf
    order = np.argsort(-scores, axis=1)[:, :count]
    best = _picked(scores, order)
    scores -= best[:, :1]
    mass = np.exp(best - best[:, :1]) / np.add.reduce(np.exp(scores, out=scores), 1, keepdims=True)
    return list(zip(_picked(ids, order).tolist(), mass.tolist(), strict=True))


def _picked(table: NDArray[Value], columns: NDArray[np.int64]) -> NDArray[Value]:
    """``np.take_along_axis(table, columns, 1)`` without its overhead: half the time for a row."""
    picked: NDArray[Value] = table[np.arange(len(table))[:, None], columns]
    return picked


def _likeliest(logits: Tensor, count: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The ids and values ``(rows, count)`` of the largest logits, in no order."""
    if logits.device.type == "cpu" and count < logits.shape[1]:  # five times as fast as topk for 256 of 8 rows
        host: NDArray[np.float32] = logits.numpy(force=True)
        ids = np.argpartition(host, -count, axis=1)[:, -count:]
        return ids, _picked(host, ids)
    best = logits.topk(count)
    return best.indices.numpy(force=True), best.values.numpy(force=True)


def _removed(logits: Tensor, scaled: NDArray[np.float32], settings: Sequence[Sampling]) -> NDArray[np.bool_]:
    """Which of the candidates ``scaled`` (best first) top_k, top_p and min_p remove. Only close to the target's rule,
    which looks at the whole vocabulary: a draft may differ."""
    width = scaled.shape[1]
    removed = np.zeros(scaled.shape, dtype=np.bool_)
    for i, s in enumerate(settings):
        if 0 < s.top_k < width:
            removed[i, s.top_k :] = True
        if s.top_p < 1:
            if 0 < s.top_k <= width:
                mass = np.exp(scaled[i, : s.top_k] - scaled[i, 0]).sum()
            else:
                mass = float((logits[i] * (1.0 / s.temperature) - float(scaled[i, 0])).exp_().sum())
            probs = np.exp(scaled[i] - scaled[i, 0]) / mass
            removed[i] |= np.cumsum(probs) - probs >= s.top_p
        if s.min_p:
            removed[i] |= scaled[i] < scaled[i, 0] + np.log(s.min_p)
    removed[:, 0] = False
    return removed
