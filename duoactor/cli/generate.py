"""The command that asks for a text."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import click

from duoactor import render
from duoactor.cli.environment import Environment
from duoactor.cli.options import Place, json_option, place_options, request_options, struct_options
from duoactor.cli.sections import SAMPLING, Command
from duoactor.cli.waiting import connected, reading
from duoactor.client.metrics import metrics
from duoactor.client.sync_client import Stream
from protocols.errors import ConfigError
from protocols.messages import ChatTurn, Chunk, RequestStats, Sampling, TokenLogprobs

colour_option = click.option(
    "--color",
    type=click.Choice(["auto", "always", "never"]),
    default="never",
    help="colour drafted (green) and target-made (magenta) tokens  [never]",
)


class PrintedAnswer:
    """Gathers the chunks of one stream."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.text = self.reasoning = self.content = ""
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprobs] = []
        self.finish_reason: str | None = None
        self.stats: RequestStats | None = None

    def take(self, piece: Chunk) -> tuple[str, str]:
        """What the chunk adds to the thoughts, and to the rest."""
        thought, said = self._stream.split(piece)
        self.text, self.reasoning, self.content = self.text + piece.text, self.reasoning + thought, self.content + said
        self.token_ids += piece.token_ids
        self.logprobs += piece.logprobs
        self.finish_reason = str(piece.finish_reason) if piece.finish_reason else self.finish_reason
        self.stats = piece.stats or self.stats
        return thought, said

    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "text": self.text,
            **({"reasoning": self.reasoning, "content": self.content} if self.reasoning else {}),
            "token_ids": self.token_ids,
            "finish_reason": self.finish_reason,
            "metrics": metrics(self.stats or RequestStats()),
        }
        if self.logprobs:
            found["logprobs"] = self.logprobs
        return found


def show(chunks: Iterator[Chunk], answer: PrintedAnswer, colour: str) -> None:
    """On a terminal thoughts are dimmed, without their marks; elsewhere the text is as the model wrote it."""
    coloured = render.wants_colour(colour, sys.stdout)
    out, dims = render.TokenStream(sys.stdout, coloured), not coloured and render.wants_colour("auto", sys.stdout)
    try:
        for piece in chunks:
            thought, said = answer.take(piece)
            if dims:
                out.think(thought)
                out.write((), (), said)
            else:
                out.write(piece.pieces, piece.accepted, piece.text)
    finally:
        out.close()


@click.command(cls=Command)
@click.argument("prompt")
@click.option("--chat", "as_chat", is_flag=True, help="treat PROMPT as a question: apply the model's chat template")
@request_options
@struct_options(Sampling, section=SAMPLING, only=("logprobs",))
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
    logprobs: int | None,
    place: Place,
    color: str,
    as_json: bool,
) -> int:
    """Continue PROMPT and stream the text. "-" reads the prompt from standard input.

    \b
    Example:  duoactor generate "def factorial(n):" --max-tokens 50
              duoactor generate --chat "Wie geht es dir?" --temperature 0.7 --seed 3
              cat report.txt | duoactor generate - --json
    """
    if logprobs is not None:
        if not as_json:
            raise click.UsageError("--logprobs is shown with --json only")
        request["logprobs"] = logprobs
    text = sys.stdin.read() if prompt == "-" else prompt
    if not text:
        raise ConfigError("the prompt is empty: give a text, or - to read it from standard input")
    question: dict[str, Any] = {"messages": (ChatTurn("user", text),)} if as_chat else {"prompt": text}
    with connected(environment, place, quiet=as_json) as client, ExitStack() as stack:
        stream = client.stream(**question, **request)
        answer, chunks = PrintedAnswer(stream), stack.enter_context(reading(stream, quiet=as_json))
        if as_json:
            for piece in chunks:
                answer.take(piece)
            render.print_json(answer.document())
        else:
            show(chunks, answer, color)
            if not (as_chat or answer.text):
                click.echo("duoactor: the model ended the text at once; --chat treats PROMPT as a question", err=True)
            render.print_summary(answer.stats)
    return 0
