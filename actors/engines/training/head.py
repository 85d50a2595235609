"""How many tokens of a large vocabulary a new draft's head covers, and which: those that the target says most."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actors.engines.draft_vocabulary import DraftVocabulary
from actors.engines.training.answers import Answer, Prompt

MOST = 32_768  # FR-Spec (arXiv 2502.14856) and EAGLE-3 keep as many of 128,000
LEAST = 8_192  # however narrow the draft is: it has to say most of a text
_ROUND = 1024


def head_tokens(config: Any) -> int:
    """Of a draft of that configuration: as many as take it no longer than its layers do, and all where that would not
    be less than half of them. With twice as many a step would take half as long again."""
    text = config.get_text_config()
    hidden, whole = int(text.hidden_size), int(text.vocab_size)
    inner = int(getattr(text, "intermediate_size", None) or 4 * hidden)
    layers = int(text.num_hidden_layers) * (4 * hidden + 3 * inner)  # their weights by each number of the hidden state
    size = min(MOST, max(LEAST, layers // _ROUND * _ROUND))
    return size if whole > 2 * size else whole


def most_frequent(
    prompts: Sequence[Prompt], answers: Sequence[Answer], size: int, vocabulary: int
) -> NDArray[np.int64]:
    """The ``size`` tokens that prompts and answers have most often, ascending.

    At each place of an answer all the target's alternatives count, by their probabilities: that tells of tokens too
    that it did not happen to say. Of those that are not met at all lower ids come first, which merges made earlier.
    """
    seen = np.zeros(vocabulary)
    for prompt in prompts:
        seen += np.bincount(prompt.tokens, minlength=vocabulary)
    for answer in answers:
        seen += np.bincount(answer.tokens, minlength=vocabulary)
        likely = np.exp(answer.logprobs.astype(np.float64)).ravel()
        seen += np.bincount(answer.ids.ravel(), weights=likely, minlength=vocabulary)
    return np.sort(np.argsort(-seen, kind="stable")[:size])


def kept_most_frequent(
    file: Path, prompts: Sequence[Prompt], answers: Sequence[Answer], size: int, vocabulary: int
) -> NDArray[np.int64]:
    """:func:`most_frequent`, or what was so when the training began that is resumed now."""
    if not file.is_file():
        half = file.with_suffix(".part")
        with half.open("wb") as opened:
            np.save(opened, most_frequent(prompts, answers, size, vocabulary))
        half.replace(file)
    ids: NDArray[np.int64] = np.load(file)
    return ids


def coverage(answers: Sequence[Answer], covered: DraftVocabulary | None) -> float:
    """The share of the answers' tokens that a head can say."""
    if covered is None:
        return 1.0
    places = covered.places
    tokens = np.concatenate([answer.tokens for answer in answers])
    return float((places[tokens] >= 0).mean())
