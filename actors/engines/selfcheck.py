"""Which numbers of rows give the same bits on this machine? Speculation is bit-exact among those (DESIGN section 3)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from actors.engines.attention import span_for
from actors.engines.engine import Engine, Segment

ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
LARGE = (48, 64)  # for Lookahead and REST alone, so these have no say in which group is chosen
CONTEXT = 244  # 12 rows behind it end within 256 slots, 16 do not: spans differ as they do between real rounds


def rows_that_agree(engine: Engine, candidates: Sequence[int] = ROWS, larger: Sequence[int] = LARGE) -> tuple[int, ...]:
    """The largest group of row counts that computed the same logits, bit for bit; among equals that with the fewest
    rows. Those of ``larger`` that agree with the chosen group are added to it.

    One chain of tokens is computed behind a short context in rounds of each size, in slots at the start of the pool,
    which must not be in use. Afterwards they count as free again.
    """
    most = max(candidates)
    length = min(CONTEXT, engine.pool.slots - most, max(1, engine.info.max_context - most))
    candidates = [n for n in candidates if length + n <= engine.pool.slots]
    larger = [n for n in larger if length + n <= min(engine.pool.slots, engine.info.max_context)]
    vocabulary = engine.info.vocab_size
    tokens = [(7919 * (i + 1)) % vocabulary for i in range(length + max(most, *larger, 0))]
    _chain(engine, tokens, 0, length)
    groups: list[tuple[torch.Tensor, list[int]]] = []
    for rows in sorted(candidates, reverse=True):
        logits = _chain(engine, tokens, length, rows)
        for reference, members in groups:
            shared = min(rows, reference.shape[0])
            if torch.equal(reference[:shared], logits[:shared]):
                members.append(rows)
                break
        else:
            groups.append((logits, [rows]))
    reference, best = max(groups, key=lambda group: (len(group[1]), -min(group[1])))
    shared = reference.shape[0]
    best += [n for n in larger if torch.equal(reference, _chain(engine, tokens, length, n)[:shared])]
    return tuple(sorted(best))


def _chain(engine: Engine, tokens: Sequence[int], start: int, rows: int) -> torch.Tensor:
    span = min(span_for(start + rows), engine.pool.slots)
    visible = np.tril(np.ones((rows, span), dtype=np.bool_), k=start)
    places = range(start, start + rows)
    return engine.forward(tokens[start : start + rows], places, places, [Segment(rows, 0, span, visible)])
