"""Conversations and functions as OpenAI's chat API has them, as turns and tools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from duoactor.serve.errors import ApiError
from duoactor.serve.tool_calls.use import Tool, ToolUse
from protocols.messages import ChatTurn, ToolCall

_ROLES = {"developer": "system", "system": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


class ContentPart(msgspec.Struct, frozen=True):
    type: str
    text: str = ""


class FunctionCall(msgspec.Struct, frozen=True):
    name: str
    arguments: str = ""


class CallPart(msgspec.Struct, frozen=True):
    id: str
    function: FunctionCall
    type: Literal["function"] = "function"


class ChatMessage(msgspec.Struct, frozen=True):
    """``content`` is a text, or its parts."""

    role: str
    content: str | tuple[ContentPart, ...] | None = None
    name: str | None = None
    refusal: str | None = None
    tool_calls: tuple[CallPart, ...] | None = None
    function_call: Any = None
    tool_call_id: str | None = None
    audio: Any = None


class Function(msgspec.Struct, frozen=True):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FunctionTool(msgspec.Struct, frozen=True):
    function: Function
    type: Literal["function"] = "function"


class FunctionName(msgspec.Struct, frozen=True):
    name: str


class NamedFunction(msgspec.Struct, frozen=True):
    function: FunctionName
    type: Literal["function"] = "function"


def use(
    tools: Sequence[FunctionTool],
    choice: Literal["none", "auto", "required"] | NamedFunction = "auto",
    parallel: bool = True,
) -> ToolUse:
    """ApiError about what cannot be."""
    functions = (one.function for one in tools)
    found = ToolUse(
        tuple(Tool(one.name, one.description or "", one.parameters) for one in functions),
        choice if isinstance(choice, str) else "required",
        "" if isinstance(choice, str) else choice.function.name,
        parallel,
    )
    found.check("tools[{}].function.name")
    return found


def turns(messages: Sequence[ChatMessage]) -> tuple[ChatTurn, ...]:
    return tuple(_turn(message, f"messages[{at}]") for at, message in enumerate(messages))


def _turn(message: ChatMessage, where: str) -> ChatTurn:
    if message.role not in _ROLES:
        param = f"{where}.role"
        detail = f"{param} can be system, developer, user, assistant or tool, not {message.role!r}"
        raise ApiError(400, detail, param=param)
    for name in ("function_call", "audio"):
        if getattr(message, name):
            raise ApiError(400, f"{where}.{name} is not supported here", param=f"{where}.{name}")
    if (message.role == "tool") != bool(message.tool_call_id):
        param = f"{where}.tool_call_id"
        detail = f"{param} is for messages of role tool, and says which call they answer"
        raise ApiError(400, detail, param=param)
    calls = message.tool_calls or ()
    if calls and message.role != "assistant":
        param = f"{where}.tool_calls"
        raise ApiError(400, f"{param} is for the assistant's messages", param=param)
    return ChatTurn(
        _ROLES[message.role],
        text_of(message.content, f"{where}.content"),
        tuple(
            tool_call(call.id, call.function.name, call.function.arguments, f"{where}.tool_calls[{at}].function")
            for at, call in enumerate(calls)
        ),
        message.tool_call_id or "",
    )


def tool_call(id: str, name: str, arguments: str, where: str) -> ToolCall:
    """ApiError unless the arguments are a JSON object, or nothing: chat templates show them as one."""
    param = f"{where}.arguments"
    try:
        found = msgspec.json.decode(arguments or "{}")
    except (msgspec.DecodeError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ApiError(400, f"{param} must be a JSON object in a text", param=param)
    for what, value in (("id", id), ("name", name)):
        if not 0 < len(value) <= 256:
            raise ApiError(400, f"{where}: the call's {what} must be 1 to 256 characters long", param=where)
    return ToolCall(id, name, arguments or "{}")


def text_of(content: str | Sequence[ContentPart] | None, where: str) -> str:
    """The text of a message; its parts one below the other, as vLLM puts them."""
    if content is None or isinstance(content, str):
        return content or ""
    for at, part in enumerate(content):
        if part.type not in ("text", "input_text", "output_text", "refusal"):
            param = f"{where}[{at}].type"
            raise ApiError(400, f"{param} can be text only, not {part.type!r}: the model reads text", param=param)
    return "\n".join(part.text for part in content)
