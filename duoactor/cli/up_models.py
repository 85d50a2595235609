"""``duoactor up`` with several models behind one port, of which one is loaded at a time."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from msgspec.structs import replace

from duoactor.cli.environment import Environment, private_address
from duoactor.cli.options import Logs
from duoactor.launch.deployment import reachable_http
from duoactor.launch.progress import LaunchReport
from duoactor.launch.signals import Terminated, run_until_signal
from duoactor.launch.summary import http_url
from duoactor.launch.wanted import ClashError, Wanted
from duoactor.serve.settings import GatewaySettings
from protocols.errors import ConfigError
from protocols.extras import install


def up_models(wanted: Mapping[str, Callable[[], Wanted]], environment: Environment, logs: Logs) -> int:
    """``wanted``: what to start for each model, by its name in requests."""
    settings = next(iter(wanted.values()))().gateway
    if settings is None:
        raise ClashError("the file has [models], which requests name: leave --http none out")
    try:
        run_until_signal(_serve(wanted, settings, environment, logs))
    except ModuleNotFoundError as error:
        raise ConfigError(f"the gateway needs {error.name}: {install('serve')}") from None
    except (KeyboardInterrupt, Terminated):
        pass  # the usual way to end it
    return 0


async def _serve(
    wanted: Mapping[str, Callable[[], Wanted]], settings: GatewaySettings, environment: Environment, logs: Logs
) -> None:
    from duoactor.serve.auth import read_keys
    from duoactor.serve.several import Models, guarded
    from duoactor.serve.start import Server, listen

    keys = read_keys(settings)
    loads = {name: partial(_loaded, name, make, settings, environment, logs) for name, make in wanted.items()}
    models = Models(loads, settings.unload_after)
    with listen(settings.http) as listener:
        url = http_url(*reachable_http(settings.http))
        print(f"{url}/v1 serves {', '.join(wanted)}; each is loaded when it is asked for", flush=True)
        try:
            await Server(guarded(models, settings, keys)).serve(sockets=[listener])
        finally:
            await asyncio.shield(models.aclose())


@asynccontextmanager
async def _loaded(
    name: str, make: Callable[[], Wanted], settings: GatewaySettings, environment: Environment, logs: Logs
) -> AsyncIterator[Any]:
    """The app of one model while its actors run."""
    from duoactor.serve.start import make_gateway

    wanted = await asyncio.to_thread(make)
    with private_address() as address:
        deployment = environment.deploy(dataclasses.replace(wanted.at(address), gateway=None), logs.flags)
        async with environment.supervised(deployment, LaunchReport(quiet=logs.quiet)):
            own = replace(settings, connect=(address,), served_model_name=(name,), api_key=(), api_key_file="")
            gateway, app = make_gateway(own)
            try:
                yield app
            finally:
                await gateway.aclose(settings.shutdown_timeout)
