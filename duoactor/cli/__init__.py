"""The ``duoactor`` command. Errors are one sentence on stderr; the exit code is 1, or 2 for a usage error."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from duoactor.cli.actors import controller, drafter, learner, verifier
from duoactor.cli.bench import bench
from duoactor.cli.chat import chat
from duoactor.cli.config import config
from duoactor.cli.datastore import datastore
from duoactor.cli.demo import demo
from duoactor.cli.distill import distill
from duoactor.cli.doctor import doctor_command
from duoactor.cli.environment import Environment
from duoactor.cli.generate import generate
from duoactor.cli.inflate import inflate
from duoactor.cli.keys import keys
from duoactor.cli.manage import drafters, drain, status, swap
from duoactor.cli.replay import replay
from duoactor.cli.serve import serve
from duoactor.cli.top import top
from duoactor.cli.up import up
from duoactor.launch.signals import Terminated
from protocols.errors import DuoactorError

INTERRUPTED = 130  # as a shell reports SIGINT
TERMINATED = 143  # and SIGTERM


SECTIONS = {
    "Run": (demo, up, verifier, drafter, controller, learner, serve),
    "Ask": (generate, chat),
    "Operate": (top, status, drafters, swap, drain),
    "Prepare": (doctor_command, config, keys, datastore, distill),
    "Measure": (bench, replay, inflate),
}


class PipeClosed(Exception):
    """The reader of our output (head, less) has gone."""


class Commands(click.Group):
    """The commands by what they are for; click would sort them by name, and end with code 1 when a pipe is closed."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(len(name) for name in self.commands)
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                room = formatter.width - width - 6
                formatter.write_dl([(one.name or "", one.get_short_help_str(room)) for one in commands], width)

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


for commands in SECTIONS.values():
    for command in commands:
        cli.add_command(command)


def main(arguments: Sequence[str] | None = None, environment: Environment | None = None) -> int:
    """Run one command line and return its exit code."""
    environment = environment or Environment()
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
        click.echo(f"duoactor: {error}", err=True)
        return 1
    except Exception as error:
        if environment.debug:
            raise
        click.echo(
            f"duoactor: unexpected {type(error).__name__}: {error}; `duoactor --debug …` shows where it comes from",
            err=True,
        )
        return 1
