"""What a round took and brought. The controller and the benchmark live on these statistics."""

from __future__ import annotations

from dataclasses import dataclass

from actors.verifier.drafters import DrafterPeer
from actors.verifier.request import Request
from actors.verifier.rounds import Chosen, Committed
from protocols.messages import RoundStats


@dataclass(frozen=True, slots=True)
class Forward:
    """A round's target forward: microseconds, the first since the verifier's start; ``rows`` of all its requests."""

    started_us: float
    started_at: float  # the same in seconds of the verifier's clock
    took_us: float
    rows: int
    streams: int  # that decode, whether they had a part in it or waited
    slowdown: float  # against the calibration, as it is believed now


def account(
    request: Request,
    drafter: DrafterPeer | None,
    forward: Forward,
    chosen: Chosen,
    committed: Committed,
    now: float,
) -> RoundStats:
    """Close one request's books on a round that ends at ``now`` (seconds)."""
    spec = request.spec
    wall_us = (now - request.round_ended_at) * 1e6
    wait_us = spec.counters.wait_us - request.waited_us
    request.waited_us = spec.counters.wait_us
    request.round_ended_at = now
    request.overhead_us += max(0.0, wall_us - forward.took_us - wait_us)
    spec.counters.forward_us += forward.took_us
    spec.rate.add(len(committed.tokens), wall_us)
    if drafter is not None:
        drafter.credit(len(chosen.nodes), sum(committed.accepted))
    draft_us, draft_steps = spec.take_draft_time()
    phase_sequences, phase_rank = spec.take_phase()
    return RoundStats(
        request.rid,
        spec.round,
        request.method,
        drafter.actor_id if drafter is not None else "",
        window=len(chosen.nodes),
        accepted=sum(committed.accepted),
        committed=len(committed.tokens),
        rows=forward.rows,
        forward_us=forward.took_us,
        wait_us=wait_us,
        wall_us=wall_us,
        draft_us=draft_us,
        draft_steps=draft_steps,
        sequences=spec.sequences,
        needed_sequences=committed.needed_sequences,
        gamma=spec.plan.gamma,
        started_us=forward.started_us,
        phase_sequences=phase_sequences,
        phase_rank=phase_rank,
        draft_ranks=spec.take_draft_ranks(),
        retrieved=spec.retrieved(committed),
        resting=spec.resting,
        fixed_gamma=request.message.num_speculative_tokens,
        fixed_sequences=request.message.sequences,
        draft_forwards=spec.take_draft_forwards(),
        waited_from_us=forward.started_us - (forward.started_at * 1e6 - spec.wait_since) if wait_us else 0.0,
        streams=forward.streams,
        slowdown=forward.slowdown,
        message_us=drafter.pace.message.mean if drafter is not None else 0.0,
    )
