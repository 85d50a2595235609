"""Puts the controller together from its settings."""

from __future__ import annotations

import asyncio
import os
import socket

from actors.process import incarnation, open_network, pin, run_actor
from actors.settings import ControllerSettings
from protocols.messages import Hello, Role


def run_controller(settings: ControllerSettings) -> int:
    """Adapt budgets until a signal."""

    async def main(stop: asyncio.Event) -> None:
        from actors.controller.loop import Controller

        pin(settings.cpus)
        network = open_network(settings)
        try:
            hello = Hello(
                Role.CONTROLLER,
                settings.actor_id,
                incarnation(),
                host=socket.gethostname(),
                pid=os.getpid(),
            )
            await Controller(network, settings.connect, hello).run(stop)
        finally:
            network.close()

    return run_actor(main)
