"""Conversations and functions as OpenAI's chat API has them, as turns and tools."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from duoactor.serve.content import ContentPart, called, text_of, tool_call
from duoactor.serve.errors import bad
from duoactor.serve.tool_calls.use import Choice, Pick, Tool, ToolUse
from protocols.messages import ChatTurn, Rendering

_ROLES = {"developer": "system", "system": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


class FunctionCall(msgspec.Struct, frozen=True):
    name: str
    arguments: str = ""


class CallPart(msgspec.Struct, frozen=True):
    function: FunctionCall
    id: str = ""
    type: Literal["function"] = "function"


class ChatMessage(msgspec.Struct, frozen=True):
    """A message of the chat API; ``content`` is a text, or its parts."""

    role: str
    content: str | tuple[ContentPart, ...] | None = None
    name: str | None = None
    refusal: str | None = None
    tool_calls: tuple[CallPart, ...] | None = None
    function_call: Any = None
    tool_call_id: str | None = None
    audio: Any = None
    reasoning_content: str | None = None  # what the model thought, as DeepSeek and vLLM call it
    reasoning: str | None = None  # other servers' name
    prefix: bool = False  # DeepSeek's: the answer continues this message, the last


class Function(msgspec.Struct, frozen=True):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FunctionTool(msgspec.Struct, frozen=True):
    """A function. Tools of other types run at a provider, and are left out."""

    function: Function | None = None
    type: str = "function"


def use(tools: Sequence[FunctionTool], choice: Choice | Pick = "auto", parallel: bool | None = None) -> ToolUse:
    """The tools of a request. ApiError for an impossible choice or name."""
    for at, tool in enumerate(tools):
        if tool.function is None and tool.type == "function":
            raise bad(f"tools[{at}].function", "is missing")
    functions = (one.function for one in tools if one.type == "function")
    offered = (Tool(one.name, one.description or "", one.parameters) for one in functions if one is not None)
    return ToolUse.of(offered, choice, parallel, "tools[{}].function.name")


def rendering(messages: Sequence[ChatMessage], generation_prompt: bool | None, continue_final: bool) -> Rendering:
    """The rendering of messages, as transformers and vLLM take it. ApiError for contradictions."""
    for at, message in enumerate(messages[:-1]):
        if message.prefix:
            raise bad(f"messages[{at}].prefix", "is for the last message")
    continue_final = continue_final or bool(messages and messages[-1].prefix)
    if continue_final and generation_prompt:
        raise bad("continue_final_message", "cannot be had with add_generation_prompt, which begins another message")
    if continue_final and not (messages and messages[-1].role == "assistant" and not messages[-1].tool_calls):
        raise bad("continue_final_message", "needs a last message of the assistant's, without tool calls")
    return Rendering(generation_prompt is not False and not continue_final, continue_final)


def turns(messages: Sequence[ChatMessage]) -> tuple[ChatTurn, ...]:
    """Messages as turns. Calls without an id get one, and results belong to them in their order."""
    unnamed: deque[str] = deque()  # calls without a result
    made: list[ChatTurn] = []
    for at, message in enumerate(messages):
        if message.role == "tool" and not message.tool_call_id and unnamed:
            message = replace(message, tool_call_id=unnamed.popleft())
        elif message.role == "assistant" and message.tool_calls:
            named = [
                call if call.id else replace(call, id=f"call_{at}_{number}")
                for number, call in enumerate(message.tool_calls)
            ]
            unnamed = deque(call.id for call, given in zip(named, message.tool_calls, strict=True) if not given.id)
            message = replace(message, tool_calls=tuple(named))
        made.append(_turn(message, f"messages[{at}]"))
    return tuple(made)


def _turn(message: ChatMessage, where: str) -> ChatTurn:
    if message.role not in _ROLES:
        raise bad(f"{where}.role", f"can be system, developer, user, assistant or tool, not {message.role!r}")
    for name in ("function_call", "audio"):
        if getattr(message, name):
            raise bad(f"{where}.{name}", "is not supported here")
    if (message.role == "tool") != bool(message.tool_call_id):
        raise bad(f"{where}.tool_call_id", "is for messages of role tool, and says which call they answer")
    calls = message.tool_calls or ()
    if calls and message.role != "assistant":
        raise bad(f"{where}.tool_calls", "is for the assistant's messages")
    return ChatTurn(
        _ROLES[message.role],
        text_of(message.content, f"{where}.content") or message.refusal or "",
        tuple(
            tool_call(call.id, call.function.name, call.function.arguments, f"{where}.tool_calls[{at}].function")
            for at, call in enumerate(calls)
        ),
        called(message.tool_call_id or "", f"{where}.tool_call_id"),
        (message.reasoning_content or message.reasoning or "") if message.role == "assistant" else "",
    )
