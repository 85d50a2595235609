"""The command to talk with the model."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import click

from duoactor.cli.environment import Environment
from duoactor.cli.generate import colour_option, show
from duoactor.cli.options import BRIEF_REQUEST, Command, Place, place_options, request_options
from duoactor.cli.own_actors import place_of
from duoactor.cli.waiting import connected, reading
from duoactor.client.sync_client import Client
from duoactor.render import print_summary, say
from protocols.errors import RequestError
from protocols.messages import ChatTurn

COMMANDS = {
    "/help": "show this list",
    "/clear": "forget the conversation",
    "/exit": "leave; /quit and Ctrl-D do the same",
}
IS_COMMAND = re.compile(r"/\w*")  # a slash and one word, nothing else on the line


@click.command(cls=Command, brief={"system": "", **BRIEF_REQUEST, "connect": ""})
@click.argument("model", default="")
@click.option("--system", default="", metavar="TEXT", help="a system message before the first turn")
@request_options
@place_options
@colour_option
@click.pass_obj
def chat(
    environment: Environment,
    /,
    model: str,
    system: str,
    request: dict[str, Any],
    place: Place,
    color: str,
) -> int:
    """Talk with the model, turn by turn. /help lists the commands; /exit or Ctrl-D ends it. In a pipe each line is a
    turn.

    MODEL is started, and stopped at the end; without it, the verifier that runs is asked. Ctrl-C cuts an answer short,
    or takes away the line that is being typed; the conversation goes on. A second one in a row ends it.

    \b
    Example:  duoactor chat
              duoactor chat smollm2
              printf 'Hello!\\nAnd in German?\\n' | duoactor chat --max-tokens 60
    """
    opening = [ChatTurn("system", system)] if system else []
    with place_of(environment, place, model) as there, connected(environment, there) as client:
        talk(client, opening, request, color, sys.stdin.isatty())
    return 0


def talk(client: Client, opening: Sequence[ChatTurn], request: dict[str, Any], color: str, on_terminal: bool) -> None:
    """Answer turn by turn, until whoever types leaves."""
    history = list(opening)
    for line in _lines(on_terminal):
        if IS_COMMAND.fullmatch(line):
            if line in ("/exit", "/quit"):
                break
            if line == "/clear":
                history = list(opening)
            _say(line)
            continue
        history.append(ChatTurn("user", line))
        parts: list[tuple[str, str]] = []  # thoughts and content, also of an answer that is cut short
        last = None
        try:
            stream = client.stream(messages=tuple(history), **request)
            with reading(stream) as chunks:
                last = show(stream, chunks, color, parts)
        except KeyboardInterrupt:
            if not on_terminal:
                raise
        except RequestError as error:
            if not on_terminal:
                raise
            say(str(error))
            history.pop()
            continue
        print_summary(last, request)
        reasoning, content = ("".join(part) for part in zip(*parts, strict=True)) if parts else ("", "")
        history.append(ChatTurn("assistant", content, reasoning=reasoning))


def _say(command: str) -> None:
    """Print a slash command's message on stderr: stdout holds the model's words."""
    if command == "/clear":
        click.echo("the conversation is forgotten", err=True)
        return
    if command != "/help":
        click.echo(f"there is no command {command}; there are:", err=True)
    for name, meaning in COMMANDS.items():
        click.echo(f"  {name:<8} {meaning}", err=True)


def _lines(on_terminal: bool) -> Iterator[str]:
    if not on_terminal:
        yield from (line.strip() for line in sys.stdin if line.strip())
        return
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  importing it gives input() its editing keys and history
    warned = False  # by the last key: an answer that ends as Ctrl-C is pressed must not cost the conversation
    while True:
        try:
            line = input("> ").strip()
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print()
            if warned:
                raise
            warned = True
            click.echo("Ctrl-C once more, Ctrl-D or /exit ends the conversation", err=True)
            continue
        warned = False
        if line:
            yield line
