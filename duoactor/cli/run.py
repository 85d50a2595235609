"""The command that starts a model, asks it, and stops it."""

from __future__ import annotations

import sys
from typing import Any

import click

from duoactor.cli.chat import talk
from duoactor.cli.environment import Environment
from duoactor.cli.generate import answer, colour_option, said
from duoactor.cli.options import BRIEF_REQUEST, Command, Place, json_option, request_options
from duoactor.cli.own_actors import place_of
from duoactor.cli.waiting import connected
from protocols.messages import ChatTurn


@click.command(cls=Command, brief={**BRIEF_REQUEST, "as_json": ""})
@click.argument("model")
@click.argument("prompt", default="")
@request_options
@colour_option
@json_option
@click.pass_obj
def run(
    environment: Environment, /, model: str, prompt: str, request: dict[str, Any], color: str, as_json: bool
) -> int:
    """Start MODEL, answer PROMPT, and stop.

    Without PROMPT it is a conversation, as `duoactor chat` holds. "-" reads PROMPT from standard input. A model without
    a chat template continues it.

    \b
    Example:  duoactor run smollm2 "Why is the sky blue?"
              duoactor run ./my-model.gguf
    """
    text = said(prompt) if prompt else ""
    if as_json and not text:
        raise click.UsageError("--json is of one answer: give a PROMPT")
    with (
        place_of(environment, Place(), model) as place,
        connected(environment, place, quiet=as_json) as client,
    ):
        if not text:
            talk(client, [], request, color, sys.stdin.isatty())
            return 0
        question: dict[str, Any] = {"prompt": text}
        if client.tokenizer_config().get("chat_template"):
            question = {"messages": (ChatTurn("user", text),)}
        answer(client, question, request, color, as_json)
    return 0
