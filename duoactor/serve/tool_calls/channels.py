"""Calls in the channels of gpt-oss: ``<|channel|>commentary to=functions.f <|constrain|>json<|message|>{…}<|call|>``.

The recipient may also stand before the channel's name. Text for the user is in the channels ``final`` and
``commentary``, thoughts are in ``analysis``.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from duoactor.serve.tool_calls.forms import calls_grammar, spelt
from duoactor.serve.tool_calls.reader import Reader, ReadingParser, Steps
from protocols.messages import Thinking

START, CHANNEL, MESSAGE, END, CALL = "<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>"
HEADER = "<|channel|>commentary to=functions.{} <|constrain|>json<|message|>"
RECIPIENT = re.compile(r"to=(?:functions\.)?([\w.-]+)")


def channel_parser(sure: bool = False) -> ReadingParser:
    """A parser of messages with headers; text before the first header is the answer's. ``sure``: see
    :class:`Reader`."""
    return ReadingParser(_messages, sure)


def channel_grammar(
    functions: Sequence[tuple[str, dict[str, Any]]], form: Thinking, otherwise: Mapping[str, Any] | None
) -> str:
    """A grammar of a call of one of the functions (name, JSON schema of the arguments), which ends the turn.
    ``otherwise``: the schema of an answer in the channel ``final``."""
    special = dict(form.special)
    heads = [spelt(HEADER.format(name), special) for name, _ in functions]
    return calls_grammar("call", functions, heads, "", otherwise, spelt(form.markup[-1], special))


def _messages(text: Reader) -> Steps:
    while True:
        if not (yield from _header(text)):
            yield from text.say_until(START)
            if text.ended and not text.text:
                return
        while (end := text.text.find(MESSAGE)) < 0:
            if text.ended:  # inside a header
                return
            yield
        header = text.text[:end]
        if found := RECIPIENT.search(header):
            at = yield from text.past("", end + len(MESSAGE))
            yield from text.call(found[1], at)
            text.say_refused()
            for mark in (CALL, END):
                if (yield from text.starts(mark)):
                    text.skip(len(mark))
            continue
        text.skip(end + len(MESSAGE))
        if (yield from text.say_until(END, thought="analysis" in header)):
            text.skip(len(END))
        if text.ended and not text.text:
            return


def _header(text: Reader) -> Generator[None, None, bool]:
    """Whether a message's header follows."""
    at = yield from text.past("")
    for mark in (START, CHANNEL, "to=functions."):
        if (yield from text.starts(mark, at)):
            return True
    return False
