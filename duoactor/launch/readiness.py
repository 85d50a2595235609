"""Asking the verifier of a deployment how it is: before it starts whether it can bind, then whether all are there."""

from __future__ import annotations

import asyncio

from duoactor.launch.deployment import Deployment
from duoactor.launch.supervisor import Probe
from protocols.errors import ConnectionLost
from protocols.messages import StatusReport

PROBE_TIMEOUT_S = 1.0  # a verifier that loads its model does not answer; what is shown meanwhile is as old as this


def check_address(deployment: Deployment) -> None:
    """Bind the verifier's address for a moment. Raises ConfigError, in one sentence that says what is needed, for what
    would otherwise end the verifier while other actors load: keys that are missing, an address in use."""
    from actors.process import open_network

    async def bind() -> None:
        network = open_network(deployment.verifier)
        try:
            network.listen(deployment.verifier.bind)
        finally:
            network.close()
        for peer in (*deployment.drafters, deployment.controller):
            open_network(peer).close()

    asyncio.run(bind())


def ask_status(deployment: Deployment) -> Probe:
    """Asks the verifier of ``deployment`` for its status, once per call."""
    from duoactor.client.async_client import AsyncClient

    keys = deployment.controller

    async def probe() -> StatusReport | None:
        try:
            async with AsyncClient(
                deployment.address, key=keys.key, server_key=keys.server_key, timeout=PROBE_TIMEOUT_S
            ) as client:
                return await client.status()
        except ConnectionLost:
            return None

    return probe
