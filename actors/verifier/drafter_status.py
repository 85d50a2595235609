"""What a drafter's line in the status report says: its state, and what its drafts gained."""

from __future__ import annotations

from actors.verifier.drafters import DrafterPeer
from actors.verifier.totals import Totals
from actors.verifier.trials import Trials
from protocols.messages import DrafterStatus, Promote


def drafter_status(drafter: DrafterPeer, promoted: Promote | None, trials: Trials, totals: Totals) -> DrafterStatus:
    """``promoted``: the weights in force, by a learner."""
    said, drafts = drafter.said, totals.of_drafter(drafter.actor_id)
    gain = promoted.gain if promoted is not None and 0 < promoted.version == said.version else 0.0
    known = trials.all_of(drafter.source)
    if drafter.draining:
        state = "draining"
    elif drafter.leases:
        state = "active"
    else:
        state = "paused" if any(rests for _, rests in known) else "standby"
    shown = (trial for trial, rests in known if rests or state != "paused")
    latest = max(shown, key=lambda trial: trial.rounds, default=None)
    return DrafterStatus(
        actor_id=drafter.actor_id,
        model_id=drafter.hello.model_id,
        state=state,
        leases=drafter.leases,
        step_us=drafter.pace.step_us,
        drafted=sum(one.tokens for one in drafts),
        accepted=sum(one.accepted for one in drafts),
        dropped=drafter.dropped,
        host=drafter.hello.host,
        pid=drafter.hello.pid,
        speedup=latest.gain.mean if latest is not None and latest.rounds else 0.0,
        tokens_per_second=drafts[-1].rate.mean if drafts else 0.0,
        version=said.version,
        gain=gain,
        trouble=said.trouble,
    )
