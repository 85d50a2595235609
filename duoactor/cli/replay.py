"""replay: what other drafts and settings would have brought to logged requests."""

from __future__ import annotations

import sys

import click

from actors.settings import BUNDLED
from duoactor import render
from duoactor.cli.environment import available_cpus
from duoactor.cli.options import json_option
from protocols.errors import ConfigError
from protocols.messages import Method

METHODS = (Method.SPS, Method.PEARL, Method.DUODECODING, Method.TREE, Method.AUTO, Method.PLD, Method.SAM)


@click.command()
@click.argument("log", nargs=-1, required=True, metavar="LOG...")
@click.option("--draft", "drafts", multiple=True, metavar="TEXT", help="draft model, again for another  [bundled]")
@click.option("--target", default=BUNDLED, metavar="TEXT", help="target model, to be timed only  [bundled]")
@click.option("--device", default="auto", metavar="TEXT", help="torch device of the target  [auto]")
@click.option(
    "--method", "methods", multiple=True, metavar="TEXT", help="again for another  [all that can be replayed]"
)
@click.option(
    "--num-speculative-tokens",
    default=0,
    type=click.IntRange(0, 256),
    metavar="N",
    help="draft length gamma; 0: as the system chooses  [0]",
)
@click.option(
    "--sequences", default=0, type=click.IntRange(0, 64), metavar="N", help="draft sequences; 0: likewise  [0]"
)
@click.option(
    "--memory",
    default=0,
    type=click.IntRange(0),
    metavar="N",
    help="tokens of earlier requests that auto finds drafts in, as the verifier's  [0]",
)
@click.option("--limit", default=0, type=click.IntRange(0), metavar="N", help="the first N requests; 0: all  [0]")
@json_option
def replay(
    log: tuple[str, ...],
    drafts: tuple[str, ...],
    target: str,
    device: str,
    methods: tuple[str, ...],
    num_speculative_tokens: int,
    sequences: int,
    memory: int,
    limit: int,
    as_json: bool,
) -> None:
    """Say what other drafts would have brought. The target is timed, but not run.

    LOG is what `duoactor up --log-requests LOG` wrote. A draft's agreement with the texts is exact, and so is what sps
    accepts; the speed is predicted from times measured here. The last lines are limits: the best that any policy could
    make of these drafts, and of perfect ones.

    \b
    Example:  duoactor up --log-requests requests.jsonl
              duoactor replay requests.jsonl --draft bundled --draft ./my-draft
              duoactor replay requests.jsonl --method sps --num-speculative-tokens 5 --json
    """
    from itertools import islice

    from actors.replay.logged import read_log
    from actors.replay.system import Policy
    from duoactor.replay.measure import measure
    from duoactor.replay.report import Report

    logged = [request for file in log for request in read_log(file)]
    logged = list(islice(logged, limit or None))
    if not logged:
        raise ConfigError(f"{', '.join(log)} holds no request: wait until one has ended")
    policies = [Policy(method, num_speculative_tokens, sequences, memory) for method in methods or METHODS]
    report = Report(log=log, requests=len(logged), target=target, forward_us={}, step_us={})
    spinner = render.Spinner(sys.stderr)
    threads = max(1, len(available_cpus()) - 1)  # one is the drafter's
    try:
        measure(report, logged, drafts or (BUNDLED,), policies, device, threads, spinner.show)
    finally:
        spinner.show("")
    if as_json:
        from duoactor.replay.words import document

        render.print_json(document(report))
        return
    from duoactor.replay.words import show

    show(report)
