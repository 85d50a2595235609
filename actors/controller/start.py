"""Puts the controller together from its settings."""

from __future__ import annotations

import asyncio
import contextlib

from actors.peer import introduction
from actors.process import open_network, pin, run_actor
from actors.settings import ControllerSettings
from protocols.messages import Role


def run_controller(settings: ControllerSettings) -> int:
    """Adapt budgets until a signal."""

    async def main(stop: asyncio.Event) -> None:
        from actors.controller.loop import Controller

        pin(settings.cpus)
        with contextlib.closing(open_network(settings)) as network:
            await Controller(network, settings.connect, introduction(Role.CONTROLLER, settings.actor_id)).run(stop)

    return run_actor(main)
