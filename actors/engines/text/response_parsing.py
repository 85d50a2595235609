"""Parses tool calls by a tokenizer's ``response_template``, with transformers' parser, which needs no torch."""

from __future__ import annotations

import json
from typing import Any

from transformers.utils.chat_parsing import ResponseParser

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
        self._open = ""  # text behind the last part: perhaps a call that is not complete yet
        self.broken = False  # a call could not be read: from there on, all is text

    def feed(self, text: str) -> list[Part]:
        """The parts that ``text`` completes."""
        if self.broken:
            return [text]
        self._open += text
        try:
            return self._parts(self._parser.feed(text))
        except ValueError:
            return self._break()

    def end(self) -> list[Part]:
        """The last parts, once all text was fed."""
        if self.broken:
            return []
        try:
            return self._parts(self._parser.finalize()[1])
        except ValueError:
            return self._break()

    def _parts(self, events: list[dict[str, Any]]) -> list[Part]:
        parts: list[Part] = []
        for event in events:
            kind, call = event["type"], event["field"] == "tool_calls"
            if kind == "region_chunk":
                if not call:
                    self._open = self._open.partition(event["text"])[2]
                    parts.append(event["text"])
            elif kind == "region_close" and call:
                self._open = ""
                value = event["value"]
                parts += [_call(one) for one in (value if isinstance(value, list) else [value])]
        return parts

    def _break(self) -> list[Part]:
        """What looked like a call cannot be parsed: it is text, and so is all that follows."""
        self.broken = True
        return [self._open]


def _call(found: Any) -> tuple[str, str]:
    function = found.get("function", found) if isinstance(found, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise ValueError("the response template makes no call of it")
    arguments = function.get("arguments") or {}
    return function["name"], arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
