"""doctor: whether a target and a draft fit together, and whether speculation will pay on this machine."""

from __future__ import annotations

import sys

import click
from msgspec.structs import replace

from duoactor import render
from duoactor.cli.announcements import announced
from duoactor.cli.environment import Environment, available_cpus
from duoactor.cli.options import Pair, json_option, pair_options
from duoactor.config import write_new


@click.command()
@pair_options
@click.option("--draft-device", default="cpu", metavar="TEXT", help="torch device of the draft  [cpu]")
@click.option(
    "--fix",
    "file",
    is_flag=False,
    flag_value="duo.toml",
    metavar="[FILE]",
    help="write the result to a duo.toml, for `duoactor up --config`  [duo.toml]",
)
@json_option
@click.pass_obj
def doctor(
    environment: Environment,
    /,
    pair: Pair,
    draft_device: str,
    file: str | None,
    as_json: bool,
) -> int:
    """Predict whether speculation will pay on this machine.

    Loads both models, measures them as `duoactor up` does, lets the draft read what the target writes, and says by how
    much answers will be faster and what would help most. The exit code is 1 if the models cannot work together.

    \b
    Example:  duoactor doctor
              duoactor doctor --target Qwen/Qwen3-8B --draft Qwen/Qwen3-0.6B --fix
              duoactor doctor --json | jq .verdict
    """
    from duoactor.doctor import fix, words
    from duoactor.doctor.examine import examine

    verifier, drafter = pair.verifier, replace(pair.drafter, device=draft_device)
    progress = render.Spinner(sys.stderr)
    with announced(progress.show):
        report = examine(verifier, drafter, available_cpus(), progress.show, environment.debug)
    progress.show("")
    report.verdict = words.verdict(report)
    if file is not None:
        write_new(file, fix.toml(report, verifier, drafter))
    if as_json:
        render.print_json(report)
    else:
        click.echo("\n".join(words.lines(report)))
        if file is not None:
            click.echo(f"\nwrote {file}; use it with `duoactor up --config {file}`")
    return 1 if report.problems else 0
