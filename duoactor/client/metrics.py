"""The figures of one request, or of several together, under the names that vLLM and its kin use."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from protocols.messages import RequestStats


def metrics(stats: RequestStats) -> dict[str, Any]:
    """The metrics of HTTP answers and ``--json`` documents."""
    return {
        "prompt_tokens": stats.prompt_tokens,
        "cached_tokens": stats.cached_tokens,
        "completion_tokens": stats.completion_tokens,
        "time_to_first_token_ms": stats.time_to_first_token_ms,
        "tokens_per_second": tokens_per_second(stats),
        "speculative_decoding": {
            "method": stats.method,
            "mean_acceptance_length": mean_acceptance_length(stats),
            "draft_acceptance_rate": stats.accepted_tokens / stats.draft_tokens if stats.draft_tokens else 0.0,
            "acceptance_histogram": list(stats.acceptance_histogram),
            "num_spec_steps": stats.rounds,
            "num_draft_tokens": stats.draft_tokens,
            "num_accepted_draft_tokens": stats.accepted_tokens,
        },
    }


def tokens_per_second(stats: RequestStats) -> float:
    """Output tokens over the whole time, prefill included."""
    seconds = (stats.time_to_first_token_ms + stats.decode_ms) / 1000
    return stats.completion_tokens / seconds if seconds else 0.0


def mean_acceptance_length(stats: RequestStats) -> float:
    return 1 + stats.accepted_tokens / stats.rounds if stats.rounds else 1.0


def together(stats: Sequence[RequestStats]) -> RequestStats:
    """Several requests that ran at the same time, as one: counts add up, times are the longest."""
    if len(stats) == 1:
        return stats[0]
    return RequestStats(
        method=stats[0].method if len({one.method for one in stats}) == 1 else "",
        prompt_tokens=sum(one.prompt_tokens for one in stats),
        cached_tokens=sum(one.cached_tokens for one in stats),
        completion_tokens=sum(one.completion_tokens for one in stats),
        time_to_first_token_ms=min(one.time_to_first_token_ms for one in stats),
        decode_ms=max(one.time_to_first_token_ms + one.decode_ms for one in stats)
        - min(one.time_to_first_token_ms for one in stats),
        rounds=sum(one.rounds for one in stats),
        draft_tokens=sum(one.draft_tokens for one in stats),
        accepted_tokens=sum(one.accepted_tokens for one in stats),
        acceptance_histogram=tuple(map(sum, zip_longest(*(one.acceptance_histogram for one in stats), fillvalue=0))),
    )
