"""top: the actors and requests at work, in a terminal."""

from __future__ import annotations

import logging
import sys

import click
from rich.console import Console

from duoactor import render
from duoactor.cli.environment import Environment
from duoactor.cli.options import Place, json_option, place_options
from duoactor.cli.sections import Command
from duoactor.launch.signals import run_until_signal


@click.command(cls=Command)
@place_options
@json_option
@click.pass_obj
def top(environment: Environment, /, place: Place, as_json: bool) -> int:
    """Watch actors and requests at work. Its keys swap and drain drafters.

    The lanes show when the target verified and when drafters drafted, as they measured it themselves. In a pipe, and
    with --json, what goes on now is printed once.

    \b
    Example:  duoactor top
              duoactor top --connect tcp://gpu-box:7601 --key laptop.key --server-key verifier.pub
              duoactor top --json | jq .tokens_per_second
    """
    live = sys.stdin.isatty() and render.knows_escapes(sys.stdout) and not as_json
    logging.getLogger("duoactor").addHandler(logging.NullHandler())  # the screen says it itself
    try:
        return run_until_signal(_top(environment, place, live, as_json))
    except KeyboardInterrupt:
        if live:
            return 0  # a usual way to end it
        raise


async def _top(environment: Environment, place: Place, live: bool, as_json: bool) -> int:
    from duoactor.top.screen import Screen, snapshot, whole

    client = environment.connect_async(place.connect, key=place.key, server_key=place.server_key)
    console = Console(highlight=False, markup=False, emoji=False)
    try:
        if live:
            await Screen(client, console, sys.stdin).run()
            return 0
        picture = await snapshot(client)
    finally:
        await client.aclose()
    if as_json:
        render.print_json(picture)
        return 0
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, emoji=False, width=120)
    for line in whole(picture, console):
        console.print(line, no_wrap=True, crop=True)
    return 0
