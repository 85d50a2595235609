"""Help screens in sections, so that the options that most people need are not lost among sixty."""

from __future__ import annotations

from typing import Any

import click

# the titles that several commands share
CONNECTION = "Connection"
SAMPLING = "Sampling"
SPECULATION = "Speculation"


class Option(click.Option):
    """An option that ``--help`` lists under ``section``; without one it is under "Options", which come first."""

    def __init__(self, *arguments: Any, section: str = "", **attributes: Any) -> None:
        super().__init__(*arguments, **attributes)
        self.section = section


class Command(click.Command):
    """A command whose ``--help`` has a part for each section of its options, in the order of their first options."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"": []}
        for parameter in self.get_params(ctx):
            if (record := parameter.get_help_record(ctx)) is not None:
                sections.setdefault(getattr(parameter, "section", ""), []).append(record)
        for title, records in sections.items():
            with formatter.section(title or "Options"):
                formatter.write_dl(records)
