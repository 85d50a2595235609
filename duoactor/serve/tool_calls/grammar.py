"""Grammars (llguidance's Lark) of answers that call a function, in the model's own form."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from duoactor.serve.tool_calls.forms import HERMES_BEGIN, HERMES_END

# As json.dumps writes it, which is what chat templates show the model. Space where it likes would let a weak model
# write nothing but space.
_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def call_grammar(
    form: str, functions: Sequence[tuple[str, dict[str, Any]]], *, several: bool, mark: str, otherwise: Any = None
) -> str:
    """One call or more (``several``) of one of the functions (name, JSON schema of the arguments).

    ``mark``: Lark for Mistral's ``[TOOL_CALLS]``; ``otherwise``: a JSON schema of an answer that calls nothing.
    """
    rules = [
        f"f{at}: {_text(before(name))} a{at} {_text(after)}\na{at}: %json {json.dumps(_styled(schema))}"
        for at, (name, schema) in enumerate(functions)
        for before, after in [_AROUND[form]]
    ]
    one_of = "call: " + " | ".join(f"f{at}" for at in range(len(functions)))
    calls = {"hermes": 'call ("\\n" call)*', "mistral": f'{mark} "[" call (", " call)* "]"', "llama": "call"}[form]
    if not several:
        calls = f'{mark} "[" call "]"' if form == "mistral" else "call"
    if otherwise is not None:
        rules.append(f"other: %json {json.dumps(otherwise)}")
        calls = f"other | calls\ncalls: {calls}"
    return "\n".join([f"start: {calls}", one_of, *rules])


def _named(key: str) -> Callable[[str], str]:
    return lambda name: f'{{"name": {json.dumps(name)}, "{key}": '


_AROUND: dict[str, tuple[Callable[[str], str], str]] = {
    "hermes": (lambda name: f"{HERMES_BEGIN}\n{_named('arguments')(name)}", f"}}\n{HERMES_END}"),
    "llama": (_named("parameters"), "}"),
    "mistral": (_named("arguments"), "}"),
}


def _styled(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "x-guidance": _STYLE, **schema}


def _text(text: str) -> str:
    return json.dumps(text)
