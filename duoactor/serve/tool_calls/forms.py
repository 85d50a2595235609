"""How families of models write calls: Hermes' form (Qwen, and most others), Llama's and Mistral's."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Generator

from duoactor.serve.tool_calls.events import Event
from duoactor.serve.tool_calls.reader import Reader

HERMES_BEGIN, HERMES_END = "<tool_call>", "</tool_call>"
LLAMA_TAG = "<|python_tag|>"
MISTRAL_MARK, MISTRAL_ID, MISTRAL_ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"

_ARGUMENTS = ("arguments", "parameters")
_KEYS = ("name", "id", "type", *_ARGUMENTS)
_NAME = re.compile(r"[\w.-]+")

Steps = Generator[None, None, None]
Form = Callable[[Reader, Collection[str]], Steps]


class FormParser:
    """A :class:`Parser` for one of the forms below; ``names`` of the functions that there are."""

    def __init__(self, form: Form, names: Collection[str]) -> None:
        self._reader = Reader()
        self._steps = form(self._reader, names)

    def feed(self, text: str) -> list[Event]:
        self._reader.text += text
        next(self._steps, None)
        return self._reader.taken()

    def end(self, cut: bool = False) -> list[Event]:
        if cut:
            self._reader.cut_off()
        else:
            self._reader.ended = True
            next(self._steps, None)
        self._reader.close()
        return self._reader.taken()


def hermes(text: Reader, names: Collection[str]) -> Steps:
    """``<tool_call>{"name": "f", "arguments": {…}}</tool_call>``, anywhere, any number of times."""
    while (yield from text.say_until(HERMES_BEGIN)):
        if (yield from _call(text, len(HERMES_BEGIN))):
            text.skip((yield from text.past("}]")))  # small models close too often
            if (yield from text.starts(HERMES_END)):
                text.skip(len(HERMES_END))
        else:
            _say(text, HERMES_BEGIN)


def llama(text: Reader, names: Collection[str]) -> Steps:
    """``{"name": "f", "parameters": {…}}`` and nothing before it, or behind ``<|python_tag|>``; several with ``;``.

    Without the tag it is a call only if there is such a function: an answer may be JSON too.
    """
    more = yield from _call(text, 0, names)
    while True:
        while more:
            text.skip((yield from text.past(";,")))
            more = yield from _call(text, 0, names)
        if not (yield from text.say_until(LLAMA_TAG)):
            return
        more = yield from _call(text, len(LLAMA_TAG))
        if not more:
            _say(text, LLAMA_TAG)


def mistral(text: Reader, names: Collection[str]) -> Steps:
    """``[TOOL_CALLS][{"name": "f", "arguments": {…}}, …]``, or ``[TOOL_CALLS]f[ARGS]{…}`` for each call."""
    while (yield from text.say_until(MISTRAL_MARK)):
        at = yield from text.past("", len(MISTRAL_MARK))
        if not (yield from text.starts("[", at)):
            if not (yield from _call(text, at)) and not (yield from _named(text, at)):
                _say(text, MISTRAL_MARK)
        elif (yield from _call(text, at + 1)):
            more = True
            while more:
                text.skip((yield from text.past(",")))
                more = yield from _call(text, 0)
            text.skip((yield from text.past("]")))
        else:
            _say(text, MISTRAL_MARK)


FORMS: dict[str, Form] = {"hermes": hermes, "llama": llama, "mistral": mistral}
DEFAULT_FORM = "hermes"  # of models that nothing is known of: most open ones were trained with it


def _say(text: Reader, mark: str) -> None:
    """What looked like the beginning of a call was none."""
    text.say(mark)
    text.skip(len(mark))


def _call(text: Reader, at: int, names: Collection[str] | None = None) -> Generator[None, None, bool]:
    """A call as a JSON object at ``at``, of one of ``names`` if those are given. False: there is none, and nothing was
    taken."""
    at = yield from text.past("", at)
    if not (yield from text.starts("{", at)):
        return False
    name: str | None = None
    arguments: str | None = None
    at += 1
    while True:
        at = yield from text.past(",", at)
        if text.text.startswith("}", at):
            break
        end = yield from text.value(at)
        key = _string(text.text[at:end])
        if end < 0 or key not in _KEYS:
            return False
        at = yield from text.past("", end)
        if not text.text.startswith(":", at):
            return False
        at = yield from text.past("", at + 1)
        if name is not None and key in _ARGUMENTS and text.text.startswith("{", at):
            text.skip(at)
            text.begin(name)
            yield from text.argue_value()
            yield from _skip_rest(text)
            return True
        end = yield from text.value(at)
        if end < 0:
            return False
        if key in _ARGUMENTS:
            arguments = text.text[at:end]
        elif key == "name":
            name = _string(text.text[at:end])
            if not name or (names is not None and name not in names):
                return False
        at = end
    if name is None:
        return False
    text.skip(at + 1)
    text.begin(name)
    text.argue(_plain(arguments))
    text.finish()
    return True


def _skip_rest(text: Reader) -> Steps:
    """Of the call's object, behind its arguments: nothing of it is of use."""
    at = yield from text.past("")
    if text.text[at : at + 1] in (",", "}"):
        end = yield from text.value(at, depth=1)
        text.skip(end if end >= 0 else len(text.text))


def _named(text: Reader, at: int) -> Generator[None, None, bool]:
    """``f{…}``, ``f[ARGS]{…}`` or ``f[CALL_ID]…[ARGS]{…}``."""
    end = at
    while (found := _NAME.match(text.text, at)) is None or (end := found.end()) == len(text.text):
        if text.ended or (found is None and len(text.text) > at):
            return False
        yield
    name = text.text[at:end]
    if (yield from text.starts(MISTRAL_ID, end)):
        while (found_at := text.text.find(MISTRAL_ARGUMENTS, end)) < 0:
            if text.ended:
                return False
            yield
        end = found_at
    if (yield from text.starts(MISTRAL_ARGUMENTS, end)):
        end += len(MISTRAL_ARGUMENTS)
    end = yield from text.past("", end)
    if not text.text.startswith("{", end):
        return False
    text.skip(end)
    text.begin(name)
    yield from text.argue_value()
    return True


def _string(text: str) -> str | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, str) else None


def _plain(arguments: str | None) -> str:
    """Some models write the object as a string, or nothing where there are no arguments."""
    if arguments is None or arguments == "null":
        return "{}"
    return _string(arguments) or arguments
