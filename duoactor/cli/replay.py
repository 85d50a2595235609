"""replay: how often other draft models would have been right on logged requests."""

from __future__ import annotations

import sys
from itertools import islice

import click

from actors.settings import BUNDLED
from duoactor import config, render
from duoactor.cli.options import json_option
from protocols.errors import ConfigError


@click.command()
@click.argument("log", nargs=-1, required=True, metavar="LOG...")
@click.option("--draft", multiple=True, metavar="TEXT", help="a draft model to try; may be repeated  [bundled]")
@click.option("--limit", default=0, type=click.IntRange(min=0), help="only the first N requests; 0: all  [0]")
@json_option
def replay(log: tuple[str, ...], draft: tuple[str, ...], limit: int, as_json: bool) -> None:
    """Tell how often drafts would have been right on logged requests.

    LOG is a file that `duoactor up --log-requests LOG` wrote. Figures are exact, at any temperature: the noise of each
    token is known from its seed. The target is not run. How fast a pair is tells `duoactor doctor`.

    \b
    Example:  duoactor up --log-requests requests.jsonl
              duoactor replay requests.jsonl --draft bundled --draft ./my-draft
              duoactor replay requests.jsonl --draft ./my-draft --json
    """
    from actors.engines.build import build_draft
    from actors.engines.drafts.replay import replay_draft
    from actors.records import read_log
    from actors.settings import retrieves
    from duoactor.replay import ReplayReport, agreements, show

    logged = [request for file in log for request in read_log(file)]
    logged = list(islice(logged, limit or None))
    if not logged:
        raise ConfigError(f"{', '.join(log)} holds no request yet: a request is logged when it has ended")
    report = ReplayReport(log=log, requests=len(logged))
    spinner = render.Spinner(sys.stderr)
    try:
        for name in draft or (BUNDLED,):
            if retrieves(name):
                raise ConfigError(f"{name} has no model to replay: give --draft a draft model")
            path, shown = config.resolve_model(name, "draft"), render.model_name(name)
            spinner.show(f"loading {shown} …")
            model = build_draft(path, "cpu", "auto", 0, 1)
            spinner.show(f"{shown} reads {len(logged)} texts …")
            report.agreements += agreements(shown, logged, [ranks.tolist() for ranks in replay_draft(model, logged)])
    finally:
        spinner.show("")
    if as_json:
        render.print_json(report)
    else:
        show(report)
