"""serve: the HTTP gateway as a process of its own."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from duoactor import config
from duoactor.cli.actors import prepare, supervised_option
from duoactor.cli.options import Command, Logs, config_option, log_options, settings_from, struct_options
from duoactor.serve.settings import GatewaySettings
from protocols.address import default_address
from protocols.errors import ConfigError
from protocols.extras import install

# What most people use; --help-all shows the rest
BRIEF = ("connect", "key", "server_key", "http", "api_key", "api_key_file", "cors_origin", "served_model_name", "file")


@click.command(cls=Command, brief=dict.fromkeys(BRIEF, ""), context_settings={"allow_extra_args": True})
@config_option
@struct_options(GatewaySettings, also={"http": "--port"})
@supervised_option
@log_options
@click.pass_context
def serve(context: click.Context, /, file: str, supervised: bool, logs: Logs, **flags: Any) -> int:
    """Serve the HTTP APIs of OpenAI, Anthropic and Ollama, and a page.

    For one running verifier, or several that serve the same model; they may be on other hosts.

    \b
    Example:  duoactor serve
              duoactor serve --connect tcp://127.0.0.1:7601 \\
                  --connect tcp://127.0.0.1:7701
              duoactor serve --connect tcp://gpu-box:7601 --key web.key \\
                  --server-key verifier.pub --http 0.0.0.0:8000
    """
    if context.args:
        raise click.UsageError("serve is the gateway of a verifier that runs; `duoactor up MODEL` starts both")
    prepare(supervised, logs)
    settings = settings_from(GatewaySettings, config.read(file).gateway, flags)
    settings = msgspec.structs.replace(settings, connect=settings.connect or (default_address(),))
    try:
        from duoactor.serve.start import run_gateway
    except ModuleNotFoundError as error:
        raise ConfigError(f"the gateway needs {error.name}: {install('serve')}") from None
    return run_gateway(settings)
