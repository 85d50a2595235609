"""What compiled code reads by address: a model, its layers, jobs and rows, as numpy writes them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

LANES = 16  # numbers of a vector
LOOKS = 4  # numbers of a row beside the slots that it sees
# Rows of a request that are attended to together, a piece for each head of keys: threads have equal shares of a
# prompt's attention, and the second cache holds a piece's scores
TOGETHER = 16
IN_BLOCKS = 2  # ``half`` of embeddings that are those of a job
# How a norm computes: not at all, by its root mean square, or behind taking the mean away
PLAIN, RMS, CENTRED = 0, 1, 2
# A norm: the address of its weights, that of what is added, or 0, and how it computes
NORM = np.dtype([(name, np.int64) for name in ("weight", "bias", "kind")])


def _record(integers: str, floats: str = "", norms: str = "") -> np.dtype[Any]:
    """Norms, then int64 and float32 numbers, by their names."""
    kinds = ((norms, NORM), (integers, np.int64), (floats, np.float32))
    return np.dtype([(name, kind) for names, kind in kinds for name in names.split()])


# A layer without its products. Norms: ``inputs`` and ``inner`` before its two halves; ``behind`` and ``last`` after
# them, where there are any. Addresses, 0 where there is nothing: ``heads`` and ``head_biases``, the norms of queries
# and keys (``late``: after their rotation); ``turns`` and ``query_turns``, cosine and sine of every pair of keys and of
# queries at each position; ``sinks``; ``experts``, ``latent`` and ``mixer``, records of those names, the last in
# place of attention; ``beside``, two jobs, see ``Beside`` in the spec. ``inner_size``: width of the MLP or of the
# shared expert, or 0. Attention has heads of ``queries``, the ``kv_heads`` that they see, of which the layer has
# ``own`` or none, heads of ``width`` numbers, and ``normed`` heads with a norm
LAYER = _record(
    "heads head_biases late whole keys values turns query_turns window sinks gates soft_gates mixer queries kv_heads "
    "width own normed beside beside_activation parallel shares rereads activation gated inner_size experts latent",
    floats="factor scale cap positive negative mixer_scale mlp_scale",
    norms="inputs inner behind last beside_norm",
)
# A model and where it computes. Sizes, but for the address of ``INPUTS`` or 0, of which ``pool`` is slots and
# ``vocabulary`` the head's rows to choose among;
# ``window``: of the layers that have one, or 0, from its last multiple on if ``chunked``, whose keys and values have
# ``windowed`` slots, and each text a ring of ``ring`` of those, or none, and the slots of the pool;
# ``norm``: how norms of heads compute; ``half``: bfloat16 embeddings. Then by address: ``layers`` (of ``LAYER``; behind
# ``depth`` of them one that has the norm before the head alone), ``jobs`` (q/k/v, out, gate and up, down of each, and
# the head), the embeddings, a layer's ``attention``, the team's ``current`` job and ``state``; ``room`` for what stands
# between operations, whose parts have ``sizes`` numbers a row (see ``Rooms``), ``looks`` for what rows see (see
# ``_look``), of all layers and of those with windows, and ``scores`` of attention, ``own_scores`` for every thread;
# ``tokens``, int32 ids that the candidates stand for, or 0: each for its own number; ``taps``, int64 of every layer
# and of what lies behind the last: where among the ``kept`` states of a row in ``tapped`` what enters it is kept, or
# -1; 0: nothing is; ``walk``: of recurrent layers; ``positions``: a table of what they add to embeddings, from its row
# ``first`` to ``last``, or 0; ``embedded``: the norm of that, if its weights are not 0
BODY = _record(
    "depth hidden inputs pool vocabulary window chunked windowed ring norm half layers jobs embedding reach attention "
    "current state room sizes looks scores own_scores tokens taps tapped kept walk positions positions_half "
    "positions_first positions_last",
    floats="eps embedding_scale logit_cap",
    norms="embedded",
)
# Latent attention: by address the job of queries, or 0, and weights of both norms; ``query_rank``: that job's inputs
LATENT = _record("query query_norm key_norm rank query_rank", floats="eps")
# Inputs of layers, see ``LayerInputs``: by address the job of the matrix, the norm's weights and the table
INPUTS = _record("job norm table half width", floats="table_scale matrix_scale scale")

# A job, whose arrays are addresses. Rows of ``x`` and ``out`` are ``columns`` and ``apart`` numbers apart;
# ``bits``: of a weight, or 0: attention; ``half``: 1 where a product's inputs, or keys and values, are bfloat16;
# ``pairs``: 1 where weights are pairs of it; ``bias``: what is added to outputs, or 0;
# ``sinks``: of each query head, or 0. With a ``form`` (a number of ``formats.FORMS``, from 1) the weights are ``own``
# outputs from ``first`` on in that form, and ``more`` is the address of a job with the others, or 0. ``walk``: the
# address of a ``WALK`` in place of attention, or 0
JOB = _record(
    "rows x columns out apart bits half pairs weights panels outputs bias form first own more keys values heads slots "
    "width sees room counts shares ends requests scores own_scores skips sinks walk",
    floats="scale cap",
)

# Experts of a layer: the addresses of the router's job, which has one more output behind those of the experts if
# ``shared_gated``, of two jobs for each expert, and of what is added to scores for the choice alone, of what shares are
# multiplied by, and of four norms, see ``ExpertNorms``, or 0. ``sigmoid``: scores are that instead of a softmax, and
# with ``raw`` the choice is by what it is taken of; ``shared_scale``: of what the shared one gives;
# ``best``: scores that make a group's; ``divided``: shares add up to one; ``inside``: they multiply inputs
EXPERTS = _record(
    "count used router jobs correction scales norms activation inner sigmoid groups used_groups best divided inside "
    "raw gated shared_gated",
    floats="scale shared_scale",
)

DELTA, SCAN, CONVOLUTION, SELECTIVE = 0, 1, 2, 3
# A recurrent layer: its place among them and in a text's numbers, sizes, of which ``past`` is numbers of former inputs;
# then by address, 0 where there are none: taps of the convolution, its bias, rates of decay, what is added to steps,
# shares of values, and weights of the norm of ``normed`` numbers; ``tiled``: see ``Recurrent``. Of Mamba 1 the
# addresses of two jobs, ``choice`` and ``steps``, how far their rows are ``chosen`` and ``timed`` apart, and weights of
# norms of the ``rank`` numbers, of keys and of queries, or 0
MIXER = _record(
    "kind number at heads groups keys values kernel channels past taps bias decay step skip norm normed tiled choice "
    "steps chosen timed rank rank_norm key_norm query_norm",
    floats="eps least rate_scale",
)
# A text in a forward: its rows, and the rows behind those of all texts where its pending rows and its former inputs
# lie; by address its numbers, those that are to hold the state behind its last row (0: nothing is), and its records;
# ``borrowed``: its numbers stay as they are
STREAM = _record("first rows pending pending_at past_at state ahead records borrowed")
# What all recurrent layers of a forward share: ``streams``; each row's parent in its text in ``parents`` (-1: its
# state); of all ``rows``, then of pending ones and of ``past`` former inputs of each text, the row before it in
# ``before`` and where its tile lies in ``places`` (0: it is the text's own); ``raw``: inputs of convolutions, of
# each layer ``total`` rows of ``width`` numbers; ``mixed``: what they give; ``decays`` and ``rates`` of heads;
# ``chosen`` and ``low``: what the choice of Mamba 1 gives, and the part that steps are made of
WALK = _record(
    "mixer streams count rows pending total past width parents before places raw mixed decays rates chosen low",
)

# A row: ``position`` and ``seed`` of its noise; ``colder``: 1 / temperature, or 0: greedy; ``top_k``, ``top_p`` (0 and
# 1: off), and ``min_p``: its logarithm, or -inf
CHOICE = np.dtype(
    [
        *[("position", np.uint64), ("seed", np.uint64), ("colder", np.float32)],
        *[("top_k", np.int64), ("top_p", np.float64), ("min_p", np.float32)],
    ]
)


class Rooms(NamedTuple):
    """``rows`` rows between operations, flat, and the threads that compute them."""

    helpers: Any
    rows: Any
    positions: Any
    x: Any  # the residual stream
    seen: Any  # what attention gives
    qkv: Any
    normed: Any
    narrow: Any  # what half of a layer adds to the residual stream
    both: Any  # gate and up
    activated: Any
    routed: Any  # the router's outputs, and where there are experts
    gathered: Any  # ... rows that one takes
    given: Any  # ... what it gives
    inputs: Any  # the layers' inputs
