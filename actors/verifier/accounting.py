"""What a round took and brought. The controller and the benchmark live on these statistics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from actors.verifier.decoding.rounds import Chosen, Committed
from actors.verifier.drafters.registry import DrafterPeer
from actors.verifier.requests.request import Request
from protocols.messages import RoundStats


class Forward(NamedTuple):
    """A round's target forward: microseconds, the first since the verifier's start; ``rows`` of all its requests."""

    started_us: float
    started_at: float  # the same in seconds of the verifier's clock
    took_us: float
    rows: int
    decode_us: float  # of that, what is not for a piece of a prompt beside it ...
    decode_rows: int  # ... and the rows
    requests: int  # that those rows are of
    drafted: Mapping[bytes | None, int]  # rows that each drafter's drafts took
    prompts_us: float  # since the verifier's start: what forwards took for prompts
    streams: int  # that decode, whether they had a part in it or waited
    slowdown: float  # against the calibration, as it is believed now

    def rows_without(self, drafter: bytes) -> int:
        """Rows that it would have had without that drafter's drafts."""
        return self.decode_rows - self.drafted.get(drafter, 0)


def account(
    request: Request,
    drafter: DrafterPeer | None,
    forward: Forward,
    chosen: Chosen,
    committed: Committed,
    now: float,
) -> tuple[RoundStats, float]:
    """Close one request's books on a round that ends at ``now`` (seconds). Also what the round would have taken had
    nobody's prompt been computed since the last, in microseconds."""
    spec = request.spec
    wall_us, wait_us, own_us = request.round_over(now, forward.took_us, forward.prompts_us)
    spec.took(forward.took_us, len(committed.tokens), own_us)
    told = spec.take_draft_log()
    window, accepted = len(chosen.nodes), sum(committed.accepted)
    if drafter is not None:
        drafter.credit(window, accepted)
    stats = RoundStats(
        request.rid,
        spec.round,
        request.method,
        drafter.actor_id if drafter is not None else "",
        window=window,
        accepted=accepted,
        committed=len(committed.tokens),
        rows=forward.rows,
        forward_us=forward.took_us,
        wait_us=wait_us,
        wall_us=wall_us,
        sequences=spec.sequences,
        gamma=spec.plan.gamma,
        started_us=forward.started_us,
        phase_sequences=told.phase[0],
        phase_rank=told.phase[1],
        draft_ranks=tuple(told.ranks),
        retrieved=spec.windows.retrieved(committed),
        resting=spec.resting,
        fixed_gamma=request.message.num_speculative_tokens,
        fixed_sequences=request.message.sequences,
        draft_forwards=tuple(told.forwards),
        waited_from_us=forward.started_us - (forward.started_at * 1e6 - spec.waiting.since) if wait_us else 0.0,
        streams=forward.streams,
        slowdown=forward.slowdown,
        message_us=drafter.pace.message.mean if drafter is not None else 0.0,
    )
    return stats, own_us
