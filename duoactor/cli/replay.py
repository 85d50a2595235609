"""replay: how fast logged requests would have been with other drafts and settings."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import click
from msgspec import Meta

from actors.settings import BUNDLED, Settings
from duoactor import render
from duoactor.cli.environment import available_cpus
from duoactor.cli.options import json_option, settings_from, struct_options
from protocols.errors import ConfigError
from protocols.messages import Method

METHODS = (Method.SPS, Method.PEARL, Method.DUODECODING, Method.TREE, Method.AUTO, Method.PLD, Method.SAM)


class ReplayOptions(Settings, frozen=True, kw_only=True):
    """The drafts and settings with which a log is replayed."""

    draft: Annotated[
        tuple[str, ...], Meta(description="a draft model to try; may be repeated; none: the bundled one")
    ] = ()
    target: Annotated[str, Meta(description="target model; it is only timed")] = BUNDLED
    device: Annotated[str, Meta(description="torch device of the target")] = "auto"
    method: Annotated[
        tuple[str, ...], Meta(description="a method to try; may be repeated; none: all that can be replayed")
    ] = ()
    num_speculative_tokens: Annotated[
        int, Meta(description="draft length gamma; 0: chosen as in service", ge=0, le=256)
    ] = 0
    sequences: Annotated[int, Meta(description="number of draft sequences; 0: chosen as in service", ge=0, le=64)] = 0
    memory: Annotated[
        int,
        Meta(description="tokens of finished texts to keep, in which auto looks for drafts, as --memory of `up`", ge=0),
    ] = 0
    ablate: Annotated[
        bool, Meta(description="auto also without its draft model, its memory and all that it retrieves, in turn")
    ] = False
    limit: Annotated[int, Meta(description="only the first N requests; 0: all", ge=0)] = 0


@click.command()
@click.argument("log", nargs=-1, required=True, metavar="LOG...")
@struct_options(ReplayOptions)
@json_option
def replay(log: tuple[str, ...], as_json: bool, **flags: Any) -> None:
    """Predict how other drafts would have served logged requests.

    LOG is a file that `duoactor up --log-requests LOG` wrote. A draft's agreement with the texts is exact, and so is
    what sps accepts; speeds are predicted from times that are measured now, without running the target on the texts.
    The last lines are limits: the best that any policy could make of these drafts, and of perfect ones.

    \b
    Example:  duoactor up --log-requests requests.jsonl
              duoactor replay requests.jsonl --draft bundled --draft ./my-draft
              duoactor replay requests.jsonl --method sps --num-speculative-tokens 5 --json
    """
    from itertools import islice

    from actors.records import read_log
    from actors.replay.system import Policy
    from duoactor.replay.measure import measure
    from duoactor.replay.report import Report

    options = settings_from(ReplayOptions, {}, flags)
    logged = [request for file in log for request in read_log(file)]
    logged = list(islice(logged, options.limit or None))
    if not logged:
        raise ConfigError(f"{', '.join(log)} holds no request yet: a request is logged when it has ended")
    policies = [
        Policy(method, options.num_speculative_tokens, options.sequences, options.memory)
        for method in options.method or METHODS
    ]
    report = Report(log=log, requests=len(logged), target=options.target, forward_us={}, step_us={})
    spinner = render.Spinner(sys.stderr)
    try:
        drafts, cpus = options.draft or (BUNDLED,), available_cpus()
        measure(report, logged, drafts, policies, options.device, cpus, spinner.show, options.ablate)
    finally:
        spinner.show("")
    if as_json:
        from duoactor.replay.words import document

        render.print_json(document(report))
        return
    from duoactor.replay.words import show

    show(report)
