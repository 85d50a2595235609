"""top: the actors and requests at work, in a terminal."""

from __future__ import annotations

import contextlib
import logging
import sys

import click
from rich.console import Console

from duoactor import render
from duoactor.cli.environment import Environment
from duoactor.cli.options import Command, Place, place_options
from duoactor.launch.signals import run_until_signal


@click.command(cls=Command)
@place_options
@click.pass_obj
def top(environment: Environment, /, place: Place) -> int:
    """Watch actors and requests at work.

    `duoactor status` prints them once, `duoactor swap` and `duoactor drain` change drafters.

    \b
    Example:  duoactor top
              duoactor top --connect tcp://gpu-box:7601 --key laptop.key \\
                  --server-key verifier.pub
    """
    if not (sys.stdin.isatty() and render.knows_escapes(sys.stdout)):
        raise click.UsageError("top needs a terminal; `duoactor status`, with --json too, prints what it shows once")
    from duoactor.top import live

    logging.getLogger("duoactor").addHandler(logging.NullHandler())  # the screen says it itself

    async def watch() -> None:
        client = environment.connect_async(place.connect, key=place.key, server_key=place.server_key)
        await live(client, Console(highlight=False, markup=False, emoji=False), sys.stdin)

    with contextlib.suppress(KeyboardInterrupt):  # a usual way to end it
        run_until_signal(watch())
    return 0
