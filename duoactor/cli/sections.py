"""Help screens in sections, so that the options that most people need are not lost among sixty."""

from __future__ import annotations

from typing import Any

import click

# the titles that several commands share
CONNECTION = "Connection"
SAMPLING = "Sampling"
SPECULATION = "Speculation"


class SectionOption(click.Option):
    """An option that ``--help`` lists under ``section``; without one it is under "Options", which come first."""

    def __init__(self, *arguments: Any, section: str = "", **attributes: Any) -> None:
        super().__init__(*arguments, **attributes)
        self.section = section

    def get_help_extra(self, ctx: click.Context) -> Any:
        """The default help without the bounds of a number: an error names them."""
        extra = super().get_help_extra(ctx)
        extra.pop("range", None)
        return extra


class Command(click.Command):
    """A command with a part of ``--help`` for each section of its options, in the order of their first options. How
    to connect comes last."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and isinstance(parameter, click.Option):
                sections.setdefault(getattr(parameter, "section", ""), []).append(record)
        if CONNECTION in sections:
            sections[CONNECTION] = sections.pop(CONNECTION)
        for title, records in sections.items():
            with formatter.section(title or "Options"):
                formatter.write_dl(records)
