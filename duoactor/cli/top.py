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
    """Watch actors and requests at work.

    In a pipe, and with --json, what happens now is printed once. `duoactor swap` and `duoactor drain` change drafters.

    \b
    Example:  duoactor top
              duoactor top --connect tcp://gpu-box:7601 --key laptop.key --server-key verifier.pub
              duoactor top --json | jq .tokens_per_second
    """
    on_terminal = sys.stdin.isatty() and render.knows_escapes(sys.stdout) and not as_json
    logging.getLogger("duoactor").addHandler(logging.NullHandler())  # the screen says it itself
    try:
        return run_until_signal(_top(environment, place, on_terminal, as_json))
    except KeyboardInterrupt:
        if on_terminal:
            return 0  # a usual way to end it
        raise


async def _top(environment: Environment, place: Place, on_terminal: bool, as_json: bool) -> int:
    from duoactor.top import draw, live, snapshot

    client = environment.connect_async(place.connect, key=place.key, server_key=place.server_key)
    console = Console(highlight=False, markup=False, emoji=False)
    try:
        if on_terminal:
            await live(client, console, sys.stdin)
            return 0
        picture = await snapshot(client)
    finally:
        await client.aclose()
    if as_json:
        render.print_json(picture)
        return 0
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, emoji=False, width=120)
    height = 9 + sum(map(len, (picture.report.drafters, picture.report.requests))) if picture.report else 9
    console.print(draw(picture, height), no_wrap=True, crop=True)
    return 0
