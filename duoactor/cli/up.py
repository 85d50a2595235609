"""Commands that run actors: up (all of them, supervised) and one command for each."""

from __future__ import annotations

import logging
import sys
from typing import Any

import click
import msgspec

from actors.settings import ControllerSettings, DrafterSettings, VerifierSettings
from duoactor import config
from duoactor.cli.environment import Environment, available_cpus
from duoactor.cli.options import config_option, given, json_option, log_options, struct_options
from duoactor.launch import supervisor as launcher
from duoactor.launch.deployment import Deployment, deploy
from duoactor.launch.terminal import LaunchReport, Terminated, print_up, run_in_order

supervised_option = click.option("--supervised", is_flag=True, hidden=True)


def _prepare(supervised: bool, verbose: bool, quiet: bool) -> None:
    if supervised:
        launcher.die_with_parent()
    level = logging.DEBUG if verbose else logging.WARNING if quiet else logging.INFO
    logging.basicConfig(
        stream=sys.stderr, level=level, format="%(levelname)s %(name)s %(message)s" if verbose else "%(message)s"
    )
    # libraries have nothing to tell a user below a warning
    for name in ("asyncio", "urllib3", "filelock", "httpx", "huggingface_hub", "transformers"):
        logging.getLogger(name).setLevel(logging.WARNING)


@click.command()
@config_option
@struct_options(VerifierSettings)
@supervised_option
@log_options
def verifier(file: str, supervised: bool, verbose: bool, quiet: bool, **flags: Any) -> int:
    """Run the verifier: it owns the target model and streams to clients.

    \b
    Example:  duoactor verifier --target meta-llama/Llama-3.1-8B-Instruct --device cuda
    """
    _prepare(supervised, verbose, quiet)
    settings = _settings(VerifierSettings, _file(file).verifier, flags)
    settings = msgspec.structs.replace(
        settings,
        target=config.resolve_model(settings.target, "target"),
        bind=_address(settings.bind),
    )
    from actors.verifier.start import run_verifier

    return run_verifier(settings)


@click.command()
@config_option
@struct_options(DrafterSettings)
@supervised_option
@log_options
def drafter(file: str, supervised: bool, verbose: bool, quiet: bool, **flags: Any) -> int:
    """Run a drafter: it guesses ahead with the draft model, on this host or another than the verifier's.

    \b
    Example:  duoactor drafter --connect tcp://gpu-box:7601 --key laptop.key --server-key verifier.pub
    """
    _prepare(supervised, verbose, quiet)
    settings = _settings(DrafterSettings, _file(file).drafter(str(flags.get("actor_id") or "")), flags)
    settings = msgspec.structs.replace(
        settings,
        draft=config.resolve_model(settings.draft, "draft"),
        connect=_address(settings.connect),
    )
    from actors.drafter.start import run_drafter

    return run_drafter(settings)


@click.command()
@config_option
@struct_options(ControllerSettings)
@supervised_option
@log_options
def controller(file: str, supervised: bool, verbose: bool, quiet: bool, **flags: Any) -> int:
    """Run the budget controller: it adapts the draft length to what it sees. Optional.

    \b
    Example:  duoactor controller --connect tcp://127.0.0.1:7601
    """
    _prepare(supervised, verbose, quiet)
    settings = _settings(ControllerSettings, _file(file).controller, flags)
    settings = msgspec.structs.replace(settings, connect=_address(settings.connect))
    from actors.controller.start import run_controller

    return run_controller(settings)


ONE_HOST = ("connect", "key", "server_key", "allow")  # here `up` decides, or duo.toml


@click.command()
@config_option
@struct_options(VerifierSettings)
@struct_options(DrafterSettings, prefix="draft_", about="drafter: ", leave_out=ONE_HOST)
@click.option("--drafters", "count", default=None, type=click.IntRange(0, 64), metavar="N", help="how many  [1]")
@json_option
@log_options
@click.pass_obj
def up(
    environment: Environment,
    /,
    file: str,
    count: int | None,
    as_json: bool,
    verbose: bool,
    quiet: bool,
    **flags: Any,
) -> int:
    """Start a verifier, a drafter and a controller here, and keep them running.

    An actor that crashes is started again. Ctrl-C stops them all. With --json the actors are printed as one JSON
    document once they are ready.

    \b
    Example:  duoactor up
              duoactor up --target ./my-model --draft ./my-draft --device cuda
              duoactor up --config duo.toml
    """
    asked = _file(file)
    own = given(flags, DrafterSettings, prefix="draft_", leave_out=ONE_HOST)
    tables = asked.drafters or ({},)
    if count is not None and (len(asked.drafters) > 1):
        raise click.UsageError(f"--drafters {count} does not fit the {len(asked.drafters)} [[drafter]] of {file}")
    if count is not None:
        tables = tuple(tables[0] for _ in range(count))
    verifier = _settings(VerifierSettings, asked.verifier, flags)
    deployment = deploy(
        msgspec.structs.replace(verifier, bind=_address(verifier.bind)),
        [config.build(DrafterSettings, table, own) for table in tables],
        config.build(ControllerSettings, asked.controller),
        cpus=available_cpus(),
        command=environment.command,
        log_flags=("--verbose",) if verbose else ("--quiet",) if quiet else (),
    )
    try:
        return run_in_order(_stay_up(deployment, environment.probe(deployment), as_json, quiet))
    except (KeyboardInterrupt, Terminated):
        return 0  # the usual way to end it


async def _stay_up(deployment: Deployment, probe: launcher.Probe, as_json: bool, quiet: bool) -> int:
    reporter = LaunchReport(quiet=quiet)
    async with launcher.Supervisor(deployment.plans, probe, report=reporter, address=deployment.address) as supervisor:
        reporter.done()
        print_up(deployment, supervisor.actors, as_json)
        await supervisor.wait()
    return 0


def _address(given: str) -> str:
    if given:
        return given
    from duoactor.launch.paths import default_address

    return default_address()


def _file(path: str) -> config.File:
    return config.read_file(path) if path else config.File()


def _settings(struct: type[config.S], file: config.Values, flags: dict[str, Any]) -> config.S:
    return config.build(struct, file, given(flags, struct))
