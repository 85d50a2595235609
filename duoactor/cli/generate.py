"""The command that asks for a text."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import click

from duoactor import render
from duoactor.cli.environment import Environment
from duoactor.cli.options import BRIEF_REQUEST, Command, Place, json_option, place_options, scored_request_options
from duoactor.cli.waiting import connected, reading
from duoactor.client.metrics import metrics
from duoactor.client.request import Completion
from duoactor.client.sync_client import Client, Stream
from protocols.errors import ConfigError
from protocols.messages import ChatTurn, Chunk

colour_option = click.option(
    "--color",
    type=click.Choice(["auto", "always", "never"]),
    default="never",
    help="colour drafted (green) and target-made (magenta) tokens  [never]",
)


def document(answer: Completion) -> dict[str, Any]:
    """The document of ``--json``."""
    thoughts = {"reasoning": answer.reasoning, "content": answer.content} if answer.reasoning else {}
    return {
        "text": answer.text,
        **thoughts,
        "token_ids": answer.token_ids,
        "finish_reason": answer.finish_reason,
        "metrics": metrics(answer.stats),
        **({"logprobs": answer.logprobs} if answer.logprobs else {}),
    }


def show(stream: Stream, chunks: Iterator[Chunk], colour: str, parts: list[tuple[str, str]]) -> Chunk | None:
    """Print the chunks of a stream as they come, gather their ``parts`` (thought, content), and return the last. On a
    terminal thoughts are dimmed, without their marks; elsewhere the text is as the model wrote it."""
    last: Chunk | None = None
    coloured = render.wants_colour(colour, sys.stdout)
    out, dims = render.TokenStream(sys.stdout, coloured), not coloured and render.wants_colour("auto", sys.stdout)
    try:
        for piece in chunks:
            thought, said = stream.split(piece)
            parts.append((thought, said))
            last = piece
            if dims:
                out.think(thought)
                out.write((), (), said)
            else:
                out.write(piece.pieces, piece.accepted, piece.text)
    finally:
        out.close()
    return last


@click.command(cls=Command, brief={"as_chat": "", **BRIEF_REQUEST, "as_json": "", "connect": ""})
@click.argument("prompt")
@click.option("--chat", "as_chat", is_flag=True, help="treat PROMPT as a question: apply the model's chat template")
@scored_request_options
@place_options
@colour_option
@json_option
@click.pass_obj
def generate(
    environment: Environment,
    /,
    prompt: str,
    as_chat: bool,
    request: dict[str, Any],
    place: Place,
    color: str,
    as_json: bool,
) -> int:
    """Continue PROMPT and stream the text. "-" reads the prompt from standard input.

    A text that --max-tokens cuts is marked on a terminal, below it; --json has its `finish_reason`, length or stop.

    \b
    Example:  duoactor generate "def factorial(n):" --max-tokens 50
              duoactor generate --chat "Why is the sky blue?" --temperature 0.7
              cat report.txt | duoactor generate - --json
    """
    if "logprobs" in request and not as_json:
        raise click.UsageError("--logprobs is shown with --json only")
    text = said(prompt)
    question: dict[str, Any] = {"messages": (ChatTurn("user", text),)} if as_chat else {"prompt": text}
    with connected(environment, place, quiet=as_json) as client:
        parts = answer(client, question, request, color, as_json)
    if not (as_json or as_chat or any(map(any, parts))):
        render.say("the model ended the text at once; --chat treats PROMPT as a question")
    return 0


def said(prompt: str) -> str:
    """The prompt, or standard input for "-". ConfigError for an empty one."""
    text = sys.stdin.read() if prompt == "-" else prompt
    if not text:
        raise ConfigError("the prompt is empty: give a text, or - to read it from standard input")
    return text


def answer(
    client: Client, question: dict[str, Any], request: dict[str, Any], colour: str, as_json: bool
) -> list[tuple[str, str]]:
    """Print the answer to one question, and return its parts (thought, content)."""
    parts: list[tuple[str, str]] = []
    with ExitStack() as stack:
        stream = client.stream(**question, **request)
        chunks = stack.enter_context(reading(stream, quiet=as_json))
        if as_json:
            render.print_json(document(stream.complete(list(chunks))))
        else:
            render.print_summary(show(stream, chunks, colour, parts), request)
    return parts
