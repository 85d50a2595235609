"""The items of OpenAI's Responses API, as they come in and go out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from duoactor.serve.content import ContentPart, called, text_of, tool_call
from duoactor.serve.errors import bad
from duoactor.serve.tool_calls.use import Choice, Pick, Tool, ToolUse
from protocols.limits import MAX_CALLS
from protocols.messages import ChatTurn, ToolCall

_ROLES = {"developer": "system", "system": "system", "user": "user", "assistant": "assistant"}


class InputItem(msgspec.Struct, frozen=True):
    """A message, a thought (``reasoning``), a call that the model made (``function_call``), or its result
    (``function_call_output``)."""

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


class ReasoningText(msgspec.Struct, frozen=True):
    text: str
    type: str = "reasoning_text"


class OutputReasoning(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="reasoning"):
    id: str
    status: str
    summary: tuple[()] = ()
    content: list[ReasoningText]
    encrypted_content: str | None = None


OutputItem = OutputMessage | OutputCall | OutputReasoning


class InputText(msgspec.Struct, frozen=True):
    text: str
    type: str = "input_text"


class SentMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="message"):
    id: str
    role: str
    status: str = "completed"
    content: tuple[InputText]


class SentResult(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="function_call_output"):
    id: str
    status: str = "completed"
    call_id: str
    output: str


ListedItem = SentMessage | SentResult | OutputItem


class ItemPage(msgspec.Struct, frozen=True):
    data: list[ListedItem]
    first_id: str
    last_id: str
    has_more: bool
    object: str = "list"


def turns(instructions: str, given: str | Sequence[InputItem]) -> tuple[ChatTurn, ...]:
    """Calls that follow one another, or a text, are one turn of the assistant's, as chat templates have it."""
    made = [ChatTurn("system", instructions)] if instructions else []
    thought = ""  # thought in front of the assistant's next turn
    if isinstance(given, str):
        return (*made, ChatTurn("user", given))
    for at, item in enumerate(given):
        where = f"input[{at}]"
        match item.type:
            case "message":
                if item.content is None:
                    raise bad(f"{where}.content", "is missing")
                turn = ChatTurn(_ROLES[item.role], text_of(item.content, f"{where}.content"))
                if turn.role == "assistant":
                    turn, thought = msgspec.structs.replace(turn, reasoning=thought), ""
                made.append(turn)
            case "function_call":
                _add_call(made, tool_call(item.call_id, item.name, item.arguments, where), thought)
                thought = ""
            case "function_call_output":
                if not item.call_id:
                    raise bad(f"{where}.call_id", "is missing")
                answers = called(item.call_id, f"{where}.call_id")
                made.append(ChatTurn("tool", text_of(item.output, f"{where}.output"), tool_call_id=answers))
            case "reasoning":
                thought = text_of(item.content, f"{where}.content")
            case other:
                raise bad(f"{where}.type", f": items of type {other!r} are not supported here")
    return tuple(made)


def items(given: Sequence[ChatTurn], response: str) -> list[ListedItem]:
    """The turns as items again. Their ids follow from the response's."""
    made: list[ListedItem] = []

    def name(kind: str) -> str:
        return f"{kind}_{response.removeprefix('resp_')}_{len(made)}"

    for turn in given:
        match turn.role:
            case "tool":
                made.append(SentResult(id=name("fco"), call_id=turn.tool_call_id, output=turn.content))
            case "assistant":
                if turn.reasoning:
                    thought = [ReasoningText(turn.reasoning)]
                    made.append(OutputReasoning(id=name("rs"), status="completed", content=thought))
                if turn.content or not turn.tool_calls:
                    made.append(OutputMessage(id=name("msg"), status="completed", content=[OutputText(turn.content)]))
                for call in turn.tool_calls:
                    how = {"call_id": call.id, "name": call.name, "arguments": call.arguments}
                    made.append(OutputCall(id=name("fc"), status="completed", **how))
            case role:
                made.append(SentMessage(id=name("msg"), role=role, content=(InputText(turn.content),)))
    return made


def page(listed: list[ListedItem], order: str, limit: str, after: str) -> ItemPage:
    """A part of the items, as a request's query asks for it. Raises ApiError (400) for an invalid query."""
    if order not in ("asc", "desc"):
        raise bad("order", f"must be asc or desc, not {order!r}")
    if not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:9]) <= 100):
        raise bad("limit", f"must be a number from 1 to 100, not {limit[:20]!r}")
    there = listed if order == "asc" else listed[::-1]
    if after:
        found = [at for at, one in enumerate(there) if one.id == after]
        if not found:
            raise bad("after", f": this response has no item {after!r}")
        there = there[found[0] + 1 :]
    shown = there[: int(limit)]
    first, last = (shown[0].id, shown[-1].id) if shown else ("", "")
    return ItemPage(shown, first, last, len(there) > len(shown))


def _add_call(made: list[ChatTurn], call: ToolCall, thought: str) -> None:
    joins = bool(made) and made[-1].role == "assistant" and not thought
    last = made.pop() if joins else ChatTurn("assistant", "", reasoning=thought)
    if len(last.tool_calls) == MAX_CALLS:  # refused here, before many more are added one by one
        raise bad("input", f": at most {MAX_CALLS} calls can follow one another")
    made.append(msgspec.structs.replace(last, tool_calls=(*last.tool_calls, call)))


def use(tools: Sequence[ToolItem], choice: Choice | Pick, parallel: bool | None) -> ToolUse:
    functions = (Tool(one.name, one.description or "", one.parameters) for one in tools if one.type == "function")
    return ToolUse.of(functions, choice, parallel, "tools[{}].name")
