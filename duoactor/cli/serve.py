"""serve: the HTTP gateway as a process of its own."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from duoactor import config
from duoactor.cli.options import config_option, given, log_options, struct_options
from duoactor.cli.up import _address, _file, _prepare, supervised_option
from duoactor.serve.settings import GatewaySettings
from protocols.errors import ConfigError


@click.command()
@config_option
@struct_options(GatewaySettings)
@supervised_option
@log_options
def serve(file: str, supervised: bool, verbose: bool, quiet: bool, **flags: Any) -> int:
    """Serve OpenAI's HTTP API for a running verifier, here or on another host.

    \b
    Example:  duoactor serve
              duoactor serve --connect tcp://gpu-box:7601 --key web.key --server-key verifier.pub --http 0.0.0.0:8000
    """
    _prepare(supervised, verbose, quiet)
    settings = config.build(GatewaySettings, _file(file).gateway, given(flags, GatewaySettings))
    settings = msgspec.structs.replace(settings, connect=_address(settings.connect))
    try:
        from duoactor.serve.start import run_gateway
    except ModuleNotFoundError as error:
        raise ConfigError(f"the gateway needs {error.name}: pip install 'duoactor[serve]'") from None
    return run_gateway(settings)
