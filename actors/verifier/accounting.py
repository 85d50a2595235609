"""The statistics of a round, which the controller and the benchmark read: what it took, and how many tokens it gave."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from actors.verifier.drafters import DrafterPeer
from actors.verifier.rounds import Chosen, Committed
from actors.verifier.streams import Request
from protocols.messages import RoundStats


class Forward(NamedTuple):
    """A target forward that a round had a part in, or several in a row without drafts. Times are microseconds, of all
    of them together."""

    started_us: float  # since the verifier's start
    started_at: float  # the same in seconds of the verifier's clock
    took_us: float
    rows: int  # a piece of a prompt included
    decode_us: float  # of ``took_us``, without the piece of a prompt
    decode_rows: int  # of ``rows``, without the piece of a prompt
    requests: int  # whose windows these rows are
    drafted: Mapping[bytes | None, int]  # by drafter: rows of its drafts; None: of requests without a drafter
    prompts_us: float  # that all forwards since the verifier's start took for prompts
    streams: int  # requests that decode, whether they had a part in this forward or waited
    slowdown: float  # of such forwards against the calibration, as estimated now
    forwards: int = 1  # how many

    def rows_without(self, drafter: bytes) -> int:
        """``decode_rows`` without the drafts of one drafter."""
        return self.decode_rows - self.drafted.get(drafter, 0)


def account(
    request: Request,
    drafter: DrafterPeer | None,
    forward: Forward,
    chosen: Chosen,
    committed: Committed,
    now: float,
) -> tuple[RoundStats, float]:
    """Account for one request's round, which ends at ``now`` (seconds): update its sums, and return the statistics to
    publish and the microseconds that the round took without the prompts computed since the last one."""
    spec = request.spec
    wall_us, wait_us, own_us = request.round_over(now, forward.took_us, forward.prompts_us)
    spec.took(forward.took_us, len(committed.tokens), own_us)
    told = spec.take_draft_log()
    window, accepted = len(chosen.nodes), sum(committed.accepted)
    credit = spec.windows.credit(committed)
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
        from_draft=credit.draft,
        from_both=credit.both,
        from_text=credit.text,
        from_memory=credit.memory,
        from_datastore=credit.datastore,
    )
    return stats, own_us
