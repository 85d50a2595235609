"""prove: whether every text is the target's own on this machine, whatever happens meanwhile."""

from __future__ import annotations

import re
import shlex
import sys
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import click
from msgspec import Meta

from actors.settings import RETRIEVAL, DrafterSettings, Settings
from duoactor import config, render
from duoactor.bench.datastore import datastore_for
from duoactor.cli.environment import Environment, private_address
from duoactor.cli.options import (
    BRIEF_PAIR,
    PAIR,
    Command,
    Logs,
    given_flags,
    json_option,
    log_options,
    pair_options,
    settings_from,
    struct_options,
)
from duoactor.launch.deployment import Deployment
from duoactor.launch.signals import run_until_signal
from duoactor.launch.wanted import Wanted
from duoactor.prove.report import INDENT, ProofReport, lines
from duoactor.prove.run import ProofJob
from protocols.errors import ConfigError

DATASTORE_FILES = 20  # files of the standard library: method rest must have drafts, but not good ones
CHAIN = re.compile(r"[1-9]\d*:[0-9a-f]{32}")


class ProveOptions(Settings, frozen=True, kw_only=True):
    """Length, seed and expected chain of a proof."""

    minutes: Annotated[float, Meta(description="how long texts are compared", gt=0)] = 5.0
    seed: Annotated[int, Meta(description="seed of the requests", ge=0)] = 0
    check: Annotated[
        str, Meta(description="chain that another machine has printed, as N:HASH: end after as many texts, and compare")
    ] = ""


@click.command(cls=Command, brief=BRIEF_PAIR | dict.fromkeys(("minutes", "check", "as_json"), ""))
@pair_options
@struct_options(ProveOptions)
@json_option
@log_options
@click.pass_obj
def prove(environment: Environment, /, pair: Wanted, as_json: bool, logs: Logs, **flags: Any) -> int:
    """Compare every text with the same request decoded alone.

    Alone: plainly, with nothing else in the batch and nothing in the prefix cache. Then every method answers, in 1 to
    16 streams that join and leave, with the prefix cache and without, while drafters are killed and swapped. The exit
    code is 1 at the first token that differs, and its place is printed. The chain is a hash of all texts: a machine of
    the same kind gets the same.

    \b
    Example:  duoactor prove
              duoactor prove --target Qwen/Qwen3-8B --draft Qwen/Qwen3-0.6B
              duoactor prove --json | jq .evidence.tokens
    """
    options = settings_from(ProveOptions, {}, flags)
    if options.check and not CHAIN.fullmatch(options.check):
        raise ConfigError(f"--check {options.check} is no chain: give it as `duoactor prove` printed it, N:HASH")
    with private_address() as address, tempfile.TemporaryDirectory() as directory:
        deployment = _deployment(environment, pair, logs, address, Path(directory) / "datastore")
        job = ProofJob(deployment, 60 * options.minutes, options.seed, options.check, _again(options.seed))
        try:
            with render.Spinner(sys.stderr) as spinner:
                run_until_signal(job.run(partial(environment.running, log_lines=logs.verbose), spinner.show))
        finally:  # also of a proof that was interrupted
            if job.found is not None:
                render.print_json(job.found) if as_json else _print(job.found)
    return 0 if job.found is not None and job.found.good else 1


def _again(seed: int) -> str:
    """The command that makes the same proof, with the pair as it was named."""
    return shlex.join(["duoactor", "prove", *given_flags(PAIR), "--seed", str(seed)])


def _print(found: ProofReport) -> None:
    for line in lines(found):
        click.echo(render.folded(line, sys.stdout, INDENT))


def _deployment(environment: Environment, pair: Wanted, logs: Logs, address: str, datastore: Path) -> Deployment:
    """The pair with two drafters, so that streams can change between them; of retrieval where the draft is a head."""
    target = config.resolve_model(pair.verifier.target, "target", tokenizer=pair.verifier.tokenizer)
    needed = not pair.verifier.tokenizer  # a datastore is made by the tokenizer in the target's checkpoint
    stored = datastore_for("", needed, datastore, target, environment.command, DATASTORE_FILES)
    wanted = pair.at(address, target=target, datastore=stored.directory)
    log_flags = logs.flags or ("--quiet",)
    found = environment.deploy(replace(wanted, drafters=pair.drafters * 2), log_flags)
    if found.drafters:
        return found
    retrieval = DrafterSettings(draft=RETRIEVAL)
    return environment.deploy(replace(wanted, drafters=(*pair.drafters, retrieval, retrieval)), log_flags)
