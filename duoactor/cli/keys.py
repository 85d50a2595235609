"""The command that makes key pairs."""

from __future__ import annotations

from pathlib import Path

import click

from duoactor import render
from duoactor.cli.options import json_option
from protocols.enumerations import KeyRole


@click.command()
@click.argument("name")
@click.option(
    "--role",
    "roles",
    multiple=True,
    type=click.Choice([str(role) for role in KeyRole]),
    help="what the key is for; may be repeated  [client]",
)
@click.option("--directory", default=".", metavar="DIR", help="where to write the two files  [.]")
@json_option
def keys(name: str, roles: tuple[str, ...], directory: str, as_json: bool) -> None:
    """Make a CURVE key pair, to talk across a network.

    NAME.key is secret and stays on the host that uses it. Copy NAME.pub to the verifier's --allow directory (or,
    for the verifier's own pair, to the hosts that connect to it: it is their --server-key). Its second line holds the
    roles: the copy in --allow is what counts. An operator may swap and drain, and sees everybody's requests.

    \b
    Example:  duoactor keys verifier --directory keys
              duoactor keys laptop --role drafter --directory keys
              duoactor keys admin --role operator --directory keys
    """
    from protocols.security import KeyPair  # loads ZeroMQ

    secret, public = KeyPair.generate().write(Path(directory), name, map(KeyRole, roles))
    render.print_done(
        {"secret": str(secret), "public": str(public)}, f"wrote {secret} (keep it secret) and {public}", as_json
    )
