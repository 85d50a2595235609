"""The items of OpenAI's Responses API, as they come in and go out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from duoactor.serve.content import ContentPart, text_of, tool_call
from duoactor.serve.errors import bad
from duoactor.serve.structure import ANY_OBJECT, Form, json_form
from duoactor.serve.tool_calls.use import Tool, ToolUse
from protocols.messages import ChatTurn, ToolCall

_ROLES = {"developer": "system", "system": "system", "user": "user", "assistant": "assistant"}


class InputItem(msgspec.Struct, frozen=True):
    """A message, a call that the model made (``function_call``), or its result (``function_call_output``)."""

    type: str = "message"
    role: Literal["developer", "system", "user", "assistant"] = "user"
    content: str | tuple[ContentPart, ...] | None = None
    call_id: str = ""
    name: str = ""
    arguments: str = ""
    output: str | tuple[ContentPart, ...] | None = None


class ToolItem(msgspec.Struct, frozen=True):
    """A function; tools of other types are the provider's own, and are left out."""

    type: str
    name: str = ""
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class NamedTool(msgspec.Struct, frozen=True):
    name: str
    type: Literal["function"] = "function"


class TextFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["text", "json_object", "json_schema"] = "text"
    schema: dict[str, Any] | None = None
    name: str = ""
    description: str | None = None
    strict: Any = None


class TextOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: TextFormat = TextFormat()


class OutputText(msgspec.Struct, frozen=True):
    text: str
    type: str = "output_text"
    annotations: tuple[()] = ()
    logprobs: tuple[()] = ()


class OutputMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="message"):
    id: str
    role: str = "assistant"
    status: str
    content: list[OutputText]


class OutputCall(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="function_call"):
    id: str
    status: str
    call_id: str
    name: str
    arguments: str


OutputItem = OutputMessage | OutputCall


def turns(instructions: str, given: str | Sequence[InputItem]) -> tuple[ChatTurn, ...]:
    """Calls that follow one another, or a text, are one turn of the assistant's, as chat templates have it."""
    made = [ChatTurn("system", instructions)] if instructions else []
    if isinstance(given, str):
        return (*made, ChatTurn("user", given))
    for at, item in enumerate(given):
        where = f"input[{at}]"
        match item.type:
            case "message":
                if item.content is None:
                    raise bad(f"{where}.content", "is missing")
                made.append(ChatTurn(_ROLES[item.role], text_of(item.content, f"{where}.content")))
            case "function_call":
                _add_call(made, tool_call(item.call_id, item.name, item.arguments, where))
            case "function_call_output":
                if not item.call_id:
                    raise bad(f"{where}.call_id", "is missing")
                made.append(ChatTurn("tool", text_of(item.output, f"{where}.output"), tool_call_id=item.call_id))
            case "reasoning":
                pass  # of another model: ours keeps none
            case other:
                raise bad(f"{where}.type", f": items of type {other!r} are not supported here")
    return tuple(made)


def _add_call(made: list[ChatTurn], call: ToolCall) -> None:
    last = made.pop() if made and made[-1].role == "assistant" else ChatTurn("assistant", "")
    made.append(msgspec.structs.replace(last, tool_calls=(*last.tool_calls, call)))


def use(tools: Sequence[ToolItem], choice: str | NamedTool, parallel: bool) -> ToolUse:
    functions = tuple(Tool(one.name, one.description or "", one.parameters) for one in tools if one.type == "function")
    if isinstance(choice, str):
        found = ToolUse(functions, choice, parallel=parallel)  # type: ignore[arg-type]
    else:
        found = ToolUse(functions, "required", choice.name, parallel)
    found.check("tools[{}].name")
    return found


def form(wanted: TextFormat) -> Form | None:
    if wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return json_form(ANY_OBJECT, "text.format")
    if wanted.schema is None:
        raise bad("text.format.schema", "is missing")
    return json_form(wanted.schema, "text.format.schema")
