"""Commands that look at running actors and change who drafts: status, drafters, swap, drain."""

from __future__ import annotations

from pathlib import Path

import click

from duoactor import render
from duoactor.cli.environment import Environment
from duoactor.cli.options import Command, Place, json_option, place_options
from duoactor.cli.waiting import connected
from duoactor.status import print_drafters, print_status
from protocols.messages import OWN_HEAD


@click.command(cls=Command)
@place_options
@json_option
@click.pass_obj
def status(environment: Environment, /, place: Place, as_json: bool) -> None:
    """Show the verifier, its drafters and the requests in flight.

    \b
    Example:  duoactor status
              duoactor status --json | jq .drafters
    """
    with connected(environment, place, quiet=as_json) as client:
        report = client.status()
    if as_json:
        render.print_json(report)
    else:
        print_status(report)


@click.command(cls=Command)
@place_options
@json_option
@click.pass_obj
def drafters(environment: Environment, /, place: Place, as_json: bool) -> None:
    """List the drafters with state, gain and acceptance rate.

    \b
    Example:  duoactor drafters
    """
    with connected(environment, place, quiet=as_json) as client:
        report = client.status()
    if as_json:
        render.print_json(report.drafters)
    else:
        print_drafters(report.drafters, report.method)


@click.command(cls=Command)
@click.argument("old")
@click.argument("new", default="")
@place_options
@json_option
@click.pass_obj
def swap(environment: Environment, /, old: str, new: str, place: Place, as_json: bool) -> None:
    """Move all streams from drafter OLD to NEW, while they run.

    The text stays the same, token for token. `duoactor drafters` lists the names. With `head` as OLD, NEW is the
    directory or hub id of another draft head, for the verifier to run in place of its own; without NEW the one before
    comes back.

    \b
    Example:  duoactor swap drafter-1 drafter-2
              duoactor swap head ./better-head
              duoactor swap head
    """
    if not new and old != OWN_HEAD:
        raise click.UsageError("name the drafter that takes the streams: `duoactor swap OLD NEW`")
    if old == OWN_HEAD and Path(new).is_dir() and new:
        new = str(Path(new).absolute())
    with connected(environment, place, quiet=as_json) as client:
        detail = client.swap(old, new)
    line = detail if old == OWN_HEAD else f"{old} hands over to {new}"
    render.print_done({"old": old, "new": new, "detail": detail}, line, as_json)


@click.command(cls=Command)
@click.argument("actor_id", metavar="ID")
@place_options
@json_option
@click.pass_obj
def drain(environment: Environment, /, actor_id: str, place: Place, as_json: bool) -> None:
    """Take drafter ID out of service. Its streams move away, then it leaves.

    \b
    Example:  duoactor drain drafter-1
    """
    with connected(environment, place, quiet=as_json) as client:
        detail = client.drain(actor_id)
    render.print_done({"actor_id": actor_id, "detail": detail}, f"{actor_id} leaves", as_json)
