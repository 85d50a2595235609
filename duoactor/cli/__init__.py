"""The ``duoactor`` command. Errors are one sentence on stderr; the exit code is 1, or 2 for a usage error."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

from duoactor.cli.actors import controller, drafter, verifier
from duoactor.cli.bench import bench
from duoactor.cli.chat import chat
from duoactor.cli.config import config
from duoactor.cli.datastore import datastore
from duoactor.cli.demo import demo
from duoactor.cli.environment import Environment
from duoactor.cli.generate import generate
from duoactor.cli.inflate import inflate
from duoactor.cli.keys import keys
from duoactor.cli.manage import drafters, drain, status, swap
from duoactor.cli.serve import serve
from duoactor.cli.up import up
from duoactor.launch.signals import Terminated
from protocols.errors import DuoactorError

INTERRUPTED = 130  # as a shell reports SIGINT
TERMINATED = 143  # and SIGTERM


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="duoactor", message="duoactor %(version)s")
@click.option("--debug", is_flag=True, help="show where an error comes from")
@click.pass_obj
def cli(environment: Environment, debug: bool) -> None:
    """Speculative decoding on two devices at once: a draft model guesses while the target model verifies.

    \b
    Start with:  duoactor demo
    Then:        duoactor up          and, in another terminal:
                 duoactor generate "Once upon a time"
    """
    environment.debug = debug


for command in (
    demo,
    up,
    verifier,
    drafter,
    controller,
    generate,
    chat,
    drafters,
    swap,
    drain,
    status,
    keys,
    config,
    serve,
    datastore,
    bench,
    inflate,
):
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
    except BrokenPipeError:
        # the reader (head, less) has gone; so that the interpreter's own flush at exit is quiet too:
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
