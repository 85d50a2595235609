"""The command that makes key pairs."""

from __future__ import annotations

from pathlib import Path

import click

from duoactor import render
from duoactor.cli.options import json_option
from protocols.security import KeyRole


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
    """Make a CURVE key pair, for connections between hosts.

    NAME.key is secret and stays on the host that uses it. Copy NAME.pub to the directory that the verifier names with
    --allow; the verifier's own goes to the hosts that connect to it, as their --server-key. The second line of NAME.pub
    holds its roles; only the copy in --allow counts. An operator may swap and drain, and sees all requests.

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
