"""Forms of calls by family: Hermes' form (Qwen, and most others), Llama's and Mistral's. One table, from
which calls are read and grammars are made."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from duoactor.serve.tool_calls.reader import Reader, ReadingParser, Steps

_ARGUMENTS = ("arguments", "parameters")
_KEYS = ("name", "id", "type", *_ARGUMENTS)
_NAME = re.compile(r"[\w.-]+")


@dataclass(frozen=True, slots=True)
class CallForm:
    """Calls are JSON objects with a name and arguments, after ``mark``."""

    mark: str
    close: str = ""  # the mark after a call
    opening: str = ""  # characters that may stand between the mark and a call
    between: str = ""  # characters that may stand after a call; small models close too often
    bare: bool = False  # the text may begin with a call: an answer may be JSON too, so it must name a function
    series: bool = False  # calls may follow one another after one mark
    named: bool = False  # a name and its arguments may stand there in place of an object
    key: str = "arguments"
    grammar: tuple[str, str] = ("call", "call")  # Lark of one call, and of several
    around: tuple[str, str] = ("", "")  # a call in the grammar

    def lark(
        self,
        functions: Sequence[tuple[str, dict[str, Any]]],
        *,
        several: bool,
        mark: int,
        otherwise: Mapping[str, Any] | None = None,
    ) -> str:
        """A grammar of one call or more (``several``) of one of the functions (name, JSON schema of the arguments).
        ``mark``: the mark's token id, or -1; ``otherwise``: the schema of an answer that calls nothing."""
        before, after = self.around
        ids = {self.mark: mark} if mark >= 0 else {}
        calls = self.grammar[several].replace("MARK", spelt(self.mark, ids))
        heads = [json.dumps(f"{before}{_head(name, self.key)}") for name, _ in functions]
        return calls_grammar(calls, functions, heads, json.dumps(f"}}{after}"), otherwise)


def calls_grammar(
    calls: str,
    functions: Sequence[tuple[str, dict[str, Any]]],
    heads: Sequence[str],
    tail: str,
    otherwise: Mapping[str, Any] | None,
    lead: str = "",
) -> str:
    """In llguidance's Lark. ``calls``: made of the rule ``call``; ``heads``, ``tail``: what stands around the
    arguments of each function; ``lead``: in front of an answer that calls nothing."""
    rules = [
        f"f{at}: {head} a{at} {tail}\na{at}: %json {json.dumps({'type': 'object', **schema})}"
        for at, (head, (_, schema)) in enumerate(zip(heads, functions, strict=True))
    ]
    if otherwise is not None:
        rules.append(f"other: {lead} json\njson: %json {json.dumps(otherwise)}")
        calls = f"other | calls\ncalls: {calls}"
    one_of = "call: " + " | ".join(f"f{at}" for at in range(len(functions)))
    return "\n".join([f"start: {calls}", one_of, *rules])


def spelt(text: str, special: Mapping[str, int]) -> str:
    """A text in Lark, with special tokens by their ids: to a grammar they are no text."""
    names = "|".join(map(re.escape, sorted(special, key=len, reverse=True))) or "(?!)"
    parts = [part for part in re.split(f"({names})", text) if part]
    return " ".join(f"<[{special[part]}]>" if part in special else json.dumps(part) for part in parts)


def _head(name: str, key: str) -> str:
    return f'{{"name": {json.dumps(name)}, "{key}": '


FORMS: dict[str, CallForm] = {
    "hermes": CallForm(
        "<tool_call>",
        close="</tool_call>",
        between="}]",
        grammar=("call", 'call ("\\n" call)*'),
        around=("<tool_call>\n", "\n</tool_call>"),
    ),
    "llama": CallForm("<|python_tag|>", between=";,", bare=True, series=True, key="parameters"),
    "mistral": CallForm(
        "[TOOL_CALLS]",
        opening="[",
        between=",]",
        series=True,
        named=True,
        grammar=('MARK "[" call "]"', 'MARK "[" call (", " call)* "]"'),
    ),
}
DEFAULT_FORM = "hermes"  # form of models that nothing is known of: most open ones were trained with it
NAME_ID, NAME_ARGUMENTS = "[CALL_ID]", "[ARGS]"  # between a name and its arguments


def form_parser(form: CallForm, names: Collection[str], sure: bool = False) -> ReadingParser:
    """A parser for a form; ``names`` of the functions that there are; ``sure``: see :class:`Reader`."""
    return ReadingParser(partial(_calls, form=form, names=names), sure)


def _calls(text: Reader, form: CallForm, names: Collection[str]) -> Steps:
    """A mark without a call after it is text."""
    known = names if form.bare else None
    called = form.bare and (yield from _call(text, 0, known))
    while True:
        while called:
            text.skip((yield from text.past(form.between)))
            if form.close and (yield from text.starts(form.close)):
                text.skip(len(form.close))
            called = form.series and (yield from _call(text, 0, known))
        text.say_refused()
        if not (yield from text.say_until(form.mark)):
            return
        at = yield from text.past(form.opening, len(form.mark))
        called = (yield from _call(text, at)) or (form.named and (yield from _named(text, at)))
        if not called:
            text.refuse(len(form.mark))


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
            called = yield from text.call(name, at)
            if called:
                yield from _skip_rest(text)
            return called
        end = yield from text.value(at)
        if end < 0:
            text.refuse(len(text.text))
            return False
        if key in _ARGUMENTS:
            arguments = text.text[at:end]
        elif key == "name":
            name = _string(text.text[at:end])
            if not name or (names is not None and name not in names):
                return False
        at = end
    return name is not None and text.call_with(name, _plain(arguments), at + 1)


def _skip_rest(text: Reader) -> Steps:
    """Skip the end of the call's object, after its arguments."""
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
    if (yield from text.starts(NAME_ID, end)):
        while (found_at := text.text.find(NAME_ARGUMENTS, end)) < 0:
            if text.ended:
                return False
            yield
        end = found_at
    if (yield from text.starts(NAME_ARGUMENTS, end)):
        end += len(NAME_ARGUMENTS)
    end = yield from text.past("", end)
    if not text.text.startswith("{", end):
        return False
    return (yield from text.call(name, end))


def _string(text: str) -> str | None:
    try:
        found = msgspec.json.decode(text)  # it takes no half of a character
    except (msgspec.DecodeError, RecursionError):
        return None
    return found if isinstance(found, str) else None


def _plain(arguments: str | None) -> str:
    """Arguments as an object: some models write a string, or nothing."""
    if arguments is None or arguments == "null":
        return "{}"
    return _string(arguments) or arguments
