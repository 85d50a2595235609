"""doctor: what is here, whether two models fit together, and whether speculation will pay."""

from __future__ import annotations

import sys

import click

from actors.settings import BUNDLED, DrafterSettings, VerifierSettings
from duoactor import render
from duoactor.cli.environment import Environment, available_cpus
from duoactor.cli.options import json_option


@click.command()
@click.option("--target", default=BUNDLED, metavar="TEXT", help="target model: a directory or hub id  [bundled]")
@click.option("--draft", default=BUNDLED, metavar="TEXT", help="draft model: a directory or hub id  [bundled]")
@click.option("--device", default="auto", metavar="TEXT", help="torch device of the target  [auto]")
@click.option("--dtype", default="auto", metavar="TEXT", help="auto, float32, bfloat16 or float16  [auto]")
@click.option("--draft-device", default="cpu", metavar="TEXT", help="torch device of the draft  [cpu]")
@click.option("--fix", "file", is_flag=False, flag_value="duo.toml", metavar="FILE", help="write a duo.toml of it")
@json_option
@click.pass_obj
def doctor(
    environment: Environment,
    /,
    target: str,
    draft: str,
    device: str,
    dtype: str,
    draft_device: str,
    file: str | None,
    as_json: bool,
) -> int:
    """Say whether speculation will pay here. Also by how much, and what would help most.

    Loads both models, measures them as `duoactor up` does, and lets the draft read what the target writes. Exit code 1
    if they cannot work together.

    \b
    Example:  duoactor doctor
              duoactor doctor --target Qwen/Qwen3-8B --draft Qwen/Qwen3-0.6B --fix
              duoactor doctor --json | jq .verdict
    """
    from duoactor.doctor import fix, words
    from duoactor.doctor.examine import examine

    verifier = VerifierSettings(target=target, device=device, dtype=dtype)
    drafter = DrafterSettings(draft=draft, device=draft_device)
    progress = render.Spinner(sys.stderr)
    report = examine(verifier, drafter, available_cpus(), progress.show, environment.debug)
    progress.show("")
    report.verdict = words.verdict(report)
    if file is not None:
        fix.write(file, fix.toml(report, verifier, drafter))
    if as_json:
        render.print_json(report)
    else:
        click.echo("\n".join(words.lines(report)))
        if file is not None:
            click.echo(f"\nwrote {file}; use it with `duoactor up --config {file}`")
    return 1 if report.problems else 0
