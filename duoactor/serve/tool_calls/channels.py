"""Calls in the channels of gpt-oss: ``<|channel|>commentary to=functions.f <|constrain|>json<|message|>{…}<|call|>``.

The recipient may also stand before the channel's name. Text for the user is in the channels ``final`` and
``commentary``, thoughts are in ``analysis``.
"""

from __future__ import annotations

import re
from collections.abc import Generator

from duoactor.serve.tool_calls.reader import Reader, ReadingParser, Steps

START, CHANNEL, MESSAGE, END, CALL = "<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>"
RECIPIENT = re.compile(r"to=(?:functions\.)?([\w.-]+)")


def channel_parser() -> ReadingParser:
    """A parser of messages with headers; text before the first header is the answer's."""
    return ReadingParser(_messages)


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
        text.skip(end + len(MESSAGE))
        if found := RECIPIENT.search(header):
            text.skip((yield from text.past("")))
            text.begin(found[1])
            yield from text.argue_value()
            for mark in (CALL, END):
                if (yield from text.starts(mark)):
                    text.skip(len(mark))
        elif (yield from text.say_until(END, thought="analysis" in header)):
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
