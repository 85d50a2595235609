"""Commands that run one actor each: verifier, drafter, controller and learner. ``up`` runs each by its command."""

from __future__ import annotations

import logging
import sys
from typing import Any

import click
import msgspec

from actors.settings import ControllerSettings, DrafterSettings, LearnerSettings, VerifierSettings, retrieves
from duoactor import config
from duoactor.cli.environment import Environment
from duoactor.cli.lines import Lines
from duoactor.cli.options import (
    BRIEF_PAIR,
    Command,
    Logs,
    Place,
    config_option,
    log_options,
    settings_from,
    struct_options,
)
from duoactor.launch.child import die_with_parent
from protocols.address import default_address

log = logging.getLogger("duoactor")
supervised_option = click.option("--supervised", is_flag=True, hidden=True)


def prepare(supervised: bool, logs: Logs, loads: str = "") -> None:
    """Set up logging, and the end with the supervisor. ``loads``: the model that is to be loaded."""
    if supervised:
        die_with_parent()
        logging.getLogger("duoactor.peer").setLevel(logging.WARNING)  # the supervisor says who is not there yet
    level = logging.DEBUG if logs.verbose else logging.WARNING if logs.quiet else logging.INFO
    logging.basicConfig(
        handlers=[logging.StreamHandler(sys.stderr) if logs.verbose else Lines(sys.stderr)],
        level=level,
        format="%(levelname)s %(name)s %(message)s" if logs.verbose else "%(message)s",
    )
    # libraries have nothing to tell a user below a warning
    for name in ("asyncio", "urllib3", "filelock", "httpx", "httpx2", "huggingface_hub", "transformers"):
        logging.getLogger(name).setLevel(logging.WARNING)
    if loads and not supervised:
        from duoactor import render

        log.info("loading %s", render.model_name(loads))


# What most people use, in fewer words than --help-all
BRIEF = {
    **{name: BRIEF_PAIR[name] for name in ("target", "device", "dtype")},
    "bind": "",
    "key": "",
    "allow": "",
    "method": "how requests that name no method are drafted: auto, tree, sps, pld, sam, vanilla (no drafts) …  [auto]",
    "num_speculative_tokens": "draft length  [measured, then adapted]",
    "kv_tokens": "room for the tokens of all requests  [by the free memory]",
    **dict.fromkeys(("inline_draft", "file", "verbose"), ""),
}


@click.command(cls=Command, brief=BRIEF)
@config_option
@struct_options(VerifierSettings, also={"target": "--model"})
@supervised_option
@log_options
def verifier(file: str, supervised: bool, logs: Logs, **flags: Any) -> int:
    """Run the verifier, which owns the target model. It streams to clients.

    \b
    Example:  duoactor verifier --target Qwen/Qwen3-8B --device cuda
    """
    settings = settings_from(VerifierSettings, config.read(file).verifier, flags)
    settings = msgspec.structs.replace(
        settings,
        target=config.resolve_model(settings.target, "target", tokenizer=settings.tokenizer),
        tokenizer=config.resolve_tokenizer(settings.tokenizer),
        inline_draft=settings.inline_draft and config.resolve_model(settings.inline_draft, "inline draft"),
        bind=settings.bind or default_address(),
    )
    prepare(supervised, logs, settings.target)
    from actors.verifier.start import run_verifier

    return run_verifier(settings)


@click.command(cls=Command)
@config_option
@struct_options(DrafterSettings, also={"draft": "--model"})
@supervised_option
@log_options
def drafter(file: str, supervised: bool, logs: Logs, **flags: Any) -> int:
    """Run a drafter, here or on another host. It guesses ahead with the draft model.

    With a draft head in place of a model, --target names a copy of the target on this host. The head needs its
    embedding and tokenizer.

    \b
    Example:  duoactor drafter --connect tcp://gpu-box:7601 --key laptop.key \\
                  --server-key verifier.pub
              duoactor drafter --connect tcp://gpu-box:7601 --draft ./head \\
                  --target Qwen/Qwen3-8B
    """
    settings = settings_from(DrafterSettings, config.read(file).drafter(str(flags.get("actor_id") or "")), flags)
    settings = msgspec.structs.replace(
        settings,
        draft=config.resolve_model(settings.draft, "draft"),
        target=settings.target and config.resolve_model(settings.target, "target"),
        connect=settings.connect or default_address(),
    )
    prepare(supervised, logs, "" if retrieves(settings.draft) else settings.draft)
    from actors.drafter.start import run_drafter

    return run_drafter(settings)


@click.command(cls=Command)
@config_option
@struct_options(ControllerSettings)
@supervised_option
@log_options
def controller(file: str, supervised: bool, logs: Logs, **flags: Any) -> int:
    """Run the budget controller, which adapts the draft length. It is optional.

    \b
    Example:  duoactor controller --connect tcp://127.0.0.1:7601
    """
    prepare(supervised, logs)
    settings = settings_from(ControllerSettings, config.read(file).controller, flags)
    settings = msgspec.structs.replace(settings, connect=settings.connect or default_address())
    from actors.controller.start import run_controller

    return run_controller(settings)


@click.command(cls=Command)
@config_option
@struct_options(LearnerSettings)
@click.option(
    "--undo",
    default=None,
    type=click.IntRange(min=1),
    metavar="VERSION",
    help="ask the running learner to leave that version, which `duoactor drafters` shows, for the one before",
)
@supervised_option
@log_options
@click.pass_obj
def learner(
    environment: Environment,
    /,
    file: str,
    undo: int | None,
    supervised: bool,
    logs: Logs,
    **flags: Any,
) -> int:
    """Run the learner, which trains the draft on what is served. It is optional.

    It receives finished texts and trains a copy of the draft while that slows no stream. Drafters load the copy once it
    agrees with the target more often, on texts kept apart. They must reach the learner's directory.

    \b
    Example:  duoactor learner --connect tcp://gpu-box:7601 --key laptop.key \\
                  --server-key verifier.pub
              duoactor learner --undo 3
    """
    settings = settings_from(LearnerSettings, config.read(file).learner, flags)
    if undo is not None:
        from duoactor import render
        from duoactor.cli.waiting import connected

        with connected(
            environment, Place(connect=settings.connect, key=settings.key, server_key=settings.server_key)
        ) as client:
            detail = client.undo(undo)
        render.print_done({"detail": detail}, detail, as_json=False)
        return 0
    prepare(supervised, logs)
    settings = msgspec.structs.replace(
        settings,
        draft=config.resolve_model(settings.draft, "draft"),
        connect=settings.connect or default_address(),
    )
    from actors.learner.start import run_learner

    return run_learner(settings)
