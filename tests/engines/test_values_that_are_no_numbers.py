"""A value that is no number stays in the rows that see it: there it shows, and all others keep their bits."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch

from actors.engines.decoder.cpu.compiler import compiled_kernels
from actors.engines.decoder.cpu.records import CHOICE
from actors.engines.decoder.cpu.streams import FusedState
from actors.engines.flat_batch import FlatBatch, causal
from actors.engines.sampling.sampler import filtered, nucleus
from tests.engines.families import model_of
from tests.engines.recorded_rounds import lay_out
from tests.engines.tiny import VOCAB, engine_of

pytest.importorskip("numba")
UNTIED = {"tie_word_embeddings": False}
FAMILIES = {  # by what chooses experts, or mixes rows
    "Llama": UNTIED,
    "Qwen3Moe": UNTIED,  # a softmax
    "Llama4": UNTIED,  # sigmoids, which multiply inputs
    "DeepseekV3": UNTIED,  # groups, and latent attention
    "Glm4Moe": UNTIED,
    "GptOss": UNTIED,
    "Gemma2": UNTIED,
    "Gemma 4 with experts": UNTIED,
    "Qwen3_5Moe": UNTIED,
    "Bamba": UNTIED,
    "Lfm2Moe": UNTIED,
}
BAD, GOOD = 7, 8
TEXT, OTHER = [11, 12, 13, 14, 15], [21, 22, 23, 24]
PARENTS = [-1, 0, -1, 2]  # two branches of two
BEHIND_BAD = (1, 2)  # rows of the tree that see the first branch's first token


def engine(family: str, value: float, seed: int = 0):
    model = model_of(family, **FAMILIES[family])
    with torch.no_grad():
        model.get_input_embeddings().weight[BAD] = value
    return engine_of(model)


def round_of(made, first: int) -> torch.Tensor:
    """The logits of two texts' windows in one round; ``first``: the first token of a branch of the first text."""
    states = {base: made.recurrence.new() if made.recurrence else None for base in (64, 192)}
    for base, text in ((64, TEXT), (192, OTHER)):
        batch, places = FlatBatch(), [*range(len(text) - 1)]
        segment = batch.add(base, text[:-1], places, [base + at for at in places], causal(0, len(places)))
        segment.state, segment.prompt = states[base], True
        made.forward(batch, [len(places) - 1])
        if states[base] is not None:
            states[base].keep(places)
    batch = FlatBatch()
    lay_out(batch, 64, len(TEXT), [TEXT[-1], first, 31, 32, 33], PARENTS)
    lay_out(batch, 192, len(OTHER), [OTHER[-1], 41], [-1])
    for segment, parents in zip(batch.segments, ([-1, 0, 1, 0, 3], [-1, 0]), strict=True):
        segment.state = states[segment.base]
        segment.parents = parents if isinstance(segment.state, FusedState) else ()
    return made.forward(batch).clone()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 3e38], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_rows_that_see_a_bad_token_are_no_numbers_and_others_keep_their_bits(family: str, value: float) -> None:
    made = engine(family, value)
    plain, bad = round_of(made, GOOD), round_of(made, BAD)
    others = [row for row in range(len(plain)) if row not in BEHIND_BAD]
    assert plain.isfinite().all()
    assert torch.equal(plain[others], bad[others])
    if not math.isfinite(value):
        assert bad[list(BEHIND_BAD)].isnan().all()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_number_in_a_matrix_that_is_none_is_seen_in_every_row(family: str) -> None:
    """Whatever stands between a product and the logits: no activation, gate or rounding hides it."""
    chance = random.Random(family)
    model = model_of(family, **FAMILIES[family])
    matrices = [
        p for name, p in model.named_parameters() if ".layers." in name and p.ndim == 2 and "experts" not in name
    ]
    weight = chance.choice(matrices)
    with torch.no_grad():
        weight[chance.randrange(len(weight))] = math.nan
    assert round_of(engine_of(model), GOOD).isnan().all()


@pytest.mark.parametrize(
    "top_p, top_k, min_p", [(1.0, 0, 0.0), (0.9, 0, 0.0), (0.9, 5, 0.0), (1.0, 0, 0.2), (0.5, 7, 0.1)]
)
def test_every_choice_among_logits_that_are_no_numbers_ends_with_an_id(top_p: float, top_k: int, min_p: float) -> None:
    """With an infinite logit the search for a nucleus had no end."""
    kernels = compiled_kernels()
    rows = np.random.default_rng(0).standard_normal((6, VOCAB)).astype(np.float32)
    rows[0, 5], rows[1, 9], rows[2], rows[3] = np.inf, np.nan, np.nan, -np.inf
    rows[4, [1, 2]] = np.inf, -np.inf
    least = math.log(min_p) if min_p else -math.inf
    for colder in (0.0, 0.7, 3e38):
        choices = np.array([(at, 3, colder, top_k, top_p, least) for at in range(len(rows))], dtype=CHOICE)
        tokens = np.empty(len(rows), np.int64)
        kernels.choose_rows(choices, rows, tokens)
        assert ((tokens >= kernels.UNSURE) & (tokens < VOCAB)).all()
        ids, shares = np.empty((len(rows), 4), np.int64), np.empty((len(rows), 4), np.float32)
        kernels.rank_rows(choices, rows, np.empty(0, np.int32), ids, shares)
        assert ((ids >= 0) & (ids < VOCAB)).all()
    kept = filtered(torch.from_numpy(rows.copy()), top_k, top_p, min_p)
    assert kept.shape == rows.shape


def test_a_nucleus_among_probabilities_that_are_no_numbers_is_looked_up_inside_them() -> None:
    """The place before the first ended a process's use of its GPU."""
    least = nucleus(torch.tensor([[math.nan] * 20, [0.05] * 20]), 0.9)
    assert least.shape == (2, 1) and float(least[1]) == pytest.approx(0.05)
