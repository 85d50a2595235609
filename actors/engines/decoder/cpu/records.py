"""What compiled code reads by address: a model, its layers, and the rows between operations."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

# A norm: the address of its weights, that of what is added, or 0, and how it computes
NORM = np.dtype([(name, np.int64) for name in ("weight", "bias", "kind")])
# Of a layer what is not a product. Norms: ``inputs`` and ``inner`` before its two halves, ``behind`` and ``last``
# behind them, where there are any. By address ``heads``, the norms of queries and keys, ``turns`` and ``query_turns``,
# cosine and sine of every pair of keys and of queries at each position, ``sinks``, ``experts``, ``latent`` and, in
# place of attention, ``mixer`` (of types of their names): 0 where there are none. ``inner_size``: of the MLP, or of the
# shared expert, or 0. Of attention the heads of ``queries``, the ``kv_heads`` that they see, of which the layer has
# ``own`` or none, their ``width``, and how many heads are ``normed``. ``beside``: the address of two jobs, see the spec
# of that name
LAYER = np.dtype(
    [(name, NORM) for name in ("inputs", "inner", "behind", "last")]
    + [(name, np.int64) for name in ("heads", "whole", "keys", "values", "turns", "query_turns", "window", "sinks")]
    + [(name, np.int64) for name in ("gates", "mixer", "queries", "kv_heads", "width", "own", "normed")]
    + [("beside_norm", NORM), ("beside", np.int64), ("beside_activation", np.int64), ("factor", np.float32)]
    + [(name, np.int64) for name in ("parallel", "shares", "activation", "gated", "inner_size", "experts", "latent")]
    + [(name, np.float32) for name in ("scale", "cap")]
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
# ``tokens``, int32 ids that the candidates stand for, or 0: each for its own number; ``taps``, int64 of every layer and
# of what lies behind the last: where among the ``kept`` states of a row in ``tapped`` what enters it is kept, or -1; 0:
# nothing is; ``walk``: of recurrent layers
BODY = np.dtype(
    [(name, np.int64) for name in ("depth", "hidden", "inputs", "pool", "vocabulary")]
    + [(name, np.int64) for name in ("window", "chunked", "windowed", "ring", "norm", "half")]
    + [(name, np.int64) for name in ("layers", "jobs", "embedding", "reach", "attention")]
    + [(name, np.int64) for name in ("current", "state", "room", "sizes", "looks", "scores", "own_scores", "tokens")]
    + [(name, np.int64) for name in ("taps", "tapped", "kept", "walk")]
    + [(name, np.float32) for name in ("eps", "embedding_scale", "residual_scale", "logit_cap")]
)


# Latent attention: by address the job of queries, or 0, and weights of both norms; ``query_rank``: that job's inputs
LATENT = np.dtype(
    [(name, np.int64) for name in ("query", "query_norm", "key_norm", "rank", "query_rank")] + [("eps", np.float32)]
)


# Inputs of layers, see ``LayerInputs``: by address the job of the matrix, the norm's weights and the table
INPUTS = np.dtype(
    [(name, np.int64) for name in ("job", "norm", "table", "half", "width")]
    + [(name, np.float32) for name in ("table_scale", "matrix_scale", "scale")]
)


class Rooms(NamedTuple):
    """``rows`` rows between operations, flat."""

    rows: Any
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
    inputs: Any  # of layers
