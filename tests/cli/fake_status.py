"""The verifier's status as the fakes of ``demo`` and ``bench`` tell it."""

from __future__ import annotations

from collections.abc import Mapping

from protocols.messages import ActorStatus, DrafterStatus, Role, StatusReport, TargetStatus


def status_of(pids: Mapping[Role, int]) -> StatusReport:
    """One drafter and a controller, under those process ids."""
    drafter = DrafterStatus("d", "m", "active", 0, 1000.0, 0, 0, 0, pid=pids.get(Role.DRAFTER, 0))
    return StatusReport(
        "",
        "sps",
        0.0,
        TargetStatus("m", "cpu", "float32", 0, 0),
        ActorStatus("verifier", pid=pids.get(Role.VERIFIER, 0)),
        drafters=(drafter,),
        controller=ActorStatus("controller", pid=pids.get(Role.CONTROLLER, 0)),
    )
