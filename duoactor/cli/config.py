"""The command that begins a duo.toml."""

from __future__ import annotations

import click

from duoactor import render
from duoactor.cli.options import json_option
from duoactor.config import write_new
from duoactor.config_reference import template


@click.group()
def config() -> None:
    """Write a duo.toml: the options of all actors in one file.

    \b
    Example:  duoactor config init
    """


@config.command()
@click.argument("file", default="duo.toml")
@json_option
def init(file: str, as_json: bool) -> None:
    """Write FILE with every option and its default.

    All are commented out, with their meanings. "-" is standard output.

    \b
    Example:  duoactor config init
              duoactor up --config duo.toml
    """
    if file == "-":
        click.echo(template(), nl=False)
        return
    write_new(file, template())
    render.print_done({"file": file}, f"wrote {file}; use it with `duoactor up --config {file}`", as_json)
