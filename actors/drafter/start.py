"""Puts a drafter together from its settings: draft model, calibration, network, loop.

torch is imported here, lazily, and not at all by a drafter that retrieves.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from actors.peer import introduction
from actors.process import CLOCK, open_network, pin, run_actor
from actors.settings import DrafterSettings, retrieves
from protocols.messages import Role

if TYPE_CHECKING:
    from actors.models import DraftModel

log = logging.getLogger("duoactor")


def load_draft(settings: DrafterSettings) -> DraftModel:
    if retrieves(settings.draft):
        from actors.proposers.draft_model import build_proposer_draft

        return build_proposer_draft(settings.draft)
    from actors.engines.build import build_draft

    return build_draft(
        settings.draft,
        settings.device,
        settings.dtype,
        settings.kv_tokens,
        settings.threads,
    )


def run_drafter(settings: DrafterSettings, load: Callable[[DrafterSettings], DraftModel] = load_draft) -> int:
    """Load the draft model, measure it, draft until a signal or until drained. Returns the process's exit code."""

    async def main(stop: asyncio.Event) -> None:
        from actors.draft_timing import measure_draft
        from actors.drafter.loop import Drafter

        def warm(path: str) -> DraftModel:
            model = load(replace(settings, draft=path or settings.draft))
            measure_draft(model)  # for its warmth: of the same shape, it takes as long as the one that serves
            return model

        async def again(path: str) -> DraftModel:
            return await asyncio.to_thread(warm, path)

        pin(settings.cpus)
        network = open_network(settings)
        try:
            model = load(settings)
            steps = measure_draft(model)
            hello = introduction(Role.DRAFTER, settings.actor_id, model.info)
            hello = replace(hello, step_us=steps[min(steps)], loads=not retrieves(settings.draft))
            gc.freeze()
            name = "" if settings.actor_id else f" as {hello.actor_id}"  # who chose the name, or `up`, knows it
            log.info("ready%s: %s, %.2f ms a step", name, hello.model_id, steps[min(steps)] / 1000)
            drafter = Drafter(model, network, settings.connect, hello, steps, clock=CLOCK, load=again)
            await drafter.run(stop)
        finally:
            network.close()

    return run_actor(main)
