"""Calls in the form that the model's tokenizer describes itself, by transformers' parser."""

from __future__ import annotations

import importlib
from functools import cache
from types import ModuleType

from duoactor.serve.tool_calls.events import Event
from duoactor.serve.tool_calls.reader import Reader


@cache
def parsing() -> ModuleType | None:
    """transformers' parser; None where transformers is too old for it. It takes two seconds to load, so only models
    that need it load it."""
    try:
        return importlib.import_module("actors.engines.text.response_parsing")
    except ImportError:
        return None


def taken(template: str) -> bool:
    """Whether that parser takes a verifier's ``response_template``. Loads it."""
    module = parsing()
    if module is None:
        return False
    try:
        module.ToolCallRegions(template, "[]")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return False
    return True


class TemplateParser:
    """A :class:`Parser`. A call comes whole: only its end tells whether it can be read."""

    def __init__(self, template: str, tools: str) -> None:
        module = parsing()
        assert module is not None
        self._regions = module.ToolCallRegions(template, tools)
        self._reader = Reader()

    def feed(self, text: str) -> list[Event]:
        return self._events(self._regions.feed(text))

    def end(self, cut: bool = False) -> list[Event]:
        whole = not self._regions.broken
        parts = self._regions.end()
        events = self._events([] if cut and whole and self._regions.broken else parts)
        self._reader.close()
        return [*events, *self._reader.taken()]

    def _events(self, parts: list[str | tuple[str, str]]) -> list[Event]:
        for part in parts:
            if isinstance(part, str):
                self._reader.say(part)
            else:
                self._reader.begin(part[0])
                self._reader.argue(part[1])
                self._reader.finish()
        return self._reader.taken()
