"""The tokens of a large vocabulary that a new draft's head covers: how many, and the target's most frequent ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actors.engines.weights.draft_vocabulary import DraftVocabulary
from actors.files import whole_file
from actors.training.answers import TargetAnswer

MOST = 32_768  # FR-Spec (arXiv 2502.14856) and EAGLE-3 keep as many of 128,000
LEAST = 8_192  # however small the draft is, because fewer do not make most of a text
_ROUND = 1024  # sizes are multiples of it


def head_tokens(config: Any) -> int:
    """How many tokens the head of a draft with that configuration covers: as many as take no longer to compute than its
    layers do (with twice as many a step takes half as long again); all, if that is at least half of them."""
    text = config.get_text_config()
    hidden, whole = int(text.hidden_size), int(text.vocab_size)
    inner = int(getattr(text, "intermediate_size", None) or 4 * hidden)
    layers = int(text.num_hidden_layers) * (4 * hidden + 3 * inner)  # their weights, over the size of the hidden state
    size = min(MOST, max(LEAST, layers // _ROUND * _ROUND))
    return size if whole > 2 * size else whole


def most_frequent(answers: Sequence[TargetAnswer], size: int, vocabulary: int) -> NDArray[np.int64]:
    """The ``size`` most frequent tokens of answers and their prompts, ascending.

    At each position of an answer, each of the target's alternatives counts by its probability. So tokens that it could
    have written count as well. Of tokens that never occur, lower ids come first: they were merged earlier.
    """
    seen = np.zeros(vocabulary)
    for prompt in {answer.job.prompt.tokens for answer in answers}:
        seen += np.bincount(prompt, minlength=vocabulary)
    for answer in answers:
        seen += np.bincount(answer.tokens, minlength=vocabulary)
        likely = np.exp(answer.logprobs.astype(np.float64)).ravel()
        seen += np.bincount(answer.ids.ravel(), weights=likely, minlength=vocabulary)
    return np.sort(np.argsort(-seen, kind="stable")[:size])


def kept_most_frequent(file: Path, answers: Sequence[TargetAnswer], size: int, vocabulary: int) -> NDArray[np.int64]:
    """:func:`most_frequent`, saved in ``file``; if that exists, because a training is resumed, it is read instead."""
    if not file.is_file():
        with whole_file(file) as opened:
            np.save(opened, most_frequent(answers, size, vocabulary))
    ids: NDArray[np.int64] = np.load(file)
    return ids


def coverage(answers: Sequence[TargetAnswer], covered: DraftVocabulary | None) -> float:
    """The share of the answers' tokens that a head covers."""
    if covered is None:
        return 1.0
    places = covered.places
    tokens = np.concatenate([answer.tokens for answer in answers])
    return float((places[tokens] >= 0).mean())
