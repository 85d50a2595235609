"""The command that makes key pairs."""

from __future__ import annotations

from pathlib import Path

import click

from duoactor import render
from duoactor.cli.options import json_option


@click.command()
@click.argument("name")
@click.option("--directory", default=".", metavar="DIR", help="where to write the two files  [.]")
@json_option
def keys(name: str, directory: str, as_json: bool) -> None:
    """Make a CURVE key pair, to talk across a network.

    NAME.key is secret and stays on the host that uses it. Copy NAME.pub to the verifier's --allow directory (or,
    for the verifier's own pair, to the hosts that connect to it: it is their --server-key).

    \b
    Example:  duoactor keys verifier --directory keys
              duoactor keys laptop --directory keys
    """
    from protocols.security import KeyPair  # loads ZeroMQ

    secret, public = KeyPair.generate().write(Path(directory), name)
    render.print_done(
        {"secret": str(secret), "public": str(public)}, f"wrote {secret} (keep it secret) and {public}", as_json
    )
