"""Puts the controller together from its settings."""

from __future__ import annotations

import asyncio

from actors.peer import introduction
from actors.process import open_network, pin, run_actor
from actors.settings import ControllerSettings
from protocols.messages import Role


def run_controller(settings: ControllerSettings) -> int:
    """Adapt budgets until a signal."""

    async def main(stop: asyncio.Event) -> None:
        from actors.controller.loop import Controller

        pin(settings.cpus)
        network = open_network(settings)
        try:
            hello = introduction(Role.CONTROLLER, settings.actor_id)
            await Controller(network, settings.connect, hello).run(stop)
        finally:
            network.close()

    return run_actor(main)
