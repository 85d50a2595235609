"""Parses tool calls by a tokenizer's ``response_template``, with transformers' parser, which needs no torch."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

from transformers.utils.chat_parsing import ResponseParser

from protocols.limits import LONGEST_LABEL
from protocols.validation import is_object

Part = str | tuple[str, str]  # text, or a call: (name, arguments in JSON)


class ToolCallRegions:
    """Splits streamed text into text and tool calls.

    The template's other fields, such as thoughts, stay in the text, as they do in an answer without tools.
    """

    def __init__(self, template: str, tools: str) -> None:
        """``template``: as ``Welcome.response_template``. ``tools``: as ``Generate.tools``; their schemas tell the
        types of arguments that the model writes without quotes. Raises ValueError if transformers refuses the
        template."""
        fields = {"tool_calls": json.loads(template)["fields"]["tool_calls"], "content": {"content": "text"}}
        spec = {"start_anchor": "\n", "fields": fields}  # there is no prefix in which to look for the anchor
        self._parser = ResponseParser(spec, prefix="", tools=json.loads(tools))
        self._open = ""  # text after the last part: perhaps a call that is not complete yet
        self.broken = False  # a call could not be read: from there on, all is text

    def feed(self, text: str) -> list[Part]:
        """The parts that ``text`` completes. Letter by letter, so that what stands after a call is known."""
        parts: list[Part] = []
        for at, letter in enumerate(text):
            if self.broken:
                return [*parts, text[at:]]
            self._open += letter
            parts += self._parts(partial(self._parser.feed, letter))
        return parts

    def end(self) -> list[Part]:
        """The last parts, once all text was fed."""
        return [] if self.broken else self._parts(lambda: self._parser.finalize()[1])

    def _parts(self, step: Callable[[], list[dict[str, Any]]]) -> list[Part]:
        """The parts in a step's events. A call that cannot be read is text."""
        parts: list[Part] = []
        try:
            for event in step():
                kind, call = event["type"], event["field"] == "tool_calls"
                if kind == "region_chunk" and not call:
                    self._open = self._open.partition(event["text"])[2]
                    parts.append(event["text"])
                elif kind == "region_close" and call:
                    value = event["value"]
                    parts += [_call(one) for one in (value if isinstance(value, list) else [value])]
                    self._open = ""
        except ValueError:
            parts += self._break()
        return parts

    def _break(self) -> list[Part]:
        """What looked like a call cannot be parsed: it is text, and so is all that follows."""
        self.broken = True
        return [self._open]


def _call(found: Any) -> tuple[str, str]:
    function = found.get("function", found) if isinstance(found, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise ValueError("the response template makes no call of it")
    name, given = function["name"], function.get("arguments")
    arguments = given if isinstance(given, str) else json.dumps({} if given is None else given, ensure_ascii=False)
    if not 0 < len(name) <= LONGEST_LABEL or not is_object(arguments):
        raise ValueError("a call has a name, and an object as its arguments")
    return name, arguments
