"""Starts a drafter from its settings: draft model, calibration, network, loop.

torch is imported inside functions, and not at all by a drafter that retrieves its drafts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from actors.peer import Line, introduction
from actors.process import CLOCK, loading, open_network, pin, run_actor
from actors.settings import DrafterSettings, retrieves
from protocols import wire
from protocols.messages import Role, ToDrafter

if TYPE_CHECKING:
    from actors.models import DraftModel

log = logging.getLogger("duoactor")


def load_draft(settings: DrafterSettings) -> DraftModel:
    """The draft model, or the proposer in its place. Raises ModelError or ConfigError."""
    if retrieves(settings.draft):
        from actors.drafter.proposer import build_proposer_draft

        return build_proposer_draft(settings.draft)
    if settings.target:
        from actors.engines.heads.build import build_apart

        return build_apart(settings.draft, settings.target, settings.kv_tokens, settings.threads)
    from actors.engines.build import EngineOptions, build_draft

    place = EngineOptions(settings.device, settings.dtype, settings.kv_tokens, settings.threads)
    return build_draft(settings.draft, place)


def run_drafter(settings: DrafterSettings, load: Callable[[DrafterSettings], DraftModel] = load_draft) -> int:
    """Load the draft model, measure it, draft until a signal or until drained. Returns the process's exit code."""

    async def main(stop: asyncio.Event) -> None:
        from actors.draft_timing import measure_draft
        from actors.drafter.loop import Drafter
        from actors.generations import promoted

        def load_warm(path: str) -> DraftModel:
            model = load(replace(settings, draft=promoted(path) if path else settings.draft))
            measure_draft(model)  # only to warm it up: its shape, and so its step time, is the serving model's
            return model

        async def reload(path: str) -> DraftModel:
            return await asyncio.to_thread(load_warm, path)

        pin(settings.cpus)
        network = open_network(settings)
        try:
            with loading():
                model = load(settings)
                steps = measure_draft(model)
            hello = introduction(Role.DRAFTER, settings.actor_id, model.info)
            hello = replace(hello, step_us=steps[min(steps)], loads=not retrieves(settings.draft) and not model.taps)
            hello = replace(hello, states=model.taps)
            name = "" if settings.actor_id else f" as {hello.actor_id}"  # a name from the settings is known
            log.info("ready%s: %s, %.2f ms a step", name, hello.model_id, steps[min(steps)] / 1000)
            line = Line(network, settings.connect, hello, wire.Decoder(ToDrafter), CLOCK)
            await Drafter(model, line, steps, load=reload).run(stop)
        finally:
            network.close()

    return run_actor(main)
