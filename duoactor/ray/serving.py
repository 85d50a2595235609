"""The gateway on Ray Serve: its proxies listen and spread requests over replicas. Each is a gateway of its own.

Nothing that a replica knows is needed by another: it finds the verifiers by the name of their set.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping
from typing import Any

import msgspec
from ray import serve
from starlette.types import ASGIApp, Receive, Scope, Send

from duoactor.config import build
from duoactor.config import options as options_of
from duoactor.launch.child import GATEWAY
from duoactor.ray.cluster import Cluster, connect, connect_to_ray, find_hosts
from duoactor.serve.auth import read_keys
from duoactor.serve.settings import GatewaySettings
from duoactor.serve.start import make_gateway
from protocols.errors import ConfigError

DECIDED = ("connect", "key", "server_key", "http")
# Serve's own default of 5 is for replicas that compute. Ours wait: who may run is for the verifiers to say, which know
# of priorities, deadlines and their memory.
MAX_ONGOING_REQUESTS = 1000


def gateway(name: str, options: Mapping[str, Any]) -> serve.Application:
    """See :func:`duoactor.ray.gateway`."""
    settings, deployment = sort_options(options)
    connect_to_ray()
    find_hosts(name)  # a wrong name is told at once, not by replicas that start again and again
    make = serve.deployment(**deployment)
    return make(serve.ingress(GatewayApp(name, settings))(Replica)).bind()


def sort_options(options: Mapping[str, Any]) -> tuple[GatewaySettings, dict[str, Any]]:
    """The gateway's own, with the keys of its key file, and those of ``serve.deployment``. ConfigError."""
    ours = {option.name: option for option in options_of(GatewaySettings)}
    theirs = inspect.signature(serve.deployment).parameters
    own: dict[str, object] = {}
    deployment: dict[str, Any] = {}
    for name, value in options.items():
        if name in DECIDED:
            raise ConfigError(
                f"{name} = {value!r} has no meaning on Ray Serve, whose proxies listen, and whose replicas find the "
                "verifiers and their keys by themselves: leave it out"
            )
        if name in ours:
            own[name] = (value,) if ours[name].repeated and isinstance(value, str) else value
        elif name in theirs:
            deployment[name] = value
        else:
            raise ConfigError(
                f"there is no option {name}: docs/configuration.md lists the gateway's, and Ray those of "
                "serve.deployment"
            )
    settings = build(GatewaySettings, own)
    settings = msgspec.structs.replace(settings, api_key=read_keys(settings), api_key_file="")
    resources = {"num_cpus": 0} | (deployment.get("ray_actor_options") or {})
    defaults = {"name": GATEWAY, "max_ongoing_requests": MAX_ONGOING_REQUESTS}
    return settings, defaults | deployment | {"ray_actor_options": resources}


class GatewayApp:
    """An ASGI app that Serve hands to every replica, where it becomes a gateway when the replica starts and ends in
    order with it."""

    def __init__(self, name: str, settings: GatewaySettings) -> None:
        self._name, self._settings = name, settings
        self._cluster: Cluster
        self._app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        # A route prefix is Serve's: our routes, and what needs no key among them, are named without it.
        path = scope["path"].removeprefix(scope.get("root_path", "")) or "/"
        await self._app({**scope, "path": path, "root_path": ""}, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        self._cluster = await asyncio.to_thread(connect, self._name)
        try:
            gateway, self._app = make_gateway(
                msgspec.structs.replace(
                    self._settings,
                    connect=self._cluster.addresses,
                    key=self._cluster.key,
                    server_key=self._cluster.server_key,
                )
            )
            try:
                await send({"type": "lifespan.startup.complete"})
                await receive()  # once Serve has waited for the requests under way
            finally:
                await gateway.aclose()
        finally:
            await asyncio.to_thread(self._cluster.close)
        await send({"type": "lifespan.shutdown.complete"})

    async def check(self) -> None:
        """ConfigError if only another replica in place of this one can help.

        Not while verifiers are away: a new replica would not reach them either, and streams that wait for them here
        would be lost.
        """
        if await asyncio.to_thread(self._cluster.replaced):
            raise ConfigError(f"the set of actors named {self._name} was started anew, with other keys")


class Replica:
    """What Serve asks a replica beside HTTP."""

    app: GatewayApp  # Serve's, from serve.ingress

    async def check_health(self) -> None:
        """Raises where Serve is to put another replica in place of this one."""
        await self.app.check()
