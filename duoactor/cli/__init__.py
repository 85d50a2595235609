"""The ``duoactor`` command. Errors are one sentence on stderr; the exit code is 1, or 2 for a usage error."""

from __future__ import annotations

import contextlib
import difflib
import errno
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import click
from click.shell_completion import CompletionItem

from duoactor.cli.environment import Environment
from duoactor.launch.signals import Terminated
from protocols.errors import DuoactorError
from protocols.extras import install

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # a disk, a user's share of it, or a limit on files
INTERRUPTED = 130  # a shell's code for SIGINT
TERMINATED = 143  # a shell's code for SIGTERM
TRACED = "`duoactor --debug …` shows where it comes from"


SECTIONS = {
    "Run": ("demo", "up", "verifier", "drafter", "controller", "learner", "serve"),
    "Ask": ("run", "chat", "generate"),
    "Operate": ("top", "ps", "status", "drafters", "swap", "drain"),
    "Prepare": ("pull", "list", "doctor", "config", "keys", "datastore", "distill"),
    "Measure": ("prove", "bench", "replay", "inflate"),
}
# Modules of the commands that share one; the others have their own.
HOMES = {
    **dict.fromkeys(("verifier", "drafter", "controller", "learner"), "actors"),
    **dict.fromkeys(("pull", "list", "ps"), "models"),
    **dict.fromkeys(("status", "drafters", "swap", "drain"), "manage"),
}


# Commands of other programs, and what is meant by them here
STOPPING = "Ctrl-C ends `duoactor up`; from elsewhere, `kill` the pid that `duoactor ps` shows"
DELETING = "models lie in the hub's cache: `hf cache` deletes them"
OTHERS = {
    **dict.fromkeys(("stop", "kill"), STOPPING),
    **dict.fromkeys(("rm", "remove", "delete"), DELETING),
    "start": "`duoactor up MODEL` serves a model",
    "models": "`duoactor list` lists the models of this machine",
    "show": "`duoactor status` shows the model that runs",
    "version": "`duoactor --version` prints it",
}

ENGINE = ("torch", "transformers", "safetensors", "huggingface_hub", "numpy", "jinja2")  # packages of the extra


class PipeClosed(Exception):
    """The reader of our output (head, less) has gone."""


class CompletedText(click.types.StringParamType):
    """A text, which a shell completes as the name of a file: most of our options may be one."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(incomplete, type="file")]


def _completing(command: click.Command) -> None:
    """Let the shell complete what the command and those below it take."""
    for one in command.params:
        if type(one.type) is click.types.StringParamType:
            one.type = CompletedText()
    for below in command.commands.values() if isinstance(command, click.Group) else ():
        _completing(below)


class Commands(click.Group):
    """The commands by purpose, each loaded at its use: an actor's start pays for its own alone. click would
    sort them by name, and end with code 1 when a pipe is closed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for names in SECTIONS.values() for name in names]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        module = import_module(f"duoactor.cli.{HOMES.get(cmd_name, cmd_name)}")
        command: click.Command = getattr(module, "list_models" if cmd_name == "list" else cmd_name)
        _completing(command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            near = difflib.get_close_matches(name, self.list_commands(ctx), n=1)
            meant = OTHERS.get(name) or (f"did you mean {near[0]}?" if near else "--help lists them")
            raise click.UsageError(f"There is no command {name}; {meant}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, self.list_commands(ctx)))
        room = formatter.width - width - 6
        for title, names in SECTIONS.items():
            commands = {name: self.get_command(ctx, name) for name in names}
            with formatter.section(title):
                formatter.write_dl([(n, one.get_short_help_str(room)) for n, one in commands.items() if one], width)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise PipeClosed from None


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="duoactor", message="duoactor %(version)s")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.pass_obj
def cli(environment: Environment, debug: bool) -> None:
    """Speculative decoding on two devices at once: a draft model guesses while the target model verifies.

    \b
    Start with:  duoactor demo
    Then:        duoactor up          and, in another terminal:
                 duoactor generate "def factorial(n):"
    """
    environment.debug = debug


def _place(error: OSError) -> str:
    """The sentence about a file that cannot be read or written; "": the error is about no file."""
    if error.errno in FULL:
        what = error.filename or "a file, or the output,"
        return f"{what} cannot be written ({error.strerror}): make room there, or name another place"
    return f"{error.filename} cannot be used ({error.strerror}): name another place" if error.filename else ""


def main(arguments: Sequence[str] | None = None, environment: Environment | None = None) -> int:
    """Run one command line and return its exit code."""
    environment = environment or Environment()
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # whoever started us has closed it
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  until the end
    try:
        result = cli.main(
            args=None if arguments is None else list(arguments),
            prog_name="duoactor",
            standalone_mode=False,
            obj=environment,
        )
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except Terminated:
        return TERMINATED
    except (PipeClosed, BrokenPipeError):
        # so that the interpreter's own flush at exit is quiet too:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except DuoactorError as error:
        if environment.debug:
            raise
        return _failed(str(error))
    except Exception as error:
        if environment.debug:
            raise
        if isinstance(error, OSError) and (told := _place(error)):
            return _failed(f"{told}; {TRACED}")
        missing = (error.name or "").partition(".")[0] if isinstance(error, ImportError) else ""
        if missing in ENGINE:
            return _failed(f"models need {missing}, which is not installed: {install('all')}")
        return _failed(f"unexpected {type(error).__name__}: {error}; {TRACED}")


def _failed(sentence: str) -> int:
    """Say why, and return the exit code."""
    from duoactor import render  # which an actor need not load

    with contextlib.suppress(OSError):  # stderr on a full disk
        render.say(sentence)
    return 1
