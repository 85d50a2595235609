"""replay: how often other draft models would have been right on logged requests."""

from __future__ import annotations

import sys
from itertools import islice
from typing import TYPE_CHECKING

import click

from actors.settings import AUTO_DRAFT, BUNDLED
from duoactor import config, render
from duoactor.cli.options import json_option
from protocols.errors import ConfigError

if TYPE_CHECKING:
    from actors.engines.drafts.replay import Replayed


def _model(draft: str, target: str) -> Replayed:
    """A draft model, or a head with its target. Raises ModelError, and ConfigError for a head without a target."""
    from actors.engines.build import EngineOptions, build_draft, build_target
    from actors.engines.heads.build import build_head
    from actors.engines.heads.draft import HeadReplay
    from actors.engines.heads.kinds import configuration, kind_of

    own = draft == AUTO_DRAFT
    if not own and not kind_of(configuration(draft)):
        return build_draft(draft, EngineOptions())
    if not target:
        raise ConfigError(f"{render.model_name(draft)} is a head, which reads its target's states: give --target, too")
    path = config.resolve_model(target, "target")
    model, _ = build_target(path, EngineOptions())
    head = build_head("" if own else draft, model, path)
    if not head.replays:
        raise ConfigError(f"{render.model_name(draft)} is of a kind that is not replayed: try `duoactor doctor`")
    return HeadReplay(head, model)


@click.command()
@click.argument("log", nargs=-1, required=True, metavar="LOG...")
@click.option("--draft", multiple=True, metavar="TEXT", help="a draft model to try; may be repeated  [bundled]")
@click.option("--target", default="", metavar="TEXT", help="the target whose states a draft head reads")
@click.option("--limit", default=0, type=click.IntRange(min=0), help="only the first N requests; 0: all  [0]")
@json_option
def replay(log: tuple[str, ...], draft: tuple[str, ...], target: str, limit: int, as_json: bool) -> None:
    """Tell how often drafts would match logged requests.

    LOG is a file that `duoactor up --log-requests LOG` wrote. Figures are exact, at any temperature: the noise of each
    token is known from its seed. The target runs only where a draft head reads its states. `duoactor doctor` measures
    the speed of a pair.

    \b
    Example:  duoactor up --log-requests requests.jsonl
              duoactor replay requests.jsonl --draft bundled --draft ./my-draft
              duoactor replay requests.jsonl --draft ./my-head --target ./my-model
              duoactor replay requests.jsonl --draft ./my-draft --json
    """
    from actors.engines.drafts.replay import replay_draft
    from actors.records import read_log
    from actors.settings import retrieves
    from duoactor.replay import ReplayReport, agreements, check_tokenizer, show

    logged = [request for file in log for request in read_log(file)]
    logged = list(islice(logged, limit or None))
    if not logged:
        raise ConfigError(f"{', '.join(log)} holds no request yet: a request is logged when it has ended")
    report = ReplayReport(log=log, requests=len(logged))
    with render.Spinner(sys.stderr) as spinner:
        for name in draft or (BUNDLED,):
            if retrieves(name):
                raise ConfigError(f"{name} has no model to replay: give --draft a draft model")
            path, shown = config.resolve_model(name, "draft"), render.model_name(name)
            spinner.show(f"loading {shown} …")
            model = _model(path, target)
            check_tokenizer(shown, model.info.tokenizer_digest, logged)
            spinner.show(f"{shown} reads {len(logged)} texts …")
            report.agreements += agreements(shown, logged, [ranks.tolist() for ranks in replay_draft(model, logged)])
    if as_json:
        render.print_json(report)
    else:
        show(report)
